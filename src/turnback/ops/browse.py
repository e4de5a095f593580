"""Rows of a state, page by page, without Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnback.core.errors import ConfigurationError, ElementTypeError
from turnback.core.types import Types
from turnback.ops.kept import while_kept
from turnback.ops.keytext import parse_key
from turnback.ops.model import StatePage
from turnback.ops.staterows import Position, StateRows
from turnback.runtime.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 1_000
"""Rows of the largest page."""
SCAN_ROWS = 200_000
SCAN_S = 2.0
"""After so much a page ends, however few rows it has found."""


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

    A page may have fewer rows than asked for, even none, and still not be the last one: only
    `next` tells.

    Args:
        snapshot: The checkpoint or savepoint.
        uid: The operator.
        name: The state.
        key: Only rows of this key, see `parse_key`; ``abc*`` for all text keys that begin so.
        after: What the page before gave as `next`.
        limit: Number of rows, at most `MOST`.
        full: Show long values as a whole.

    Raises:
        StateError: There is no such state, or its rows cannot be read.
        ConfigurationError: An argument cannot be used, such as a key of another type.
        CorruptFileError: A file is damaged; none of its rows are given out.
        CheckpointNotFoundError: The checkpoint was dropped meanwhile.
        NotFoundError: A file is missing.
    """
    check_limit(limit)
    start = Position.of(after)
    rows = StateRows(snapshot, uid, name)
    found = _Found(limit)
    with while_kept(snapshot):
        if key is None:
            following = _scan(rows, start, found, None)
        elif (prefix := _prefix(key, rows)) is not None:
            following = _scan(rows, start, found, prefix)
        else:
            following = _look_up(rows, key, start, found)
    shown = [row for table in found.tables for row in rows.shown(table, full=full)]
    return StatePage(
        uid=uid,
        name=name,
        columns=rows.columns,
        rows=tuple(shown),
        next=following.cursor() if following is not None else None,
        scanned=found.scanned,
    )


def check_limit(limit: int) -> None:
    """Refuse a number of rows that no page can have."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST:
        raise ConfigurationError(f"limit: a page has 1 to {MOST} rows, not {limit!r}")


@dataclass
class _Found:
    """What a page has found so far."""

    limit: int
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    scanned: int = 0

    @property
    def missing(self) -> int:
        return self.limit - self.rows

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.rows += table.num_rows


def _scan(rows: StateRows, start: Position, found: _Found, prefix: str | None) -> Position | None:
    """Read on from a position; returns where the next page begins."""
    deadline = time.monotonic() + SCAN_S
    for position, table in rows.tables(start):
        if found.scanned and (not found.missing or _is_enough(found, deadline)):
            return position
        wanted, read = _first(table, prefix, found.missing)
        found.add(wanted)
        found.scanned += read
        if read < table.num_rows:
            return rows.after(position, table, read)
    return None


def _is_enough(found: _Found, deadline: float) -> bool:
    return found.scanned >= SCAN_ROWS or time.monotonic() >= deadline


def _first(table: pa.Table, prefix: str | None, limit: int) -> tuple[pa.Table, int]:
    """The first rows that are wanted, and how many were read for them."""
    import pyarrow.compute as pc

    if prefix is None:
        return table.slice(0, limit), min(limit, table.num_rows)
    indices = pc.indices_nonzero(pc.starts_with(table["key"], prefix))
    if len(indices) <= limit:
        return table.take(indices), table.num_rows
    chosen = indices.slice(0, limit)
    return table.take(chosen), int(chosen[-1].as_py()) + 1


def _prefix(key: str, rows: StateRows) -> str | None:
    is_text = rows.key_types == (Types.STRING(),)
    return key[:-1] if is_text and isinstance(key, str) and key.endswith("*") else None


def _look_up(rows: StateRows, text: str, start: Position, found: _Found) -> Position | None:
    """All rows of one key: they are in one key group, which the key itself tells."""
    import pyarrow as pa
    import pyarrow.compute as pc

    group, data = _encoded(rows, text)
    matching = []
    for table in rows.stored.rows(group, group):
        found.scanned += table.num_rows
        same = table.filter(pc.equal(table["key"], pa.scalar(data, table["key"].type)))
        if same.num_rows:
            matching.append(same)
    if not matching:
        return None
    together = pa.concat_tables(matching)
    if rows.schema.kind in ("list", "map"):
        together = together.sort_by("sub")
    found.add(rows.codec.to_typed(together.slice(start.row, found.limit)))
    end = start.row + found.rows
    return Position(group, end) if end < together.num_rows else None


def _encoded(rows: StateRows, text: str) -> tuple[int, bytes]:
    """Key group and bytes of a key, as the engine computes them."""
    from turnback.core.keys import KeyCodec

    codec = KeyCodec(rows.key_types, bool(rows.schema.key["columns"]))
    key: Any = parse_key(text, rows.key_types)
    try:
        return codec.group(key, rows.groups), codec.encode(key)
    except ElementTypeError as error:
        types = ", ".join(map(str, rows.key_types))
        raise ConfigurationError(f"{text!r} is no key of type {types}: {error}") from error
