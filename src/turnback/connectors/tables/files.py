"""The Parquet files that tasks write below a table, and the transactions that name them.

Nobody sees these files until the table refers to them. Before a task writes files it leaves a note
with their names in a hidden directory of the table. The note goes when the files are about to be
published; so whoever finds one later knows files that nothing refers to, without a listing of the
whole table.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from turnback.errors import NullKeyError, SinkError, StorageError
from turnback.sinks.base import (
    CommitterContext,
    GuardedWriter,
    TransactionInfo,
    WriterContext,
    aborted_on_failure,
    read_handle,
    require_open,
    seal_handle,
    sink_label,
    version_of,
)
from turnback.sinks.ownership import SUFFIX, SinkIdentity, require_shared_target
from turnback.storage.base import Storage
from turnback.storage.envelope import decode_document, encode_document
from turnback.values.columns import Batch

_COLUMNS = 32
_CHARACTERS = 32
_EXACT_DIGITS = 15
"""Readers take decimals in statistics for floating point numbers, which hold so many digits."""


_FAR_YEAR = re.compile(r"[+-]\d+-\d\d-\d\d")
"""How a date begins that texts do not order: before the year 0, or after 9999."""


class _Stats(msgspec.Struct, frozen=True):
    numRecords: int  # noqa: N815 (these are Delta's own names)
    minValues: dict[str, Any]  # noqa: N815
    maxValues: dict[str, Any]  # noqa: N815
    nullCount: dict[str, int]  # noqa: N815


def delta_stats(table: pa.Table) -> str:
    """The statistics of a file as JSON: bounds and nulls of its first columns.

    Bounds may be wider than the values, never narrower.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, column in list(zip(table.column_names, table.columns, strict=True))[:_COLUMNS]:
        if pt.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        smallest, largest = _bounds(column)
        if smallest is not None:
            low[name] = smallest
        if largest is not None:
            high[name] = largest
    return msgspec.json.encode(_Stats(table.num_rows, low, high, nulls)).decode()


def join_stats(texts: Sequence[str]) -> str:
    """The statistics of a file that has the rows of several, of theirs; '' if one has none."""
    if not all(texts):
        return ""
    parts = [msgspec.json.decode(text, type=_Stats) for text in texts]
    names = dict.fromkeys(name for part in parts for name in part.nullCount)
    nulls = {name: sum(part.nullCount.get(name, 0) for part in parts) for name in names}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for name in names:
        # A file without a value has no bounds, and needs none.
        filled = [part for part in parts if part.nullCount.get(name, 0) < part.numRecords]
        if _are_ordered([part.minValues.get(name) for part in filled]):
            low[name] = min(part.minValues[name] for part in filled)
        if _are_ordered([part.maxValues.get(name) for part in filled]):
            high[name] = max(part.maxValues[name] for part in filled)
    rows = sum(part.numRecords for part in parts)
    return msgspec.json.encode(_Stats(rows, low, high, nulls)).decode()


