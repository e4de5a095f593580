"""The Parquet files of a state in a savepoint.

Elements of lists have two columns there: ``position`` is their place in the list, 0, 1, 2 and so
on, for whoever reads the files; ``added`` is what the list sorts by, and what it is restored from.
Within Turnback that is the position, see `StateTable`. Files of older versions have no other.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turnback.core.ids import path_segment
from turnback.errors import CorruptFileError
from turnback.snapshot.metadata import STATE, StatePart, file_name
from turnback.snapshot.table import StateTable
from turnback.state.delta import bounded_tables
from turnback.state.schema import LIST_KINDS, StateSchema
from turnback.storage.base import Storage
from turnback.storage.envelope import check, damaged, digest

PART_BYTES = 64 << 20
GROUP_ROWS = 1 << 16
GROUP_BYTES = 16 << 20

POSITION = "position"
_ADDED = "added"
_GROUP = "key_group"


def state_directory(schema: StateSchema) -> str:
    """Return the directory of a state's files, relative to the savepoint."""
    return f"{STATE}/{path_segment(schema.uid)}/{path_segment(schema.name)}"


def write_parts(
    storage: Storage, schema: StateSchema, tables: Iterable[pa.Table], writer: str = ""
) -> tuple[StatePart, ...]:
    """Write a state whose tables come one after the other, see `PartsWriter`."""
    parts = PartsWriter(storage, schema, writer=writer)
    for table in tables:
        parts.add(table)
    return parts.finish()


class PartsWriter:
    """Writes a state as Parquet files.

    A file is closed once it has `part_bytes`. In memory at once are one file, which is compressed,
    and a little more than one row group. What was written before an error stays behind, named by
    nothing. For `writer` see `file_name`.
    """

    def __init__(
        self,
        storage: Storage,
        schema: StateSchema,
        part_bytes: int = PART_BYTES,
        writer: str = "",
    ) -> None:
        self._storage = storage
        self._directory = state_directory(schema)
        self._part_bytes = part_bytes
        self._writer = writer
        self._lists = _ListPlaces(schema) if schema.kind in LIST_KINDS else None
        self._part: _Part | None = None
        self._parts: list[StatePart] = []
        self._buffered: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, table: pa.Table) -> None:
        """Write a typed table, see `StateTable`.

        Tables should come sorted by key group, or else readers of a few key groups have to read
        more than they need; those of lists must have the rows of a key group side by side.
        """
        if self._lists is None:
            self._add(table)
        else:
            self._add(self._lists.add(table))

    def _add(self, table: pa.Table | None) -> None:
        if table is None:
            return
        for some in bounded_tables(table, GROUP_ROWS, GROUP_BYTES):
            rows = some.num_rows
            size = some.nbytes
            if self._rows + rows > GROUP_ROWS or self._bytes + size > GROUP_BYTES:
                self._close_group()
            if rows:
                self._buffered.append(some)
                self._rows = self._rows + rows
                self._bytes = self._bytes + size

    def finish(self) -> tuple[StatePart, ...]:
        """Return the files, in order, all of them durable; none for a state without rows."""
        if self._lists is not None:
            self._add(self._lists.rest())
        self._close_group()
        self._close_part()
        return tuple(self._parts)

    def _close_group(self) -> None:
        """Make a row group of the buffered tables, so that small ones are joined."""
        if not self._buffered:
            return
        group = pa.concat_tables(self._buffered)
        self._buffered = []
        self._rows = 0
        self._bytes = 0
        if self._part is None:
            name = file_name(self._writer, f"{uuid.uuid4().hex}.parquet")
            self._part = _Part(f"{self._directory}/{name}", group.schema)
        self._part.add(group)
        if self._part.size >= self._part_bytes:
            self._close_part()

    def _close_part(self) -> None:
        if self._part is not None:
            self._parts.append(self._part.store(self._storage))
            self._part = None


