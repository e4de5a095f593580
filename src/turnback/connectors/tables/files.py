"""The Parquet files that tasks write below a table, and the transactions that name them.

Nobody sees these files until the table refers to them. Before a task writes files it leaves a note
with their names in a hidden directory of the table. The note goes when the files are about to be
published; so whoever finds one later knows files that nothing refers to, without a listing of the
whole table.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turnback.connectors.tables.stats import partition_text
from turnback.core.errors import NullKeyError, SinkError, StorageError
from turnback.sinks.base import (
    CommitterContext,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    aborted_on_failure,
    name_sink,
    open_handle,
    require_open,
    seal_handle,
    version_of,
)
from turnback.sinks.identity import SinkIdentity
from turnback.sinks.ownership import SUFFIX
from turnback.storage.base import Storage
from turnback.storage.envelope import seal, unseal
from turnback.values.columns import Batch

TABLE_KINDS = ("delta", "iceberg")
"""Kinds of sinks that have `TableTransaction`s."""
_VERSION = 1
_NOTE = "table-note"
_NOTE_FORMAT = 1
_JOINED = f"-joined{SUFFIX}"
_FLUSH_BYTES = 128 * 1024 * 1024
_ROW_GROUP_ROWS = 1_000_000


class TableFile(msgspec.Struct, frozen=True):
    """One Parquet file.

    Attributes:
        path: Where it is, relative to the table.
        length: Its size in bytes.
        partition: The values of the table's partition columns, as text.
        stats: What readers can skip it by, in the words of the table format.
    """

    path: str
    length: int
    rows: int
    partition: dict[str, str | None] = {}
    stats: str = ""


class TableTransaction(msgspec.Struct, frozen=True):
    """The output of one task and epoch.

    Attributes:
        partition: The task.
        notes: Where the notes about its files are, relative to the table.
        staged: Whether the files are only to be merged into the table, and never part of it.
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
        sink = name_sink(ctx.job, ctx.uid)
        body = open_handle(kind, _VERSION, data, sink)
        try:
            transaction = msgspec.msgpack.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise SinkError(f"{sink}: a prepared transaction cannot be read: {error}") from error
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


def write_note(storage: Storage, path: str, files: tuple[str, ...]) -> None:
    """Record the names of files before they are written."""
    storage.put(path, seal(_NOTE, _NOTE_FORMAT, msgspec.json.encode(_Note(files))))


def read_note(storage: Storage, path: str) -> tuple[str, ...]:
    """The files that a note names; raises `StorageError` if it cannot be read."""
    _, body = unseal(_NOTE, _NOTE_FORMAT, storage.get(path), f"{storage.uri}/{path}")
    return msgspec.json.decode(body, type=_Note).files


@dataclass(frozen=True)
class Layout:
    """What tasks have to know of a table.

    Attributes:
        kind: Of the sink, as its transactions have it.
        storage: The table's directory.
        folder: Where files go in it, '' or ending with a slash.
        schema: Of the files, without `dropped`.
        partition_by: Columns by which rows are divided into files.
        dropped: Columns that files do not have.
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


class TableWriter(SinkWriter):
    """Gathers rows, and writes one file per partition of the table."""

    def __init__(self, layout: Layout, ctx: WriterContext) -> None:
        self._layout = layout
        self._ctx = ctx
        self._name = name_sink(ctx.job, ctx.uid)
        self._names = FileNames(SinkIdentity.of(ctx))
        self._task = self._names.new_task(ctx)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._files: list[TableFile] = []
        self._notes: list[str] = []
        self._closed = False

    def write(self, batch: Batch) -> None:
        require_open(self._closed, self._name)
        if not len(batch):
            return
        with self._failures():
            arrow = batch.arrow
            for column in self._layout.key:
                if arrow.column(column).null_count:
                    raise NullKeyError(
                        f"{self._name}: the key column {column!r} is null in an element, so it "
                        "cannot be found in the table again; filter such elements out"
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
        table = pa.Table.from_batches(self._held)
        self._held = []
        self._held_bytes = 0
        encoded = [
            self._encoded(values, part, number)
            for number, (values, part) in enumerate(split(table, layout.partition_by))
        ]
        note = self._names.note(self._task, len(self._notes))
        self._notes.append(note)
        write_note(layout.storage, note, tuple(file.path for file, _ in encoded))
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
                f"{self._name}: {self._ctx.type} cannot be written as Parquet: {error}"
            ) from error


def remove_noted(storage: Storage, names: FileNames, note: str) -> None:
    """Remove the files that a note names, then the note."""
    for path in read_note(storage, note):
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
