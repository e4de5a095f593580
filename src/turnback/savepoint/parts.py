"""Writes one state as Parquet files of bounded size, and reads the key groups a task needs."""

import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turnback.core.errors import CorruptFileError
from turnback.core.ids import path_segment
from turnback.savepoint.metadata import STATE, StatePart, file_name
from turnback.savepoint.pieces import pieces
from turnback.state.schema import StateSchema
from turnback.storage.base import Storage
from turnback.storage.digest import check, damaged, digest

PART_BYTES = 64 << 20
GROUP_ROWS = 1 << 16
GROUP_BYTES = 16 << 20

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

    In memory at once are one file, which is compressed, and a little more than one row group.
    What was written before an error stays behind, named by nothing.

    Args:
        storage: The savepoint's directory.
        schema: The state.
        part_bytes: A file is closed once it is this large.
        new_name: Makes names that are never made again, by anyone.
        writer: Who writes, see `file_name`.
    """

    def __init__(
        self,
        storage: Storage,
        schema: StateSchema,
        part_bytes: int = PART_BYTES,
        new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
        writer: str = "",
    ) -> None:
        self._storage = storage
        self._directory = state_directory(schema)
        self._part_bytes = part_bytes
        self._new_name = new_name
        self._writer = writer
        self._part: _Part | None = None
        self._parts: list[StatePart] = []
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, table: pa.Table) -> None:
        """Write a typed table, see `StateTable`.

        Tables should come sorted by key group, or else readers of a few key groups have to read
        more than they need.
        """
        for piece in pieces(table, GROUP_ROWS, GROUP_BYTES):
            rows, size = piece.num_rows, piece.nbytes
            if self._rows + rows > GROUP_ROWS or self._bytes + size > GROUP_BYTES:
                self._close_group()
            if rows:
                self._held.append(piece)
                self._rows, self._bytes = self._rows + rows, self._bytes + size

    def finish(self) -> tuple[StatePart, ...]:
        """Return the files, in order, all of them durable; none for a state without rows."""
        self._close_group()
        self._close_part()
        return tuple(self._parts)

    def _close_group(self) -> None:
        """Make a row group of the tables held back, so that small ones are joined."""
        if not self._held:
            return
        group = pa.concat_tables(self._held)
        self._held, self._rows, self._bytes = [], 0, 0
        if self._part is None:
            name = file_name(self._writer, f"{self._new_name()}.parquet")
            self._part = _Part(f"{self._directory}/{name}", group.schema)
        self._part.add(group)
        if self._part.size >= self._part_bytes:
            self._close_part()

    def _close_part(self) -> None:
        if self._part is not None:
            self._parts.append(self._part.store(self._storage))
            self._part = None


def read_parts(
    storage: Storage, parts: Iterable[StatePart], first_group: int, last_group: int
) -> Iterator[pa.Table]:
    """Yield the rows of a range of key groups, a row group at a time.

    Args:
        storage: The savepoint's directory.
        parts: Files of one state.
        first_group: Smallest key group wanted.
        last_group: Greatest one.

    Raises:
        CorruptFileError: A file is not what was written; no row of it was given out.
        NotFoundError: A file is missing.
    """
    for part in parts:
        if part.overlaps(first_group, last_group):
            data = storage.get(part.path)
            name = f"{storage.uri}/{part.path}"
            check(data, part.length, part.digest, name)
            yield from _rows(data, part, name, first_group, last_group)


class _Part:
    """A file being written, in memory."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._out = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._out, schema, compression="zstd", write_statistics=[_GROUP]
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
    found = pc.min_max(table[_GROUP])
    return found["min"].as_py(), found["max"].as_py()


def _rows(data: bytes, part: StatePart, name: str, first: int, last: int) -> Iterator[pa.Table]:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.schema_arrow.names[:1] != [_GROUP] or file.metadata.num_rows != part.rows:
            raise damaged(name, f"it does not hold {part.rows} rows of a state")
        for number in range(file.num_row_groups):
            table = _wanted(file, number, first, last)
            if table is not None and table.num_rows:
                yield table
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{name} cannot be read as Parquet: {error}") from error


def _wanted(file: pq.ParquetFile, number: int, first: int, last: int) -> pa.Table | None:
    statistics = file.metadata.row_group(number).column(0).statistics
    known = statistics is not None and statistics.has_min_max
    if known and not (statistics.min <= last and first <= statistics.max):
        return None
    table = file.read_row_group(number)
    if known and first <= statistics.min and statistics.max <= last:
        return table
    return table.filter((pc.field(_GROUP) >= first) & (pc.field(_GROUP) <= last))
