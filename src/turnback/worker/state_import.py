"""Restores state that is not in the job's own state files, or has to be converted first.

For a savepoint, another job's checkpoint, renamed or evolved state: the tasks open the operators,
read the rows of their key groups, convert them to the declared types, and write state files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.errors import ElementTypeError, IncompatibleStateError
from turnback.functions.descriptors import StateDescriptor
from turnback.plan.plan import Operator
from turnback.snapshot.evolution import (
    Incompatible,
    Migration,
    descriptor_ttl,
    evolve,
    evolve_state,
    is_redefined,
    ttl_change,
)
from turnback.snapshot.metadata import StateId
from turnback.snapshot.snapshot import StoredRows
from turnback.snapshot.table import ROWS
from turnback.state.backend import KeyedStateBackend
from turnback.state.delta import COLUMNS, WIDE_COLUMNS, DeltaBuilder, build_delta
from turnback.state.expiry import update_times, with_times, without_times
from turnback.state.files import StateFile, StorageRef, storage_of
from turnback.state.schema import KeySchema, StateSchema
from turnback.state.subtasks import OperatorStateBackend, location, redistribute
from turnback.values.keys import group_range
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import type_from_descriptor
from turnback.worker.event_time import Place, strategy_place
from turnback.worker.level import LevelInstance
from turnback.worker.local_state import IntakeReport, intake_task
from turnback.worker.message import user_error
from turnback.worker.program import LevelProgram, load_program

FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class RequestedState:
    """A state that an operator uses: why stored values have to be converted, or cannot be.

    Attributes:
        redefined: Whether they cannot because they stand for something else now.
    """

    id: StateId
    migration: str | None = None
    problem: str | None = None
    redefined: bool = False


def requested_state(
    operator: Operator,
    descriptor: StateDescriptor,
    key: KeySchema,
    stored: Mapping[StateId, StateSchema],
) -> RequestedState:
    """What restoring does to a state that an operator uses."""
    id = (operator.uid, descriptor.name)
    if id not in stored:
        return RequestedState(id)
    outcome = evolve_state(stored[id], descriptor, key)
    if isinstance(outcome, Incompatible):
        problem = str(_refused(id, outcome.reason))
        return RequestedState(id, problem=problem, redefined=is_redefined(stored[id], descriptor))
    why = outcome.why if isinstance(outcome, Migration) else None
    if why is None and operator.has_operator_state:
        # Local stores are filled before its states are known, so another time to live does not
        # make them new: they could bring back what merges have dropped.
        why = ttl_change(stored[id].ttl, descriptor_ttl(descriptor)) or None
    return RequestedState(id, migration=why)


@dataclass(frozen=True)
class ProbeTask:
    """Opens the operators of a level, a pickled `LevelProgram`, to learn which states they use.

    Stored states have the id that they have in the program.
    """

    blob: bytes
    stored: Mapping[StateId, StateSchema]

    def run(self) -> list[RequestedState]:
        program = load_program(self.blob)
        with closing(LevelInstance(program, 0)) as instance:
            instance.open_without_state()
            return [
                requested_state(operator, descriptor, backend.key_schema, self.stored)
                for operator, backend in _backends(program, instance)
                for descriptor in backend.descriptors()
            ]


@dataclass(frozen=True)
class WaitingRows:
    """Elements that wait for slower streams, all by one strategy or each by its own."""

    stored: StoredRows
    strategy: str | None


def _named_elements(
    parts: Iterable[WaitingRows],
    descriptor: StateDescriptor,
    groups: tuple[int, int],
    renamed: Mapping[str, str],
) -> pa.Table:
    """Waiting elements with the strategies that they go by, those of a key and a time together.

    Their places have the strategies in them as well.
    """
    moved = [
        (strategy_place(old), strategy_place(new)) for old, new in renamed.items() if old != new
    ]
    found: dict[tuple[int, bytes, bytes], list[Any]] = {}
    for part in parts:
        type_ = type_from_descriptor(part.stored.schema.value)
        decode = Serializer(type_).decode
        outcome = evolve(type_, descriptor.type)
        assert not isinstance(outcome, Incompatible), "it is checked before"
        convert = outcome.convert if isinstance(outcome, Migration) else None
        for table in part.stored.rows(*groups):
            for group, key, sub, value in zip(*table.to_pydict().values(), strict=True):
                elements = decode(value) if convert is None else convert(decode(value))
                for time, element, place, strategy in elements:
                    uid = part.strategy or renamed.get(strategy, strategy)
                    known = None if place is None else _renamed_place(place, moved)
                    found.setdefault((group, key, sub), []).append((time, element, known, uid))
    encode = Serializer(descriptor.type).encode
    places = [[place[i] for place in found] for i in range(3)]
    return pa.table([*places, [encode(value) for value in found.values()]], schema=ROWS)


def _renamed_place(place: list[int], moved: Iterable[tuple[Place, Place]]) -> list[int]:
    """The same place, with the strategy of another name that is part of it."""
    for old, new in moved:
        size = len(old)
        for start in range(len(place) - size + 1):
            if tuple(place[start : start + size]) == old:
                return [*place[:start], *new, *place[start + size :]]
    return place


@dataclass(frozen=True)
class IntakeTask:
    """Writes the state of one partition of a level as state files of the job.

    Attributes:
        blob: The pickled `LevelProgram`.
        stored: What is restored, by the id it has in the program.
        target: The job directory.
        line: The attempt that restores, see `Fence.line`.
        epoch: The last epoch of the snapshot.
        before: The parallelism that operators had in the snapshot, by their uid in the program.
        now_ms: The time; that of the last update of what is stored without one.
        entries: About how many entries it restores.
        waiting: Elements that wait for slower streams, where they are stored in another way than
            they are kept now; by the id of the state they come to.
        strategies: Uids of watermark strategies by those that they had in the snapshot.
    """

    blob: bytes
    partition: int
    stored: Mapping[StateId, StoredRows]
    target: StorageRef
    attempt: int
    line: str
    epoch: int
    before: Mapping[str, int] = field(default_factory=dict)
    now_ms: int = 0
    entries: float = 0.0
    waiting: Mapping[StateId, tuple[WaitingRows, ...]] = field(default_factory=dict)
    strategies: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> tuple[list[StateFile], list[StateSchema]]:
        """Write; the files are durable when this returns."""
        program = load_program(self.blob)
        ranges = program.group_ranges(self.partition)
        files: list[StateFile] = []
        schemas: list[StateSchema] = []
        task = intake_task(program.level.index, self.partition)
        report = IntakeReport(self.target, self.attempt, task, self.entries)
        with closing(LevelInstance(program, self.partition)) as instance:
            instance.open_without_state()
            for operator, backend in _backends(program, instance):
                schemas += backend.schemas()
                if operator.uid in ranges:
                    for descriptor in backend.descriptors():
                        groups = ranges[operator.uid]
                        files += self._restore(operator, backend, descriptor, groups, report)
        return files, schemas

    def _restore(
        self,
        operator: Operator,
        backend: KeyedStateBackend,
        descriptor: StateDescriptor,
        groups: tuple[int, int],
        report: IntakeReport,
    ) -> Iterator[StateFile]:
        id = (operator.uid, descriptor.name)
        stored = self.stored.get(id)
        if stored is None:
            return
        (schema,) = (s for s in backend.schemas() if s.name == descriptor.name)
        outcome = evolve_state(stored.schema, descriptor, schema.key)
        if isinstance(outcome, Incompatible):
            raise _refused(schema.id, outcome.reason)
        rows: Iterable[pa.Table] = stored.rows(*groups)
        if isinstance(backend, OperatorStateBackend):
            move = Move(
                self.before.get(operator.uid, 0),
                self.partition,
                operator.parallelism,
                backend.max_parallelism,
                self.epoch,
            )
            rows = [move.rows(stored)]
        if id in self.waiting:
            rows = [_named_elements(self.waiting[id], descriptor, groups, self.strategies)]
        elif isinstance(outcome, Migration):
            convert = _Converter(operator, stored.schema, descriptor, outcome.convert, self.now_ms)
            rows = map(convert.table, rows)
        for chunk in _chunks(report.counted(rows)):
            yield self._write(schema, chunk)
            report.add(len(chunk))

    def _write(self, schema: StateSchema, rows: pa.Table) -> StateFile:
        state = pa.array(np.zeros(len(rows), np.int16))
        rows = rows.add_column(0, COLUMNS.field(0), state).cast(WIDE_COLUMNS)
        # Local stores sort by key: to be filled in that order takes them half the time.
        order = ["group", "key"] if rows["sub"].null_count else ["group", "key", "sub"]
        rows = rows.sort_by([(name, "ascending") for name in order])
        built = build_delta([schema], rows)
        path = f"state/{self.attempt}/taken-{self.partition}-{uuid.uuid4().hex}.arrow"
        if not self.target.inline:
            storage_of(self.target).put(path, built.data)
        return built.file(path, self.epoch, self.line, inline=self.target.inline)


class _Converter:
    """Converts stored values to the type that is declared now, and gives or takes their times."""

    def __init__(
        self,
        operator: Operator,
        stored: StateSchema,
        descriptor: StateDescriptor,
        convert: Callable[[Any], Any] | None,
        now_ms: int,
    ) -> None:
        self._operator = operator
        self._name = descriptor.name
        self._decode = Serializer(type_from_descriptor(stored.value)).decode
        self._encode = Serializer(descriptor.type).encode
        self._convert = convert
        self._key = stored.key.codec().decode
        self._had_times = stored.ttl is not None
        self._has_times = descriptor.ttl is not None
        self._now_ms = now_ms

    def table(self, rows: pa.Table) -> pa.Table:
        values = rows["value"].combine_chunks()
        times = np.full(len(rows), self._now_ms, np.int64)
        if self._had_times:
            values, times = without_times(values), update_times(values)
        if self._convert is not None:
            values = self._converted(rows["key"], values, self._convert)
        if self._has_times:
            values = with_times(values, times)
        index = rows.schema.get_field_index("value")
        return rows.set_column(index, COLUMNS.field(4), values.cast(pa.binary()))

    def _converted(
        self, keys: pa.ChunkedArray, values: pa.Array, convert: Callable[[Any], Any]
    ) -> pa.Array:
        decode = self._decode
        encode = self._encode
        value = b""
        out: list[bytes] = []
        try:
            for value in values.to_pylist():
                out.append(encode(convert(decode(value))))
        except Exception as e:
            raise self._failed(e, keys[len(out)].as_py(), decode(value)) from e
        return pa.array(out, pa.binary())

    def _failed(self, error: Exception, key: bytes, value: Any) -> Exception:
        op = self._operator
        if isinstance(error, ElementTypeError):
            return IncompatibleStateError(
                f"operator {op.uid!r}: the value that migrate returned for state {self._name!r} "
                f"under the key {self._key(key)!r:.80} does not match its type: {error}"
            )
        what = f"migration of state {self._name!r}"
        return user_error(error, op.uid, what, key=self._key(key), value=value)


@dataclass(frozen=True)
class Move:
    """What a subtask gets of operator state when an operator starts from a snapshot.

    Attributes:
        before: The operator's parallelism in the snapshot.
        parallelism: The one it has now.
        epoch: That in which it is written.
    """

    before: int
    subtask: int
    parallelism: int
    max_parallelism: int
    epoch: int

    def rows(self, stored: StoredRows) -> pa.Table:
        subs, values = redistribute(
            stored.schema.kind,
            stored.rows(0, self.max_parallelism - 1),
            self.before,
            self.subtask,
            self.parallelism,
            self.epoch,
        )
        group, key = location(self.subtask, self.parallelism, self.max_parallelism)
        count = len(values)
        return pa.table([[group] * count, [key] * count, subs, values], schema=ROWS)

    def gone(self) -> list[tuple[int, bytes]]:
        """Key group and key of what was stored by subtasks of then in key groups it has now."""
        first, last = group_range(self.subtask, self.parallelism, self.max_parallelism)
        places = [location(i, self.before, self.max_parallelism) for i in range(self.before)]
        return [place for place in places if first <= place[0] <= last]


@dataclass(frozen=True)
class RedistributeTask:
    """Writes what a subtask gets of the operator states of its job's own checkpoint.

    Only for these: keyed state goes to other tasks by key groups, without being written anew.
    """

    states: tuple[StoredRows, ...]
    move: Move
    target: StorageRef
    attempt: int
    line: str

    def run(self) -> StateFile | None:
        """Write; the file is durable when this returns. None if there is nothing to write."""
        builder = DeltaBuilder()
        gone = self.move.gone()
        for stored in self.states:
            groups, keys, subs, values = (
                column.to_pylist() for column in self.move.rows(stored).columns
            )
            builder.add(
                stored.schema,
                [group for group, _ in gone] + groups,
                [key for _, key in gone] + keys,
                [None] * len(gone) + subs,
                [None] * len(gone) + values,
            )
        built = builder.build()
        if built is None:
            return None
        path = f"state/{self.attempt}/moved-{self.move.subtask}-{uuid.uuid4().hex}.arrow"
        if not self.target.inline:
            storage_of(self.target).put(path, built.data)
        return built.file(path, self.move.epoch, self.line, inline=self.target.inline)


def _chunks(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join tables up to the size of one state file."""
    chunk: list[pa.Table] = []
    size = 0
    for table in tables:
        if len(table):
            chunk.append(table)
            size += table.nbytes
        if size >= FILE_BYTES:
            yield pa.concat_tables(chunk)
            chunk = []
            size = 0
    if chunk:
        yield pa.concat_tables(chunk)


def _backends(
    program: LevelProgram, instance: LevelInstance
) -> list[tuple[Operator, KeyedStateBackend]]:
    kinds = (instance.backends, instance.operator_backends)
    return [(op, of[op.id]) for op in program.level.stateful for of in kinds if op.id in of]


def _refused(id: StateId, reason: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"state {id[1]!r} of operator {id[0]!r} does not match the program: {reason}"
    )
