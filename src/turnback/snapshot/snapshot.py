"""Checkpoints and savepoints, whoever took them, as one thing to start from, read and verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from turnback.checkpoint.log import slot_path
from turnback.checkpoint.manifest import Manifest, OperatorInfo, SourcePosition
from turnback.errors import CorruptFileError, NotFoundError, StateError, UnsupportedTypeError
from turnback.snapshot.metadata import (
    FileEntry,
    Origin,
    SavedState,
    SavepointMetadata,
    StateId,
    StatePart,
)
from turnback.state.files import Span, StateFile, StorageRef, clip_files, read_state, storage_of
from turnback.state.schema import StateSchema
from turnback.storage.base import Storage
from turnback.storage.envelope import check
from turnback.values.typeinfo import type_from_descriptor

if TYPE_CHECKING:  # Arrow is loaded when the first state is read
    import pyarrow as pa

OnProgress = Callable[[int, int], None]
"""Called after every file with the bytes read so far, and all bytes."""


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint or a savepoint, and the storage where it is: the job's directory or its own.

    `promised` is the output it holds that is not known to be committed, by sink; only of the job's
    own checkpoints, because other jobs settle theirs themselves.
    """

    document: Manifest | SavepointMetadata = field(repr=False)
    storage: StorageRef
    promised: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict, repr=False)

    @property
    def manifest(self) -> Manifest | None:
        return self.document if isinstance(self.document, Manifest) else None

    @property
    def metadata(self) -> SavepointMetadata | None:
        return self.document if isinstance(self.document, SavepointMetadata) else None

    @property
    def name(self) -> str:
        """What people call it: ``chk-7``, or the directory of a savepoint."""
        return self.document.name if isinstance(self.document, Manifest) else self.storage.uri

    @property
    def job(self) -> str:
        return self.document.job

    @property
    def job_id(self) -> str:
        return self.document.job_id

    @property
    def epoch(self) -> int:
        return self.document.epoch

    @property
    def created_ms(self) -> int:
        """When it was taken, by the clock of the driver that did."""
        return self.document.created_ms

    @property
    def max_parallelism(self) -> int:
        return self.document.max_parallelism

    @property
    def sources(self) -> Mapping[str, SourcePosition]:
        """Where each source goes on; one that reads several inputs is there as ``uid#0``..."""
        return self.document.sources

    @property
    def operators(self) -> tuple[OperatorInfo, ...]:
        return self.document.operators

    @property
    def states(self) -> tuple[SavedState, ...]:
        """Its states; how large those of a checkpoint are is not known."""
        if isinstance(self.document, Manifest):
            return tuple(SavedState(schema) for schema in self.document.schemas)
        return self.document.states

    @property
    def state_ids(self) -> list[StateId]:
        return [state.id for state in self.states]

    @property
    def origin(self) -> Origin:
        """Where it is, for the lineage of jobs started from it."""
        uri = self.storage.uri
        if isinstance(self.document, Manifest):
            number = self.document.number
            return Origin(f"{uri}/{slot_path(number)}", job=self.job, checkpoint=number)
        return Origin(uri, self.document.id, self.job, self.document.checkpoint)

    @property
    def drained(self) -> bool:
        """Whether event time has come to its end in it."""
        if isinstance(self.document, Manifest):
            return self.document.event_time_has_ended
        return self.document.drained

    @property
    def streams(self) -> dict[str, int]:
        uids = {op.uid for op in self.operators}
        return dict(Counter(source_uid(leaf, uids) for leaf in self.sources))

    @property
    def promising_sinks(self) -> list[str]:
        return [uid for uid, transactions in self.promised.items() if transactions]

    def uids(self) -> frozenset[str]:
        operators = {op.uid for op in self.operators}
        return frozenset(operators.union(self.streams, (uid for uid, _ in self.state_ids)))

    def describe(self, uid: str) -> str:
        """An operator by its uid and, where known, its name."""
        names = [op.name for op in self.operators if op.uid == uid]
        return f"operator {uid!r} ({names[0]})" if names else f"operator {uid!r}"

    def own_checkpoint(self, storage: StorageRef, job_id: str) -> Manifest | None:
        """It as a checkpoint of the job with this directory and identity, if it is one.

        The directory decides: a copy of a checkpoint, or a forged one, has the same identity.
        """
        return self.checkpoint_in(storage) if self.job_id == job_id else None

    def checkpoint_in(self, storage: StorageRef) -> Manifest | None:
        """It as a checkpoint in this job directory, also from before the job was started afresh."""
        return self.manifest if self.storage.uri == storage.uri else None

    def state(self, uid: str, name: str) -> SavedState:
        """One of its states; raises as `check_state` does."""
        id = check_state(self.name, self.state_ids, uid, name)
        return next(state for state in self.states if state.id == id)

    def rows(self, state: SavedState) -> StoredRows:
        if isinstance(self.document, Manifest):
            return StoredRows(state.schema, self.storage, files=self.document.state)
        return StoredRows(state.schema, self.storage, state.files, self.document.native)

    def files(self) -> tuple[FileEntry, ...]:
        """Its files, each once, but for the one with the document itself."""
        if isinstance(self.document, SavepointMetadata):
            return self.document.entries()
        entries = [FileEntry.of(file) for file in self.document.state]
        entries += [FileEntry.of(file) for source in self.sources.values() for file in source.log]
        return tuple(dict.fromkeys(entries))


