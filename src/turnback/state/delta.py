"""State files: what one epoch has changed, sorted by key group, as compressed Arrow batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from turnback.errors import UNDECODABLE, CorruptFileError, FormatVersionError, StateError
from turnback.state.files import StateFile
from turnback.state.schema import MAX_GROUPS, StateSchema
from turnback.storage.envelope import check, digest

FORMAT = 2
"""Of files with a state whose values have times before them; all others have `_PLAIN_FORMAT`."""
_PLAIN_FORMAT = 1
BATCH_ROWS = 1 << 16
BATCH_BYTES = 64 << 20
MOST_STATES = 1 << 15
"""That the column `state` can number."""
_MOST_OFFSET = (1 << 31) - 1

_FORMAT_KEY = b"turnback.state.format"
_STATES_KEY = b"turnback.state.states"
_OPTIONS = ipc.IpcWriteOptions(compression="zstd")
_ONLY_GROUPS = ipc.IpcReadOptions(included_fields=[1], use_threads=False)
_ONLY_KEYS = ipc.IpcReadOptions(included_fields=[2], use_threads=False)
_NO_VALUES = ipc.IpcReadOptions(included_fields=[0, 1, 2, 3])

COLUMNS = pa.schema(
    [
        pa.field("state", pa.int16(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("sub", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
WIDE_COLUMNS = pa.schema(
    [field.with_type(pa.large_binary()) if i > 1 else field for i, field in enumerate(COLUMNS)]
)
"""The same for rows in memory, of which there may be more than 2 GiB."""

DeltaBatch = Callable[[], pa.RecordBatch]
"""Reads a batch of a state file."""
ReadFile = Callable[[StateFile], bytes]
"""Gives the bytes of a state file that does not carry them inline."""
OpenFile = Callable[[StateFile], "Delta"]
"""What `open_delta` does, once it is told how to read."""


class BuiltDelta(NamedTuple):
    """The bytes of a state file, with what its `StateFile` records."""

    data: bytes
    rows: int
    first_group: int
    last_group: int
    operators: tuple[str, ...]

    def file(
        self, path: str, epoch: int, line: str | None = None, *, inline: bool = False
    ) -> StateFile:
        """The reference to the delta of one epoch, for manifests.

        With a line, see `StateFile.lineage`, older local stores are caught up instead of rebuilt.
        """
        return StateFile(
            path=path,
            length=len(self.data),
            digest=digest(self.data),
            rows=self.rows,
            first_epoch=epoch,
            last_epoch=epoch,
            first_group=self.first_group,
            last_group=self.last_group,
            operators=self.operators,
            inline=self.data if inline else None,
            lineage=() if line is None else ((line, epoch),),
        )


class Delta:
    """A state file that has been opened: its states, and its rows batch by batch."""

    def __init__(
        self, schemas: list[StateSchema], data: pa.Buffer, name: str, key: bytes | None = None
    ) -> None:
        self.schemas = schemas
        self._data = data
        self._name = name
        self._key = key
        self._reader = ipc.open_file(data)

    def batches(
        self, first_group: int = 0, last_group: int = MAX_GROUPS, *, values: bool = True
    ) -> list[DeltaBatch]:
        """The batches that may hold rows of these key groups; none of them is decompressed yet.

        Without the column of values they are read in a fraction of the time.
        """
        numbers = range(self._reader.num_record_batches)
        if len(numbers) > 1:  # most files hold what one epoch has touched
            groups = ipc.open_file(self._data, options=_ONLY_GROUPS)
            start = bisect_left(numbers, first_group, key=partial(self._group, groups, row=-1))
            end = bisect_right(numbers, last_group, key=partial(self._group, groups, row=0))
            numbers = numbers[start:end]
        reader = self._reader if values else ipc.open_file(self._data, options=_NO_VALUES)
        read = self._batch if self._key is None else self._rows_of_key
        return [partial(read, reader, number) for number in numbers]

    def _group(self, reader: ipc.RecordBatchFileReader, number: int, row: int) -> int:
        return int(self._batch(reader, number).column(0)[row].as_py())

    def _rows_of_key(self, reader: ipc.RecordBatchFileReader, number: int) -> pa.RecordBatch:
        """Read a batch only if its keys say that something of it is wanted."""
        keys = ipc.open_file(self._data, options=_ONLY_KEYS)
        same = pc.equal(self._batch(keys, number).column(0), pa.scalar(self._key, pa.binary()))
        first = pc.index(same, True).as_py()
        if first < 0:
            return pa.RecordBatch.from_pylist([], schema=reader.schema)
        return self._batch(reader, number).filter(same)

    def _batch(self, reader: ipc.RecordBatchFileReader, number: int) -> pa.RecordBatch:
        try:
            return reader.get_batch(number)
        except (pa.ArrowException, OSError) as e:
            raise CorruptFileError(f"cannot read state file {self._name}: {e}") from e


def write_delta(schemas: Sequence[StateSchema], batches: Iterable[pa.RecordBatch]) -> bytes:
    """The bytes of a state file."""
    version = _PLAIN_FORMAT if all(schema.ttl is None for schema in schemas) else FORMAT
    schema = COLUMNS.with_metadata(
        {_FORMAT_KEY: str(version).encode(), _STATES_KEY: msgspec.json.encode(list(schemas))}
    )
    out = BytesIO()  # gives its bytes away without a copy
    with ipc.new_file(out, schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue()


def read_delta(data: bytes, name: str = "<bytes>", key: bytes | None = None) -> Delta:
    """Read a state file whose length and digest have been checked; of a key, only its rows."""
    buffer = pa.py_buffer(data)
    try:
        reader = ipc.open_file(buffer)
        metadata = reader.schema.metadata or {}
        version = int(metadata[_FORMAT_KEY])
    except (pa.ArrowException, OSError, KeyError, ValueError) as e:
        raise CorruptFileError(f"{name} is not a state file: {e}") from e
    if version > FORMAT:
        raise FormatVersionError(
            f"state file {name} has format {version}, but this version of Turnback reads up to "
            f"{FORMAT}; use the version of Turnback that wrote it, or a newer one"
        )
    try:
        schemas = msgspec.json.decode(metadata[_STATES_KEY], type=list[StateSchema])
    except (KeyError, *UNDECODABLE) as e:
        raise CorruptFileError(f"state file {name} does not describe its states: {e}") from e
    if not reader.schema.equals(COLUMNS):
        raise CorruptFileError(f"state file {name} has the columns {reader.schema.names}")
    return Delta(schemas, buffer, name, key)


def open_delta(file: StateFile, read: ReadFile, key: bytes | None = None) -> Delta:
    """Open a state file; raises `CorruptFileError` if it is not what its `StateFile` says.

    With a key, its batches have only rows of that key.
    """
    data = file.inline if file.inline is not None else read(file)
    check(data, file.length, file.digest, file.path)
    return read_delta(data, file.path, key)


class DeltaBuilder:
    """Collects what changed in one epoch, from all backends of a task."""

    def __init__(self) -> None:
        self._schemas: list[StateSchema] = []
        self._counts: list[int] = []
        self._groups: list[int] = []
        self._keys: list[bytes] = []
        self._subs: list[bytes | None] = []
        self._values: list[bytes | None] = []

    def add(
        self,
        schema: StateSchema,
        groups: list[int],
        keys: list[bytes],
        subs: list[bytes | None] | None,
        values: list[bytes | None],
    ) -> None:
        """Add the changes of one state; clears before puts. `subs` is None when all are null."""
        if not keys:
            return
        self._schemas.append(schema)
        self._counts.append(len(keys))
        self._groups += groups
        self._keys += keys
        self._subs += [None] * len(keys) if subs is None else subs
        self._values += values

    def build(self) -> BuiltDelta | None:
        """The state file of the epoch; None when nothing changed."""
        if not self._keys:
            return None
        states = np.repeat(np.arange(len(self._counts), dtype=np.int16), self._counts)
        columns = [states, self._groups, self._keys, self._subs, self._values]
        return build_delta(
            self._schemas,
            pa.table(
                [pa.array(c, f.type) for c, f in zip(columns, WIDE_COLUMNS, strict=True)],
                schema=WIDE_COLUMNS,
            ),
        )


def build_delta(schemas: Sequence[StateSchema], rows: pa.Table) -> BuiltDelta:
    """The state file of some rows with `WIDE_COLUMNS`, which are sorted by key group here."""
    if rows.nbytes > _MOST_OFFSET:
        _check_values(schemas, rows)
    groups = rows["group"].to_numpy()
    if (np.diff(groups) < 0).any():
        order = np.argsort(groups, kind="stable")
        rows = rows.take(pa.array(order))
        groups = groups[order]
    return BuiltDelta(
        write_delta(schemas, bounded_batches(rows)),
        len(rows),
        int(groups[0]),
        int(groups[-1]),
        tuple(sorted({schema.uid for schema in schemas})),
    )


def _check_values(schemas: Sequence[StateSchema], rows: pa.Table) -> None:
    """Refuse a value that no state file can hold, by the name of its state."""
    sizes = pc.binary_length(rows["value"]).fill_null(0).to_numpy()
    largest = int(sizes.argmax())
    if sizes[largest] > _MOST_OFFSET:
        schema = schemas[rows["state"][largest].as_py()]
        raise StateError(
            f"{schema.title} has a value of {sizes[largest]:,} bytes, but the limit is "
            f"{_MOST_OFFSET:,}; split it, as a list or a map"
        )


def bounded_batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows of a table, with the columns of a state file, in batches of bounded size."""
    sizes = np.zeros(len(table), np.int64)
    for column in table.columns[2:]:
        sizes += pc.binary_length(column).fill_null(0).to_numpy()
    for start, end in _cuts(sizes):
        cut = table.slice(start, end - start)
        yield pa.record_batch(
            [_narrow(c, f.type) for c, f in zip(cut.columns, COLUMNS, strict=True)],
            schema=COLUMNS,
        )


def bounded_tables(table: pa.Table, rows: int, size: int) -> Iterator[pa.Table]:
    """Cut a table into tables of at most so many rows and bytes; a single row may be larger."""
    count = table.num_rows
    if count <= 1 or (count <= rows and table.nbytes <= size):
        yield table
        return
    middle = count // 2
    yield from bounded_tables(table.slice(0, middle), rows, size)
    yield from bounded_tables(table.slice(middle), rows, size)


def _narrow(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
    array = column.combine_chunks()
    if array.type != wanted and len(array) and pa.types.is_large_binary(array.type):
        ends = np.frombuffer(array.buffers()[1], np.int64)
        if ends[array.offset + len(array)] > _MOST_OFFSET:  # the slice lies far back in its chunk
            array = array.take(pa.array(np.arange(len(array))))
    return array.cast(wanted)


def _cuts(sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut rows of these sizes into batches of bounded size."""
    total = np.cumsum(sizes)
    start = 0
    rows = len(sizes)
    while start < rows:
        before = int(total[start - 1]) if start else 0
        end = int(np.searchsorted(total, before + BATCH_BYTES, side="right"))
        end = min(max(end, start + 1), start + BATCH_ROWS, rows)
        yield start, end
        start = end
