"""One state of a snapshot, read in this process, a piece at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from turnback.core.errors import ConfigurationError, StateError
from turnback.core.types import TypeInfo, type_from_descriptor
from turnback.ops.display import Show, shower
from turnback.runtime.snapshot import Snapshot
from turnback.runtime.storageref import storage_of
from turnback.savepoint.lookup import check_state

if TYPE_CHECKING:
    import pyarrow as pa

SPAN_ROWS = 200_000
SPAN_BYTES = 32 << 20
_CURSOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,15})")


class Position(NamedTuple):
    """A row: the file or key group it is in, and which row of that it is."""

    place: int
    row: int

    def cursor(self) -> str:
        """The text that stands for it."""
        return f"{self.place}.{self.row}"

    @classmethod
    def of(cls, cursor: str | None) -> Position:
        """Read what `cursor` gave; the first row for None.

        Raises:
            ConfigurationError: It is something else.
        """
        if cursor is None:
            return cls(0, 0)
        match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if match is None:
            raise ConfigurationError(
                f"{cursor!r} does not say where to go on: pass on what the page before gave as next"
            )
        return cls(int(match[1]), int(match[2]))


class StateRows:
    """The rows of one state.

    Args:
        snapshot: The checkpoint or savepoint.
        uid: The operator.
        name: The state.

    Attributes:
        key_types: Types of the key's columns.
        columns: Names of the columns that are shown.

    Raises:
        StateError: There is no such state; the message suggests the nearest name.
        IncompatibleStateError: This version of Turnback cannot read it.
    """

    def __init__(self, snapshot: Snapshot, uid: str, name: str) -> None:
        from turnback.savepoint.table import StateTable

        check_state(snapshot.name, [state.id for state in snapshot.states], uid, name)
        (schema,) = (s.schema for s in snapshot.states if s.id == (uid, name))
        self.schema = schema
        self.stored = snapshot.rows(schema)
        self.groups = snapshot.max_parallelism
        self.codec = StateTable(schema)
        self.key_types = tuple(type_from_descriptor(t) for t in schema.key["types"])
        self.columns = tuple(self.codec.arrow_schema.names[1:])

    def shown(self, typed: pa.Table, *, full: bool = False) -> list[tuple[Any, ...]]:
        """Rows with typed columns in a form that JSON can hold, without the key group.

        Raises:
            StateError: A value is none of its type.
        """
        shows = self.showers(full=full)
        try:
            lists = [
                [show(value) for value in typed[name].to_pylist()]
                for name, show in zip(self.columns, shows, strict=True)
            ]
        except (ValueError, OverflowError) as error:
            raise self.unreadable(str(error)) from error
        return list(zip(*lists, strict=True))

    def showers(self, *, full: bool = False) -> list[Show]:
        """What shows the values of each column."""
        whole = {"longest": None} if full else {}
        shows = [_key_shower(self.key_types)]
        if self.schema.kind == "list":
            shows.append(_position)
        elif self.schema.kind == "map":
            shows.append(shower(type_from_descriptor(self.schema.sub), longest=None))
        return [*shows, shower(type_from_descriptor(self.schema.value), **whole)]

    def tables(self, start: Position) -> Iterator[tuple[Position, pa.Table]]:
        """Typed rows from a position on, and the position of the first of each table.

        A place is a file in a savepoint, and a key group in a checkpoint. In memory at once are
        the files of one place and a piece of their rows.
        """
        found = self._of_parts(start) if self.stored.parts else self._of_files(start)
        for position, table in found:
            self.check(table)
            yield position, table

    def check(self, typed: pa.Table) -> None:
        """Refuse a table that has other columns than the state."""
        wanted = self.codec.arrow_schema
        if typed.schema.names != wanted.names or typed.schema.types != wanted.types:
            raise self.unreadable(f"its files have the columns {typed.schema.names}")

    def after(self, position: Position, table: pa.Table, rows: int) -> Position:
        """The position after so many rows of a table that begins at a position."""
        if self.stored.parts:
            return Position(position.place, position.row + rows)
        groups = table["key_group"].to_numpy()
        last = int(groups[rows - 1])
        before = position.row if last == position.place else 0
        return Position(last, before + int((groups[:rows] == last).sum()))

    def unreadable(self, why: str) -> StateError:
        """The error for rows that cannot be used."""
        return StateError(
            f"state {self.schema.name!r} of operator {self.schema.uid!r} in "
            f"{self.stored.storage.uri} cannot be read: {why}"
        )

    def _of_parts(self, start: Position) -> Iterator[tuple[Position, pa.Table]]:
        from turnback.savepoint.parts import read_parts

        storage = storage_of(self.stored.storage)
        parts = sorted(self.stored.parts, key=lambda p: (p.first_group, p.last_group, p.path))
        for place, part in enumerate(parts[start.place :], start.place):
            first = start.row if place == start.place else 0
            row = 0
            for table in read_parts(storage, (part,), 0, self.groups - 1):
                skipped = min(max(first - row, 0), table.num_rows)
                if skipped < table.num_rows:
                    yield Position(place, row + skipped), table.slice(skipped)
                row += table.num_rows

    def _of_files(self, start: Position) -> Iterator[tuple[Position, pa.Table]]:
        from turnback.runtime.spans import spans_of

        files = [f for f in self.stored.files if self.schema.uid in f.operators]
        place, row = start.place, 0
        for first, last in spans_of(self.groups, files, SPAN_ROWS, SPAN_BYTES):
            if last < start.place:
                continue
            for table in self.stored.typed(max(first, start.place), last):
                groups = table["key_group"].to_numpy()
                if int(groups[0]) != place:
                    place, row = int(groups[0]), 0
                wanted = start.row if place == start.place else 0
                skipped = min(max(wanted - row, 0), int((groups == place).sum()))
                if skipped < table.num_rows:
                    rest = table.slice(skipped)
                    same = int(groups[skipped]) == place
                    yield Position(int(groups[skipped]), row + skipped if same else 0), rest
                end = int(groups[-1])
                row = (row if end == place else 0) + int((groups == end).sum())
                place = end


def _key_shower(types: tuple[TypeInfo, ...]) -> Show:
    """Several columns as a list; never cut, because people search for what they see."""
    shows = [shower(type_, longest=None) for type_ in types]
    if len(shows) == 1:
        return shows[0]
    return lambda key: [show(value) for show, value in zip(shows, key.values(), strict=True)]


def _position(value: int) -> int | str:
    return value if value < 1 << 53 else str(value)