def source_uid(leaf: str, uids: Collection[str]) -> str:
    """The uid of a source: one that reads several inputs has a position for each, ``uid#0``."""
    uid, _, number = leaf.rpartition("#")
    return uid if leaf not in uids and uid and number.isdecimal() else leaf


def check_state(snapshot: str, ids: Collection[StateId], uid: str, state: str) -> StateId:
    """Return the id of a state; raise `StateError`, with the nearest name, if there is none."""
    check_operator(snapshot, ids, uid)
    if (uid, state) not in ids:
        names = [name for owner, name in ids if owner == uid]
        raise StateError(
            f"operator {uid!r} in {snapshot} has no state {state!r}; {_hint(state, names)}"
        )
    return uid, state


def check_operator(snapshot: str, ids: Iterable[StateId], uid: str) -> None:
    """Raise `StateError`, with the nearest name, if no operator of this uid has state."""
    uids = {owner for owner, _ in ids}
    if uid not in uids:
        raise StateError(f"{snapshot} has no state of an operator {uid!r}; {_hint(uid, uids)}")


def _hint(given: str, names: Collection[str]) -> str:
    near = get_close_matches(str(given), names, 1, 0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"available: {', '.join(map(repr, sorted(names))) or 'none'}"


# -- for people


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a snapshot, without its rows.

    Attributes:
        kind: ``value``, ``list``, ``map``, ``reducing`` or ``aggregating``; of operator state
            ``operator list``, ``union list`` or ``broadcast``, whose keys are subtasks.
        key_type: Type of the keys; several, separated by commas, for keys of several columns.
        value_type: Type of values, list elements or accumulators.
        ttl_ms: How long they live after their last update; None for ever.
        rows: Values, list elements or map entries; None where nobody has counted them, as in
            checkpoints.
        bytes: Size of its files; None where files hold several states.
    """

    uid: str
    name: str
    kind: str
    key_type: str
    map_key_type: str | None
    value_type: str
    ttl_ms: int | None = None
    rows: int | None
    bytes: int | None


def state_rows(snapshot: Snapshot) -> list[StateRow]:
    """The states of a snapshot, by uid and name."""
    return [
        StateRow(
            uid=state.schema.uid,
            name=state.schema.name,
            kind=state.schema.kind,
            key_type=", ".join(map(_type_name, state.schema.key.types)),
            map_key_type=None if state.schema.sub is None else _type_name(state.schema.sub),
            value_type=_type_name(state.schema.value),
            ttl_ms=None if state.schema.ttl is None else state.schema.ttl.ms,
            rows=state.rows,
            bytes=state.size or None,
        )
        for state in sorted(snapshot.states, key=lambda state: state.id)
    ]


def _type_name(descriptor: object) -> str:
    """A type as Spark writes it; of a newer version's types, what is stored of them."""
    if descriptor == "pickled":
        return "pickled object"
    try:
        return str(type_from_descriptor(descriptor))
    except UnsupportedTypeError:
        return str(descriptor)


# -- verifying


class FileProblem(msgspec.Struct, frozen=True):
    """What is wrong with a file of a snapshot; its path is relative to the snapshot's storage."""

    path: str
    reason: str


def verify_snapshot(snapshot: Snapshot, on_progress: OnProgress | None = None) -> list[FileProblem]:
    """Read every file of a snapshot and compare it with what was recorded; return what is wrong."""
    return verify_files(storage_of(snapshot.storage), snapshot.files(), on_progress)


def verify_files(
    storage: Storage, files: Collection[FileEntry], on_progress: OnProgress | None = None
) -> list[FileProblem]:
    """Compare files with what was recorded of them; see `verify_snapshot`."""
    total = sum(file.length for file in files)
    done = 0
    problems = []
    for path, length, digest, inline in files:
        name = f"{storage.uri}/{path}"
        try:
            check(storage.get(path) if inline is None else inline, length, digest, name)
        except NotFoundError:
            problems.append(FileProblem(path, f"{name} is missing"))
        except CorruptFileError as error:
            problems.append(FileProblem(path, str(error)))
        done += length
        if on_progress is not None:
            on_progress(done, total)
    return problems


# -- the rows of one state, read in tasks that share the key groups

Batches = Iterator["pa.RecordBatch"]

READS = 16
"""A file is read by about this many tasks at most: each has to read all of its bytes."""

SPAN_ROWS = 500_000
SPAN_BYTES = 32 << 20
"""A task reads about as much. Less would mean that more tasks open the same file."""


def spans(groups: int, count: int) -> list[Span]:
    """Cut all key groups into about so many ranges of about the same size."""
    count = max(1, min(count, groups))
    bounds = [groups * i // count for i in range(count + 1)]
    return [(a, b - 1) for a, b in pairwise(bounds)]


def spans_of(
    groups: int, files: Sequence[StateFile | StatePart], rows: int, size: int
) -> list[Span]:
    """Cut all key groups into ranges that hold about so many rows and bytes of some files."""
    widest = max((file.last_group - file.first_group + 1 for file in files), default=1)
    count = max(
        -(-sum(file.rows for file in files) // rows),
        -(-sum(file.length for file in files) // size),
    )
    return spans(groups, min(count, READS * groups // widest))


@dataclass(frozen=True)
class StoredRows:
    """One state of a snapshot, to be read in tasks.

    The parts are its Parquet files, in a savepoint; in a checkpoint the state files have its rows
    among others.
    """

    schema: StateSchema
    storage: StorageRef
    parts: tuple[StatePart, ...] = ()
    files: tuple[StateFile, ...] = ()

    def held_by(self) -> list[StateFile | StatePart]:
        return [*self.parts, *(file for file in self.files if self.schema.uid in file.operators)]

    def rows(self, first: int, last: int, key: bytes | None = None) -> Iterator[pa.Table]:
        """Its rows in the key groups first..last, with the columns group, key, sub and value.

        With a key fewer of the others are given, in a fraction of the time.
        """
        from turnback.snapshot.parts import read_parts
        from turnback.snapshot.table import StateTable
        from turnback.state.delta import open_delta
        from turnback.state.merging import live_rows
        from turnback.state.subtasks import without_copies

        if self.parts:
            codec = StateTable(self.schema)
            for typed in read_parts(storage_of(self.storage), self.parts, first, last):
                yield codec.to_rows(typed)
        mine = clip_files(self.files, {self.schema.uid: (first, last)})
        read = partial(open_delta, read=partial(read_state, self.storage), key=key)
        for schema, rows in live_rows(mine, read):
            if schema.id == self.schema.id:
                rows = without_copies(schema, rows)
                if len(rows):
                    yield rows

    def typed(self, first: int, last: int) -> Iterator[pa.Table]:
        from turnback.snapshot.parts import read_parts
        from turnback.snapshot.table import StateTable

        if self.parts:
            yield from read_parts(storage_of(self.storage), self.parts, first, last)
        else:
            yield from map(StateTable(self.schema).to_typed, self.rows(first, last))


def reading_spans(stored: StoredRows, max_parallelism: int) -> list[Span]:
    """Cut the key groups of a state into the shares of tasks."""
    return spans_of(max_parallelism, stored.held_by(), SPAN_ROWS, SPAN_BYTES)


@dataclass(frozen=True)
class StateReader:
    """Gives the rows of a state with typed columns; tasks are given the numbers of spans."""

    stored: StoredRows
    spans: tuple[Span, ...]

    @property
    def schema(self) -> pa.Schema:
        from turnback.snapshot.table import StateTable

        return StateTable(self.stored.schema).arrow_schema

    def read(self, first: int, last: int) -> Iterator[pa.Table]:
        return self.stored.typed(first, last)

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for table in self.read(*self.spans[number]):
                    yield from table.to_batches()