class _ListPlaces:
    """Numbers the elements of lists, a key group after the other: a key is in one of them."""

    def __init__(self, schema: StateSchema) -> None:
        self._codec = StateTable(schema)
        self._held: list[pa.Table] = []
        """Rows of one key group, of which more may come."""

    def add(self, typed: pa.Table) -> pa.Table | None:
        """Take more rows; gives those of key groups that are complete."""
        if not typed.num_rows:
            return None
        groups = typed[_GROUP].to_numpy()
        others = np.flatnonzero(groups != groups[-1])
        same = self._held and self._held[0][_GROUP][0].as_py() == groups[0]
        if not len(others) and same:
            self._held.append(typed)
            return None
        start = int(others[-1]) + 1 if len(others) else 0
        complete = [*self._held, typed.slice(0, start)]
        self._held = [typed.slice(start)]
        return self._placed(complete)

    def rest(self) -> pa.Table | None:
        complete = self._held
        self._held = []
        return self._placed(complete)

    def _placed(self, tables: list[pa.Table]) -> pa.Table | None:
        tables = [table for table in tables if table.num_rows]
        if not tables:
            return None
        rows = pa.concat_tables(tables)
        index = rows.schema.get_field_index(POSITION)
        added = rows[POSITION]
        keys = pa.chunked_array([self._codec.key_bytes(table) for table in tables])
        places = pa.array(list_places(keys, added))
        field = rows.schema.field(index)
        rows = rows.set_column(index, field, places)
        return rows.add_column(index + 1, field.with_name(_ADDED), added)


def list_places(keys: pa.ChunkedArray, sorted_by: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Number the elements of each key 0, 1, 2 and so on, in the order that the list has."""
    codes = [pc.rank(each, tiebreaker="dense").to_numpy() for each in (sorted_by, keys)]
    order = np.lexsort(codes)
    sorted_keys = codes[1][order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1])))
    sizes = np.diff(np.concatenate((starts, [len(sorted_keys)])))
    places = np.empty(len(sorted_keys), np.int64)
    places[order] = np.arange(len(sorted_keys)) - np.repeat(starts, sizes)
    return places


def read_parts(
    storage: Storage, parts: Iterable[StatePart], first_group: int, last_group: int
) -> Iterator[pa.Table]:
    """Yield the rows of a range of key groups, a row group at a time; none of a damaged file.

    They are typed tables, see `StateTable`.
    """
    for part in parts:
        if part.overlaps(first_group, last_group):
            data = storage.get(part.path)
            name = f"{storage.uri}/{part.path}"
            check(data, part.length, part.digest, name)
            yield from _rows(data, part, name, first_group, last_group)


class _Part:
    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._out = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._out,
            schema,
            compression="zstd",
            use_dictionary=[_GROUP],  # keys and most values are all different
            write_statistics=[_GROUP],
        )
        self._rows = 0
        self._groups: list[int] = []

    @property
    def size(self) -> int:
        return int(self._out.tell())

    def add(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows += table.num_rows
        self._groups += _range(table)

    def store(self, storage: Storage) -> StatePart:
        self._writer.close()
        data = self._out.getvalue().to_pybytes()
        storage.put(self._path, data)
        return StatePart(
            path=self._path,
            length=len(data),
            digest=digest(data),
            rows=self._rows,
            first_group=min(self._groups),
            last_group=max(self._groups),
        )


def _range(table: pa.Table) -> tuple[int, int]:
    extremes = pc.min_max(table[_GROUP])
    return extremes["min"].as_py(), extremes["max"].as_py()


def _rows(data: bytes, part: StatePart, name: str, first: int, last: int) -> Iterator[pa.Table]:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.schema_arrow.names[:1] != [_GROUP] or file.metadata.num_rows != part.rows:
            raise damaged(name, f"it does not contain {part.rows} rows of a state")
        for number in range(file.num_row_groups):
            table = _read_row_group(file, number, first, last)
            if table is not None and table.num_rows:
                yield _without_places(table)
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{name} cannot be read as Parquet: {error}") from error


def _read_row_group(file: pq.ParquetFile, number: int, first: int, last: int) -> pa.Table | None:
    statistics = file.metadata.row_group(number).column(0).statistics
    known = statistics is not None and statistics.has_min_max
    if known and not (statistics.min <= last and first <= statistics.max):
        return None
    table = file.read_row_group(number)
    if known and first <= statistics.min and statistics.max <= last:
        return table
    return table.filter((pc.field(_GROUP) >= first) & (pc.field(_GROUP) <= last))


def _without_places(table: pa.Table) -> pa.Table:
    """Leave out what is for other readers only."""
    if _ADDED not in table.schema.names:
        return table
    own = table.drop_columns([POSITION])
    return own.rename_columns([POSITION if name == _ADDED else name for name in own.schema.names])
