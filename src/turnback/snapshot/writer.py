"""Writes the files of savepoints: rows that users bring, copies, exports of checkpoints.

What is written goes to the savepoint `target`; `writer` is who writes it, see `file_name`. Files
are durable when a task returns.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from turnback.checkpoint.manifest import LogFile, Manifest, SourcePosition
from turnback.core.errors import StateError
from turnback.snapshot.metadata import FILES, StateId, StatePart, file_name
from turnback.snapshot.parts import PartsWriter, state_directory, write_parts
from turnback.snapshot.snapshot import Batches, StoredRows, spans_of
from turnback.snapshot.table import ROWS, StateTable
from turnback.state.delta import open_delta
from turnback.state.expiring import Limits, export_limits
from turnback.state.files import Span, StateFile, StorageRef, clip_files, read_state, storage_of
from turnback.state.merging import live_rows
from turnback.state.schema import LIST_KINDS, StateSchema
from turnback.state.subtasks import without_copies
from turnback.storage.envelope import check

PARTS = pa.schema([pa.field("part", pa.binary())])


@dataclass(frozen=True)
class RowEncoder:
    """Turns typed columns into rows of bytes; refuses what cannot be state.

    Attributes:
        grouped: The column ``key_group`` is right already; else it is computed here.
        last_epoch: The savepoint's, for rows that come from a user; None for rows that were
            state before.
    """

    state: StateSchema
    max_parallelism: int
    grouped: bool
    last_epoch: int | None = None

    @property
    def schema(self) -> pa.Schema:
        return ROWS

    def __call__(self, batches: Batches) -> Batches:
        codec = StateTable(self.state)
        group = None if self.grouped else self._group()
        for batch in batches:
            columns = [batch.column(f.name).cast(f.type) for f in codec.arrow_schema]
            typed = pa.Table.from_arrays(columns, names=codec.arrow_schema.names)
            if self.last_epoch is not None:
                self._check(typed, self.last_epoch)
            rows = codec.to_rows(typed)
            if group is not None:
                groups = pa.array(map(group, rows["key"].to_pylist()), pa.int32())
                rows = rows.set_column(0, ROWS.field(0), groups)
            yield from rows.to_batches()

    def _group(self) -> Callable[[bytes], int]:
        codec = self.state.key.codec()
        maximum = self.max_parallelism
        return lambda data: codec.group(codec.decode(data), maximum)

    def _check(self, typed: pa.Table, last_epoch: int) -> None:
        if self.state.sub is None and typed["value"].null_count:
            raise StateError(
                f"{_title(self.state)}: a value is null; leave the row out, for a key without a "
                f"value is one that is not there"
            )
        if self.state.kind in LIST_KINDS and typed.num_rows:
            greatest = pc.max(typed["position"]).as_py()
            if greatest is not None and greatest >> 32 > last_epoch:
                raise StateError(
                    f"{_title(self.state)}: the position {greatest} is of epoch {greatest >> 32}, "
                    f"after the last one of the savepoint, {last_epoch}: elements that are added "
                    f"later would not come last. Number the elements of each key 0, 1, 2 and so on"
                )


@dataclass(frozen=True)
class StateWriter:
    """Writes rows, which come sorted, as files of a savepoint; gives a record of each file."""

    state: StateSchema
    target: StorageRef
    writer: str = ""

    @property
    def schema(self) -> pa.Schema:
        return PARTS

    def __call__(self, batches: Batches) -> Batches:
        storage = storage_of(self.target)
        parts = write_parts(storage, self.state, self._typed(batches), self.writer)
        records = [msgspec.json.encode(part) for part in parts]
        yield pa.record_batch([pa.array(records, pa.binary())], schema=PARTS)

    def _typed(self, batches: Batches) -> Iterator[pa.Table]:
        codec = StateTable(self.state)
        last: pa.Table | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            columns = [batch.column(f.name).cast(f.type) for f in ROWS]
            rows = pa.Table.from_arrays(columns, schema=ROWS)
            self._check_unique(codec, rows if last is None else pa.concat_tables([last, rows]))
            last = rows.slice(rows.num_rows - 1)
            yield codec.to_typed(rows)

    def _check_unique(self, codec: StateTable, rows: pa.Table) -> None:
        """Equal rows are neighbours, because rows are sorted."""
        size = rows.num_rows - 1
        columns = [rows["key"]] if rows["sub"].null_count else [rows["key"], rows["sub"]]
        same = [pc.equal(column.slice(1), column.slice(0, size)) for column in columns]
        index = pc.index(same[0] if len(same) == 1 else pc.and_(*same), True).as_py()
        if index < 0:
            return
        (row,) = codec.to_typed(rows.slice(index, 1)).to_pylist()
        key = f"the key {row['key']!r:.80}"
        names = codec.arrow_schema.names
        for name in names[2 : names.index("value")]:
            key = f"the {name.replace('_', ' ')} {row[name]!r:.80} of {key}"
        raise StateError(
            f"{_title(self.state)}: there are two rows for {key}; keep one of them, for example "
            f"with dropDuplicates or by aggregating"
        )


@dataclass(frozen=True)
class PartCopier:
    """Copies one file of a state from another savepoint, where it may have another name."""

    state: StateSchema
    part: StatePart
    source: StorageRef
    target: StorageRef
    writer: str = ""

    def run(self) -> tuple[StatePart, ...]:
        name = file_name(self.writer, f"{uuid.uuid4().hex}.parquet")
        path = f"{state_directory(self.state)}/{name}"
        _copy(self.part, self.source, self.target, path)
        return (msgspec.structs.replace(self.part, path=path),)


@dataclass(frozen=True)
class SpanCopier:
    """Writes some key groups of a state whose files cannot be copied, as they mix states."""

    state: StateSchema
    stored: StoredRows
    span: Span
    target: StorageRef
    writer: str = ""

    def run(self) -> tuple[StatePart, ...]:
        rows = self.stored.typed(*self.span)
        return write_parts(storage_of(self.target), self.state, rows, self.writer)


def _title(state: StateSchema) -> str:
    return f"state {state.name!r} of operator {state.uid!r}"


def copy_source_log(
    position: SourcePosition,
    source: StorageRef,
    target: StorageRef,
    path_of: Callable[[LogFile], str],
) -> SourcePosition:
    """Copy the files that belong to the position of a source."""
    log = tuple(msgspec.structs.replace(file, path=path_of(file)) for file in position.log)
    for file, copy in zip(position.log, log, strict=True):
        _copy(file, source, target, copy.path)
    return msgspec.structs.replace(position, log=log)


def _copy(
    file: StatePart | StateFile | LogFile, source: StorageRef, target: StorageRef, path: str
) -> None:
    if isinstance(file, StateFile):
        data = read_state(source, file)
    else:
        data = storage_of(source).get(file.path)
    check(data, file.length, file.digest, f"{source.uri}/{file.path}")
    storage_of(target).put(path, data)


COPY_BYTES = 64 << 20
SPAN_ROWS = 1_000_000
SPAN_BYTES = 32 << 20
"""A task folds about as much: little enough to free its slot for an epoch soon, and enough that the
savepoint does not have to wait for many slots, which takes longer than the work."""


@dataclass(frozen=True)
class _FilesTask:
    files: tuple[StateFile, ...]
    source: StorageRef
    target: StorageRef
    writer: str = ""


@dataclass(frozen=True)
class ExportTask(_FilesTask):
    """Writes the state of some key groups as Parquet, from the files that `clip_files` gives.

    Attributes:
        limits: What has expired, and is left out.
    """

    limits: Limits = field(default_factory=dict)

    def run(self) -> list[tuple[StateSchema, tuple[StatePart, ...]]]:
        storage = storage_of(self.target)
        writers: dict[StateId, tuple[StateTable, PartsWriter]] = {}
        open = partial(open_delta, read=partial(read_state, self.source))
        for schema, rows in live_rows(self.files, open, self.limits):
            rows = without_copies(schema, rows)
            if not len(rows):
                continue
            if schema.id not in writers:
                parts = PartsWriter(storage, schema, writer=self.writer)
                writers[schema.id] = StateTable(schema), parts
            codec, writer = writers[schema.id]
            writer.add(codec.to_typed(rows))
        return [(codec.schema, writer.finish()) for codec, writer in writers.values()]


class CopyTask(_FilesTask):
    """Copies state files into a savepoint as they are."""

    def run(self) -> list[StateFile]:
        return [self._copy(file) for file in self.files]

    def _copy(self, file: StateFile) -> StateFile:
        path = f"{FILES}/{file_name(self.writer, posixpath.basename(file.path))}"
        _copy(file, self.source, self.target, path)
        return msgspec.structs.replace(file, path=path, inline=None)


def export_tasks(
    manifest: Manifest, source: StorageRef, target: StorageRef, writer: str = ""
) -> list[ExportTask]:
    """Cut the work into tasks of bounded size."""
    uids = {uid for file in manifest.state for uid in file.operators}
    limits = export_limits(manifest.schemas, manifest.created_ms)
    tasks = []
    for span in spans_of(manifest.max_parallelism, manifest.state, SPAN_ROWS, SPAN_BYTES):
        files = clip_files(manifest.state, dict.fromkeys(uids, span))
        if files:
            tasks.append(ExportTask(files, source, target, writer, limits))
    return tasks


def copy_tasks(
    manifest: Manifest, source: StorageRef, target: StorageRef, writer: str = ""
) -> list[CopyTask]:
    """Deal the files out to tasks of bounded size; most files are small."""
    tasks: list[CopyTask] = []
    batch: list[StateFile] = []
    for file in manifest.state:
        batch.append(file)
        if sum(f.length for f in batch) >= COPY_BYTES:
            tasks.append(CopyTask(tuple(batch), source, target, writer))
            batch = []
    return [*tasks, CopyTask(tuple(batch), source, target, writer)] if batch else tasks
