"""One state of a snapshot, read in this process, a page at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from turnback.errors import ConfigurationError, StateError
from turnback.snapshot import lookup
from turnback.snapshot.lookup import key_rows
from turnback.snapshot.snapshot import Snapshot, spans_of
from turnback.state.files import StorageRef, storage_of
from turnback.state.schema import LIST_KINDS, WINDOWED
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types, type_from_descriptor
from turnback.views.job import Job
from turnback.views.model import KeyView, StatePage
from turnback.views.snapshots import reading
from turnback.views.text import Formatter, formatter, parse_key

if TYPE_CHECKING:
    import pyarrow as pa


def look_up(
    job: Job,
    uid: str,
    name: str,
    key: str,
    *,
    after: str | None = None,
    limit: int | None = None,
) -> KeyView:
    """Return what a state holds for a key, which is written as `parse_key` says.

    It is as of the newest checkpoint, and the job does not notice. For `after` and `limit`, and for
    what is raised, see `snapshot.lookup.look_up`.
    """
    found = lookup.look_up(
        job.directory,
        StorageRef(job.directory.storage.uri, job.options),
        uid,
        name,
        lambda schema: parse_key(key, schema.key.type_infos()),
        job.now_ms(),
        after,
        limit,
    )
    state = StateRows(found.snapshot, uid, name)
    rows = [row[1:] for row in state.formatted(state.codec.to_typed(found.rows), full=True)]
    if state.schema.kind in LIST_KINDS:
        rows = [(position, *row[1:]) for position, row in enumerate(rows, found.first)]
    return KeyView(
        uid=uid,
        name=name,
        kind=state.schema.kind,
        key=key,
        found=bool(rows),
        columns=state.columns[1:],
        rows=tuple(rows),
        next=None if found.next is None else found.next.text(),
        snapshot=found.snapshot.name,
        epoch=found.snapshot.epoch,
        created_ms=found.snapshot.created_ms,
    )


SPAN_ROWS = 200_000
SPAN_BYTES = 32 << 20
_CURSOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,15})")


class RowPosition(NamedTuple):
    """A row: the file or key group it is in, and which row of that it is."""

    block: int
    row: int

    def cursor(self) -> str:
        return f"{self.block}.{self.row}"

    @classmethod
    def of(cls, cursor: str | None) -> RowPosition:
        """Return the position that `cursor` stands for; the first row for None."""
        if cursor is None:
            return cls(0, 0)
        match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if match is None:
            raise ConfigurationError(f"invalid cursor {cursor!r}: pass `next` of the previous page")
        return cls(int(match[1]), int(match[2]))


class StateRows:
    """The rows of one state; `columns` are the names of those that are displayed."""

    def __init__(self, snapshot: Snapshot, uid: str, name: str) -> None:
        from turnback.snapshot.table import StateTable

        self.snapshot = snapshot
        self.state = snapshot.state(uid, name)
        self.schema = self.state.schema
        self.stored = snapshot.rows(self.state)
        self.groups = snapshot.max_parallelism
        self.codec = StateTable(self.schema)
        self.key_types = self.schema.key.type_infos()
        self.columns = tuple(self.codec.arrow_schema.names[1:])

    def formatted(self, typed: pa.Table, *, full: bool = False) -> list[tuple[Any, ...]]:
        """Return rows with typed columns in a form that JSON can hold, without the key group."""
        formats = [_key_formatter(self.key_types)]
        if self.schema.kind in LIST_KINDS:
            formats.append(formatter(Types.LONG(), longest=None))
        elif self.schema.sub is not None:
            sub = type_from_descriptor(self.schema.sub)
            types: tuple[TypeInfo, ...] = (sub,)
            if self.schema.kind == WINDOWED and isinstance(sub, RowTypeInfo):
                types = sub.types
            formats += [formatter(type_, longest=None) for type_ in types]
        value = type_from_descriptor(self.schema.value)
        formats.append(formatter(value, longest=None) if full else formatter(value))
        names = typed.schema.names[1:]  # what differs is shown without the time of its update
        if len(names) > len(formats):
            formats.append(formatter(Types.INSTANT(), longest=None))
        try:
            lists = [
                [format(value) for value in typed[name].to_pylist()]
                for name, format in zip(names, formats, strict=True)
            ]
        except (ValueError, OverflowError) as error:
            raise self._unreadable(str(error)) from error
        return list(zip(*lists, strict=True))

    def tables(self, start: RowPosition) -> Iterator[tuple[RowPosition, pa.Table]]:
        """Yield typed rows from a position on, and the position of the first of each table.

        A block is a file of a savepoint, or a key group of a checkpoint. In memory at once are
        the files of one block and some of their rows.
        """
        tables = (
            self._savepoint_tables(start) if self.stored.parts else self._checkpoint_tables(start)
        )
        wanted = self.codec.arrow_schema
        for position, table in tables:
            if table.schema.names != wanted.names or table.schema.types != wanted.types:
                raise self._unreadable(f"its files have the columns {table.schema.names}")
            yield position, table

    def after(self, position: RowPosition, table: pa.Table, rows: int) -> RowPosition:
        """Return the position after so many rows of a table that begins at a position."""
        if self.stored.parts:
            return RowPosition(position.block, position.row + rows)
        groups = table["key_group"].to_numpy()
        last = int(groups[rows - 1])
        before = position.row if last == position.block else 0
        return RowPosition(last, before + int((groups[:rows] == last).sum()))

    def _unreadable(self, why: str) -> StateError:
        return StateError(
            f"state {self.schema.name!r} of operator {self.schema.uid!r} in "
            f"{self.stored.storage.uri} cannot be read: {why}"
        )

    def _savepoint_tables(self, start: RowPosition) -> Iterator[tuple[RowPosition, pa.Table]]:
        from turnback.snapshot.parts import read_parts

        storage = storage_of(self.stored.storage)
        parts = sorted(self.stored.parts, key=lambda p: (p.first_group, p.last_group, p.path))
        for block, part in enumerate(parts[start.block :], start.block):
            first = start.row if block == start.block else 0
            row = 0
            for table in read_parts(storage, (part,), 0, self.groups - 1):
                skipped = min(max(first - row, 0), table.num_rows)
                if skipped < table.num_rows:
                    yield RowPosition(block, row + skipped), table.slice(skipped)
                row += table.num_rows

    def _checkpoint_tables(self, start: RowPosition) -> Iterator[tuple[RowPosition, pa.Table]]:
        block = start.block
        row = 0
        for first, last in spans_of(self.groups, self.stored.held_by(), SPAN_ROWS, SPAN_BYTES):
            if last < start.block:
                continue
            for table in self.stored.typed(max(first, start.block), last):
                groups = table["key_group"].to_numpy()
                if int(groups[0]) != block:
                    block = int(groups[0])
                    row = 0
                wanted = start.row if block == start.block else 0
                skipped = min(max(wanted - row, 0), int((groups == block).sum()))
                if skipped < table.num_rows:
                    rest = table.slice(skipped)
                    same = int(groups[skipped]) == block
                    yield RowPosition(int(groups[skipped]), row + skipped if same else 0), rest
                end = int(groups[-1])
                row = (row if end == block else 0) + int((groups == end).sum())
                block = end


def _key_formatter(types: tuple[TypeInfo, ...]) -> Formatter:
    """Several columns as a list; never cut, because people search for what they see."""
    formats = [formatter(type_, longest=None) for type_ in types]
    if len(formats) == 1:
        return formats[0]
    return lambda key: [f(value) for f, value in zip(formats, key.values(), strict=True)]


MOST = 1_000
"""Rows of the largest page."""
SCAN_ROWS = 200_000
SCAN_S = 2.0
"""After so much, counted from its first rows on, a page ends, however few rows it has."""


def page(
    snapshot: Snapshot,
    uid: str,
    name: str,
    *,
    key: str | None = None,
    after: str | None = None,
    limit: int = 50,
    full: bool = False,
) -> StatePage:
    """Read some rows of a state.

    A page may have fewer rows than `limit`, even none, and still not be the last one: only `next`
    tells, which the next call takes as `after`. With `key` only rows of this key are read, see
    `parse_key`, or with ``abc*`` those of all text keys that begin so. Long values are cut unless
    `full`.
    """
    from turnback.snapshot.numbering import number_rows

    check_limit(limit)
    start = RowPosition.of(after)
    rows = StateRows(snapshot, uid, name)
    page = _Page(limit)
    with reading(snapshot):
        is_text = isinstance(key, str) and rows.key_types == (Types.STRING(),)
        if key is None or (is_text and key.endswith("*")):
            following = _scan(rows, start, page, None if key is None else key[:-1])
        else:
            following = _look_up(rows, key, start, page)
        typed = number_rows(rows.stored, page.table(rows.codec.arrow_schema))
    return StatePage(
        uid=uid,
        name=name,
        columns=rows.columns,
        rows=tuple(rows.formatted(typed, full=full)),
        next=following.cursor() if following is not None else None,
        scanned=page.scanned,
    )


def check_limit(limit: int) -> None:
    """Refuse a number of rows that no page can have."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST:
        raise ConfigurationError(f"limit must be between 1 and {MOST}, not {limit!r}")


