"""Writes one state as Parquet files of bounded size, and reads the key groups a task needs."""

import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turnback.core.errors import CorruptFileError
from turnback.core.ids import path_segment
from turnback.savepoint.metadata import STATE, StatePart
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
    storage: Storage,
    schema: StateSchema,
    tables: Iterable[pa.Table],
    *,
    part_bytes: int = PART_BYTES,
    new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> tuple[StatePart, ...]:
    """Write a state as Parquet files, which are durable on return.

    In memory at once are one file, which is compressed, and a little more than one row group.
    What was written when an error is raised stays behind, named by nothing.

    Args:
        storage: The savepoint's directory.
        schema: The state.
        tables: Typed tables, see `StateTable`. Sorted by key group, or else readers of a few key
            groups have to read more than they need.
        part_bytes: A file is closed once it is this large.
        new_name: Makes names that are never made again, by anyone.

    Returns:
        The files, in order; none for a state without rows.
    """
    directory = state_directory(schema)
    parts: list[StatePart] = []
    part: _Part | None = None
    for group in _row_groups(tables):
        if part is None:
            part = _Part(f"{directory}/{new_name()}.parquet", group.schema)
        part.add(group)
        if part.size >= part_bytes:
            parts.append(part.store(storage))
            part = None
    if part is not None:
        parts.append(part.store(storage))
    return tuple(parts)


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


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cut and join tables so that each becomes one row group of a good size."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for piece in pieces(table, GROUP_ROWS, GROUP_BYTES):
            count, more = piece.num_rows, piece.nbytes
            if held and (rows + count > GROUP_ROWS or size + more > GROUP_BYTES):
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
            if count:
                held.append(piece)
                rows, size = rows + count, size + more
    if held:
        yield pa.concat_tables(held)


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
