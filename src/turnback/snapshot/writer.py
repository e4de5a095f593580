"""Writes the files of savepoints: rows that users bring, copies, exports of checkpoints.

What is written goes to the savepoint `target`; `writer` is who writes it, see `file_name`. Files
are durable when a task returns.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from turnback.checkpoint.manifest import LogFile, Manifest, OperatorInfo, SourcePosition
from turnback.core.ids import check_state_name, check_uid
from turnback.errors import ConfigurationError, StateError
from turnback.snapshot.metadata import FILES, StateId, StatePart, file_name
from turnback.snapshot.parts import PartsWriter, state_directory, write_parts
from turnback.snapshot.snapshot import (
    Batches,
    StoredRows,
    check_operator,
    check_state,
    source_uid,
    spans_of,
)
from turnback.snapshot.table import ROWS, StateTable
from turnback.state.delta import open_delta
from turnback.state.expiry import Limits, export_limits
from turnback.state.files import Span, StateFile, StorageRef, clip_files, read_state, storage_of
from turnback.state.merging import live_rows
from turnback.state.schema import LIST_KINDS, KeySchema, StateSchema
from turnback.state.subtasks import without_copies
from turnback.storage.envelope import check

_NOT_IN_NAMES = re.compile(r"\W+", re.ASCII)


def view_names(ids: Iterable[StateId]) -> dict[StateId, str]:
    """Give every state a name that SQL takes without quotes, made of its uid and its own name.

    Names that would be the same, by SQL's rules, get a number: ``count_total``, ``count_total_2``.
    The result depends on the ids only, not on their order.
    """
    names: dict[StateId, str] = {}
    taken: set[str] = set()
    for id in sorted(ids):
        plain = _NOT_IN_NAMES.sub("_", "_".join(id))
        if not plain[0].isalpha():
            plain = f"s{plain}" if plain[0] == "_" else f"s_{plain}"
        name = plain
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        names[id] = name
    return names


S = TypeVar("S")
P = TypeVar("P")


class SavepointDraft(Generic[S, P]):
    """A savepoint that is being put together: what goes into it under which name.

    It never looks into what it holds: `S` stands for the rows of a state, `P` for the position of
    a source.
    """

    def __init__(
        self,
        name: str,
        states: Iterable[tuple[StateSchema, S]] = (),
        operators: Iterable[OperatorInfo] = (),
        sources: Mapping[str, P] | None = None,
        watermarks: Mapping[str, int] | None = None,
    ) -> None:
        self._name = name
        self.states = {schema.id: (schema, content) for schema, content in states}
        self.operators = {info.uid: info for info in operators}
        self.sources = dict(sources or {})
        self.watermarks = dict(watermarks or {})

    def find(self, uid: str, state: str) -> tuple[StateSchema, S]:
        return self.states[check_state(self._name, self.states, uid, state)]

    def key_of(self, uid: str) -> KeySchema | None:
        """How the stream of an operator is keyed, taken from its states; None if it has none."""
        return next((s.key for s, _ in self.states.values() if s.uid == uid), None)

    def put(self, schema: StateSchema, content: S) -> None:
        """Add a state or replace it; all states of an operator have the same keys."""
        for other, _ in self.states.values():
            if other.uid == schema.uid and other.id != schema.id and other.key != schema.key:
                raise StateError(
                    f"state {schema.name!r} of operator {schema.uid!r} would have the keys "
                    f"{schema.key}, but its state {other.name!r} has {other.key}: all states of "
                    "an operator have the keys of its stream. Give both the same keys, or "
                    f"remove {other.name!r} first"
                )
        self.states[schema.id] = (schema, content)

    def remove_state(self, uid: str, state: str) -> None:
        del self.states[check_state(self._name, self.states, uid, state)]

    def remove_operator(self, uid: str) -> None:
        if uid not in self.operators or uid in self.source_uids():
            check_operator(self._name, self.states, uid)
        self.states = {id: state for id, state in self.states.items() if id[0] != uid}
        gone = self._watermark_keys(uid)
        self.watermarks = {key: t for key, t in self.watermarks.items() if key not in gone}
        if uid not in self.source_uids():
            self.operators.pop(uid, None)

    def rename_state(self, uid: str, old: str, new: str) -> None:
        check_state(self._name, self.states, uid, old)
        check_state_name(new)
        if old != new and (uid, new) in self.states:
            raise StateError(f"operator {uid!r} already has a state {new!r}; remove it first")
        self._move({(uid, old): (uid, new)})

    def change_uid(self, old: str, new: str) -> None:
        """Give an operator or a source another uid; all it has goes along."""
        check_uid(new)
        known = self.uids()
        if old not in known:
            check_operator(self._name, [*self.states, *((uid, "") for uid in known)], old)
        if new != old and new in known:
            raise StateError(
                f"{self._name} already has an operator {new!r}; remove it or give it another uid "
                "first"
            )
        uids = set(self.operators)
        self._move({id: (new, id[1]) for id in self.states if id[0] == old})
        self.sources = {
            new + leaf.removeprefix(old) if source_uid(leaf, uids) == old else leaf: position
            for leaf, position in self.sources.items()
        }
        renamed = {old: new}
        self.operators = {
            renamed.get(uid, uid): msgspec.structs.replace(info, uid=renamed.get(uid, uid))
            for uid, info in self.operators.items()
        }
        moved = {key: new + key.removeprefix(old) for key in self._watermark_keys(old, uids)}
        self.watermarks = {moved.get(key, key): t for key, t in self.watermarks.items()}

    def add_sources(
        self, positions: Mapping[str, P], operators: Iterable[OperatorInfo] = ()
    ) -> None:
        """Let sources go on from these positions, in place of those they had.

        The operators are those of the program that the positions are from.
        """
        known = {info.uid: info for info in operators}
        for uid in sorted({source_uid(leaf, known) for leaf in positions}):
            if uid in self.source_uids():
                self.drop_sources([uid])
            if uid in known:
                self.operators.setdefault(uid, known[uid])
        self.sources |= positions

    def drop_sources(self, uids: Iterable[str]) -> None:
        known = self.source_uids()
        dropped = set(uids)
        for uid in sorted(dropped - known):
            raise ConfigurationError(
                f"{self._name} has no position of source {uid!r}; available: "
                f"{', '.join(map(repr, sorted(known))) or 'none'}"
            )
        operators = set(self.operators)
        self.sources = {
            leaf: p
            for leaf, p in self.sources.items()
            if source_uid(leaf, operators) not in dropped
        }

    def source_uids(self) -> set[str]:
        return {source_uid(leaf, set(self.operators)) for leaf in self.sources}

    def uids(self) -> set[str]:
        return {id[0] for id in self.states} | set(self.operators) | self.source_uids()

    def _watermark_keys(self, uid: str, uids: Collection[str] | None = None) -> set[str]:
        """Under what its watermark is, and those of partitions, ``uid#partition``."""
        others = set(self.operators if uids is None else uids) - {uid}
        keys = self.watermarks.keys() - others
        return {key for key in keys if key == uid or key.startswith(f"{uid}#")}

    def _move(self, moves: Mapping[StateId, StateId]) -> None:
        moved: dict[StateId, tuple[StateSchema, S]] = {}
        for id, (schema, content) in self.states.items():
            uid, name = moves.get(id, id)
            moved[uid, name] = (msgspec.structs.replace(schema, uid=uid, name=name), content)
        self.states = moved


PARTS = pa.schema([pa.field("part", pa.binary())])


@dataclass(frozen=True)
class RowEncoder:
    """Turns typed columns into rows of bytes; refuses what cannot be state.

    If they are `grouped`, the column ``key_group`` is right already; else it is computed here. The
    savepoint's last epoch is for rows that come from a user; None for rows that were state before.
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
                f"{self.state.title}: a value is null; to leave a key without a value, omit its row"
            )
        if self.state.kind in LIST_KINDS and typed.num_rows:
            greatest = pc.max(typed["position"]).as_py()
            if greatest is not None and greatest >> 32 > last_epoch:
                raise StateError(
                    f"{self.state.title}: the position {greatest} belongs to epoch "
                    f"{greatest >> 32}, which is after the last epoch of the savepoint, "
                    f"{last_epoch}: elements added later would not be last. Number the elements "
                    "of each key 0, 1, 2 and so on"
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
            f"{self.state.title}: there are two rows for {key}; keep one of them, for example "
            f"with dropDuplicates or an aggregation"
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
    """Writes the state of some key groups as Parquet, from the files that `clip_files` gives."""

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