def _are_ordered(bounds: Sequence[Any]) -> bool:
    """Whether bounds are all known, and their order in JSON is that of the values."""
    known = bool(bounds) and None not in bounds
    return known and not any(isinstance(b, str) and _FAR_YEAR.match(b) for b in bounds)


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    kind = column.type
    if column.null_count == len(column) or pt.is_boolean(kind) or pt.is_binary(kind):
        return None, None
    # NaN is larger than every number to Spark, and no number to Arrow.
    if pt.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return None, None
    if pt.is_decimal(kind) and kind.precision > _EXACT_DIGITS:
        return None, None
    found = pc.min_max(column)
    low = found["min"]
    high = found["max"]
    if pt.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return _millis(low.value // 1000) + zone, _millis(-(-high.value // 1000)) + zone
    if pt.is_date(kind):
        return low.as_py().isoformat(), high.as_py().isoformat()
    if pt.is_decimal(kind):
        return float(low.as_py()), float(high.as_py())
    if pt.is_string(kind):
        text = high.as_py()
        return low.as_py()[:_CHARACTERS], text if len(text) <= _CHARACTERS else None
    return low.as_py(), high.as_py()


def _millis(value: int) -> str:
    return str(np.datetime64(value, "ms"))


def is_partitionable(kind: pa.DataType) -> bool:
    """Whether a column of this type can divide a table, or identify rows of it.

    Readers disagree on fractions: delta-rs takes the decimal -0.01 of a partition for '0.-1'.
    """
    return bool(
        pt.is_string(kind)
        or pt.is_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_date(kind)
        or pt.is_timestamp(kind)
    )


def partition_text(value: pa.Scalar) -> str | None:
    """The value of a partition column as a Delta log has it."""
    if not value.is_valid:
        return None
    if pt.is_boolean(value.type):
        return "true" if value.as_py() else "false"
    if pt.is_timestamp(value.type):
        text = str(np.datetime64(value.value, "us"))
        # Without a zone, readers take an instant for one of their own time zone.
        return f"{text}Z" if value.type.tz else text.replace("T", " ")
    return str(value.as_py())


class ChangeKind(Enum):
    """What a table would have to change."""

    ADD = auto()
    """A column that the stream has and the table does not."""
    WIDEN = auto()
    """A column of a type that holds fewer values than that of the stream."""
    NULLABLE = auto()
    """A column that must not be null in the table."""
    OTHER = auto()
    """A column of another type."""


@dataclass(frozen=True)
class ColumnChange:
    """A change that a table needs before the rows of a stream fit it."""

    kind: ChangeKind
    column: str
    here: pa.DataType
    there: pa.DataType | None = None

    def describe(self) -> str:
        if self.kind is ChangeKind.ADD:
            return f"the table has no column {self.column!r} ({self.here})"
        if self.kind is ChangeKind.NULLABLE:
            return f"column {self.column!r} must not be null in the table, but can be null here"
        return f"column {self.column!r} is {self.there} in the table, {self.here} here"

    def remedy(self, table: str) -> str:
        """The statement that makes the table fit, or what to do where there is none."""
        column = f"`{self.column}`"
        if self.kind is ChangeKind.ADD:
            return f"ALTER TABLE {table} ADD COLUMN {column} {sql_type(self.here)}"
        if self.kind is ChangeKind.WIDEN:
            return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {sql_type(self.here)}"
        if self.kind is ChangeKind.NULLABLE:
            return f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"
        wanted = sql_type(self.there) if self.there is not None else "its type"
        return f"convert {self.column!r} to {wanted} before the sink, or give it another name"


def column_changes(stream: pa.Schema, table: pa.Schema) -> Iterator[ColumnChange]:
    """Find what keeps rows of a stream from being written to a table; any order of columns is fine.

    Columns that only the table has are filled with null.
    """
    for field in stream:
        index = table.get_field_index(field.name)
        if index < 0:
            yield ColumnChange(ChangeKind.ADD, field.name, field.type)
            continue
        there = table.field(index).type
        if plain_type(there) != plain_type(field.type):
            wider = _holds_all(field.type, there)
            kind = ChangeKind.WIDEN if wider else ChangeKind.OTHER
            yield ColumnChange(kind, field.name, field.type, there)
    for field in table:
        if not field.nullable:
            yield ColumnChange(ChangeKind.NULLABLE, field.name, field.type, field.type)


def partition_differences(table: tuple[str, ...], stream: tuple[str, ...]) -> list[str]:
    """Say if a table is divided by other columns than a sink wants."""
    if table == stream:
        return []
    found = f"by {', '.join(table)}" if table else "not at all"
    return [f"the table is partitioned {found}; give partition_by={table!r}, not {stream!r}"]


def describe_problems(changes: list[ColumnChange], others: list[str], table: str) -> str:
    """Say what is different, and what to do about each column."""
    found = "; ".join([*(change.describe() for change in changes), *others])
    if not changes:
        return found
    return f"{found}. Required changes: {'; '.join(change.remedy(table) for change in changes)}"


def plain_type(kind: pa.DataType) -> str:
    """A type as text, without the names and widths that do not matter to Parquet."""
    if pt.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{plain_type(f.type)}' for f in kind)}>"
    if pt.is_map(kind):
        return f"map<{plain_type(kind.key_type)},{plain_type(kind.item_type)}>"
    if pt.is_list(kind) or pt.is_large_list(kind):
        return f"list<{plain_type(kind.value_type)}>"
    return str(kind).removeprefix("large_")


def _holds_all(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a type holds every value of another of its family."""
    if pt.is_signed_integer(wide) and pt.is_signed_integer(narrow):
        return bool(wide.bit_width > narrow.bit_width)
    if pt.is_floating(wide) and pt.is_floating(narrow):
        return bool(wide.bit_width > narrow.bit_width)
    if pt.is_decimal(wide) and pt.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision > narrow.precision)
    return False


_SQL = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
}


def sql_type(kind: pa.DataType) -> str:
    """A type as statements of Spark have it."""
    if pt.is_struct(kind):
        return f"STRUCT<{', '.join(f'`{f.name}`: {sql_type(f.type)}' for f in kind)}>"
    if pt.is_map(kind):
        return f"MAP<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pt.is_list(kind) or pt.is_large_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pt.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if pt.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _SQL.get(plain_type(kind), str(kind).upper())


TABLE_KINDS = ("delta", "iceberg")
"""Kinds of sinks that have `TableTransaction`s."""
_VERSION = 1
_NOTE = "table-note"
_NOTE_FORMAT = 1
_JOINED = f"-joined{SUFFIX}"
_FLUSH_BYTES = 128 * 1024 * 1024
_ROW_GROUP_ROWS = 1_000_000


class TableFile(msgspec.Struct, frozen=True):
    """One Parquet file, by its path below the table.

    The partition has the values of the table's partition columns, as text; stats is what readers
    can skip it by, in the words of the table format.
    """

    path: str
    length: int
    rows: int
    partition: dict[str, str | None] = {}
    stats: str = ""


class TableTransaction(msgspec.Struct, frozen=True):
    """The output of one task and epoch, and the paths of the notes about its files.

    If it is staged, the files are only to be merged into the table, and never part of it.
    """

    attempt: int
    epoch: int
    partition: int
    files: tuple[TableFile, ...]
    notes: tuple[str, ...]
    staged: bool = False

    @property
    def version(self) -> int:
        return version_of(self.attempt, self.epoch)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def identity(self, ctx: CommitterContext) -> SinkIdentity:
        """The sink that wrote it: `ctx` names it, unless it was renamed or its job was moved."""
        own = SinkIdentity.of(ctx)
        found = self.notes and own.found_in(PurePosixPath(self.notes[0]).parent.parent)
        return found or own

    def explain(self, place: str, ctx: CommitterContext) -> TransactionInfo:
        """Describe it as `Sink.explain` does; `place` is what people call the table."""
        names = FileNames(self.identity(ctx))
        task = names.task_of(self.notes[0]) if self.notes else None
        return TransactionInfo(
            what=f"{len(self.files)} files for {place}",
            id=task[0] if task else None,
            epoch=self.epoch,
            rows=self.rows,
            bytes=sum(file.length for file in self.files),
        )

    def encode(self, kind: str) -> bytes:
        return seal_handle(kind, _VERSION, msgspec.msgpack.encode(self))

    @classmethod
    def decode(cls, kind: str, data: bytes, ctx: CommitterContext) -> TableTransaction:
        """Read a transaction, and refuse one that names files which are not this sink's."""
        sink = sink_label(ctx.job, ctx.uid)
        transaction = read_handle(kind, _VERSION, data, cls, sink)
        identity = transaction.identity(ctx)
        names = FileNames(identity)
        for path in (file.path for file in transaction.files):
            if not names.is_file(path) or identity.job_id != ctx.job_id:
                raise SinkError(
                    f"{sink}: a prepared transaction names {path!r}, which is not a file of this "
                    "sink; nothing was touched"
                )
        for path in transaction.notes:
            if names.attempt_of(path) is None:
                raise SinkError(
                    f"{sink}: a prepared transaction names {path!r}, which is not a note of this "
                    "sink; nothing was touched"
                )
        return transaction


class FileNames:
    """What one sink of one job calls its files below a table; others' are never touched."""

    def __init__(self, identity: SinkIdentity) -> None:
        self.home = str(identity.home)
        digest = blake2b(identity.hashed, digest_size=6).hexdigest()
        self._prefix = f"part-{digest}"
        home = re.escape(self.home)
        self._file = re.compile(rf"(?:data/|{home}/\d+/)?{self._prefix}-[0-9a-f-]+\.parquet")
        self._note = re.compile(rf"({home}/(\d+)/(\d+)-[0-9a-f-]+)-\d+{re.escape(SUFFIX)}")
        self._join_note = re.compile(rf"{home}/(\d+)/\d+-[0-9a-f]+{re.escape(_JOINED)}")

    def new(self, ctx: WriterContext, number: int) -> str:
        """A name that nobody else has, not even another attempt of the same task."""
        unique = f"{ctx.task_attempt_id}-{secrets.token_hex(8)}-{number}"
        return f"{self._prefix}-{ctx.attempt}-{ctx.epoch}-{ctx.partition}-{unique}.parquet"

    def new_task(self, ctx: WriterContext) -> str:
        """What the names of an attempt of a task's notes begin with."""
        unique = f"{ctx.task_attempt_id}-{secrets.token_hex(8)}"
        return f"{self.home}/{ctx.attempt}/{ctx.epoch}-{ctx.partition}-{unique}"

    def note(self, task: str, number: int) -> str:
        return f"{task}-{number}{SUFFIX}"

    def new_joined(self, beside: str, attempt: int, epoch: int, number: int) -> str:
        """A name that nobody else has, for what the driver joins of `beside` and other files."""
        folder = beside.rpartition("/")[0]
        name = f"{self._prefix}-{attempt}-{epoch}-{secrets.token_hex(8)}-{number}.parquet"
        return f"{folder}/{name}" if folder else name

    def new_join_note(self, attempt: int, epoch: int) -> str:
        return f"{self.home}/{attempt}/{epoch}-{secrets.token_hex(8)}{_JOINED}"

    def attempt_of_join(self, path: str) -> int | None:
        """The attempt that wrote the note of a join; None if it is not one of this sink."""
        match = self._join_note.fullmatch(path)
        return int(match[1]) if match else None

    def is_file(self, path: str) -> bool:
        return self._file.fullmatch(path) is not None

    def attempt_of(self, path: str) -> int | None:
        """The attempt that wrote a note; None if it is not a note of this sink."""
        match = self._note.fullmatch(path)
        return int(match[2]) if match else None

    def task_of(self, path: str) -> tuple[str, int] | None:
        """What `new_task` returned for a note, and its epoch; None if it is not one."""
        match = self._note.fullmatch(path)
        return (match[1], int(match[3])) if match else None


class _Note(msgspec.Struct, frozen=True):
    files: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """What tasks have to know of a table.

    Attributes:
        folder: Where files go in its storage, '' or ending with a slash.
        schema: Of the files, without the columns that are `dropped`.
        partition_by: Columns by which rows are divided into files.
        key: Columns that must not be null.
        staged: Whether files are only to be merged into the table.
        stats: Returns what readers can skip a file by.
    """

    kind: str
    storage: Storage
    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    staged: bool = False
    stats: Callable[[pa.Table], str] = lambda table: ""


class TableWriter(GuardedWriter):
    """Gathers rows, and writes one file per partition of the table."""

    def __init__(self, layout: Layout, ctx: WriterContext) -> None:
        super().__init__(ctx)
        self._layout = layout
        self._names = FileNames(SinkIdentity.of(ctx))
        self._task = self._names.new_task(ctx)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._files: list[TableFile] = []
        self._notes: list[str] = []

    def _add(self, batch: Batch) -> None:
        arrow = batch.arrow
        for column in self._layout.key:
            if arrow.column(column).null_count:
                raise NullKeyError(
                    f"{self._name}: the key column {column!r} is null in an element, so it "
                    "cannot be found in the table again; filter such elements out before the sink"
                )
        self._held.append(arrow)
        self._held_bytes += arrow.nbytes
        if self._held_bytes >= _FLUSH_BYTES:
            self._flush()

    def prepare(self) -> bytes | None:
        require_open(self._closed, self._name)
        self._closed = True
        with self._failures():
            self._flush()
        if not self._files:
            return None
        ctx = self._ctx
        return TableTransaction(
            ctx.attempt,
            ctx.epoch,
            ctx.partition,
            tuple(self._files),
            tuple(self._notes),
            self._layout.staged,
        ).encode(self._layout.kind)

    def abort(self) -> None:
        self._closed = True
        self._held = []
        with suppress(StorageError):  # what stays has a note
            for note in self._notes:
                remove_noted(self._layout.storage, self._names, note)

    def _flush(self) -> None:
        """Write what is held: a note first, then the files it names."""
        if not self._held:
            return
        layout = self._layout
        require_shared_target(layout.storage, layout.storage.uri, self._ctx)
        table = pa.Table.from_batches(self._held)
        self._held = []
        self._held_bytes = 0
        encoded = [
            self._encoded(values, part, number)
            for number, (values, part) in enumerate(split(table, layout.partition_by))
        ]
        note = self._names.note(self._task, len(self._notes))
        self._notes.append(note)
        names = _Note(tuple(file.path for file, _ in encoded))
        layout.storage.put(note, encode_document(_NOTE, _NOTE_FORMAT, names))
        for file, data in encoded:
            layout.storage.put(file.path, data)
            self._files.append(file)

    def _encoded(self, values: dict[str, Any], part: pa.Table, number: int) -> tuple[Any, bytes]:
        layout = self._layout
        ctx = self._ctx
        part = part.drop_columns(list(layout.dropped)).cast(layout.schema)
        target = pa.BufferOutputStream()
        pq.write_table(part, target, row_group_size=_ROW_GROUP_ROWS)
        folder = f"{self._names.home}/{ctx.attempt}/" if layout.staged else layout.folder
        data = target.getvalue().to_pybytes()
        text = {column: partition_text(value) for column, value in values.items()}
        path = folder + self._names.new(ctx, len(self._files) + number)
        return TableFile(path, len(data), part.num_rows, text, layout.stats(part)), data

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Remove the files on any failure; errors of the storage and of Arrow name the sink."""
        try:
            with aborted_on_failure(self):
                yield
        except StorageError as error:
            raise SinkError(
                f"{self._name}: cannot write below {self._layout.storage.uri}: {error}"
            ) from error
        except pa.ArrowException as error:
            raise SinkError(
                f"{self._name}: cannot write {self._ctx.type} as Parquet: {error}"
            ) from error


def remove_noted(storage: Storage, names: FileNames, note: str) -> None:
    """Remove the files that a note names, then the note."""
    data = storage.get(note)
    name = f"{storage.uri}/{note}"
    for path in decode_document(_NOTE, _NOTE_FORMAT, data, name, _Note).files:
        if names.is_file(path):
            storage.delete(path)
    storage.delete(note)


def split(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Divide rows by the values of columns, which come as Arrow scalars; the order is kept."""
    if not columns or not table.num_rows:
        yield {}, table
        return
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(table.column(column).combine_chunks(), "encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes, return_inverse=True)[1]  # no product of columns may overflow
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    for rows in np.split(order, bounds):
        part = table.take(pa.array(rows))
        yield {column: part.column(column)[0] for column in columns}, part