@dataclass
class _Page:
    """The rows of a page so far."""

    limit: int
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    scanned: int = 0

    @property
    def missing(self) -> int:
        return self.limit - self.rows

    def table(self, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables(self.tables) if self.tables else schema.empty_table()

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.rows += table.num_rows


def _scan(
    rows: StateRows, start: RowPosition, page: _Page, prefix: str | None
) -> RowPosition | None:
    """Read on from a position; returns where the next page begins."""
    deadline: float | None = None
    for position, table in rows.tables(start):
        if deadline is None:  # to open the files takes what it takes
            deadline = time.monotonic() + SCAN_S
        elif not page.missing or page.scanned >= SCAN_ROWS or time.monotonic() >= deadline:
            return position
        wanted, read = _take(table, prefix, page.missing)
        page.add(wanted)
        page.scanned += read
        if read < table.num_rows:
            return rows.after(position, table, read)
    return None


def _take(table: pa.Table, prefix: str | None, limit: int) -> tuple[pa.Table, int]:
    """Return the first rows that are wanted, and how many were read for them."""
    import pyarrow.compute as pc

    if prefix is None:
        return table.slice(0, limit), min(limit, table.num_rows)
    indices = pc.indices_nonzero(pc.starts_with(table["key"], prefix))
    if len(indices) <= limit:
        return table.take(indices), table.num_rows
    chosen = indices.slice(0, limit)
    return table.take(chosen), int(chosen[-1].as_py()) + 1


def _look_up(rows: StateRows, text: str, start: RowPosition, page: _Page) -> RowPosition | None:
    """Read the rows of one key, all in one key group; returns where the next page begins."""
    matching = key_rows(rows.snapshot, rows.state, parse_key(text, rows.key_types))
    page.scanned = len(matching)
    page.add(rows.codec.to_typed(matching.slice(start.row, page.limit)))
    end = start.row + page.rows
    return RowPosition(start.block, end) if end < len(matching) else None
