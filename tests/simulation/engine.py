"""An engine whose tasks are a few lines of Python: a count by key, its state, and the sinks.

Tasks keep their state as real ones do: each epoch writes the changed counts of a partition into a
file, which manifests refer to, and a task reads the files of its partition when it has not seen
them. Sinks are the real templates. Some tasks have copies, which go on when nobody wants them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from simulation.world import Process, World
from turnback.checkpoint.manifest import SourcePosition
from turnback.driver.engine import EpochInput, Sources
from turnback.driver.epochs import MergeTask
from turnback.driver.job import JobSpec
from turnback.errors import EpochConflictError
from turnback.plan.plan import Operator, Plan
from turnback.sinks.base import WriterContext
from turnback.snapshot.writer import CopyTask
from turnback.spark.pickling import pickle_by_value
from turnback.state.files import StateFile, StorageRef, clip_files, read_state, storage_of
from turnback.state.schema import KeySchema, StateSchema
from turnback.storage.base import Storage
from turnback.storage.envelope import digest
from turnback.values.columns import Batch
from turnback.values.keys import group_range, partition_of
from turnback.worker.message import Barrier, EpochCommand, TaskAck, TaskName, TaskSet
from turnback.worker.state_import import IntakeTask

Record = tuple[str, int]
"""A key, and its place in the input."""
SOURCE, COUNT = "in", "count"
_SCHEMA = StateSchema(
    uid=COUNT, name="n", kind="value", key=KeySchema(("string",), columns=True), value="long"
)
_EPOCH_S = 0.03


@dataclass
class Input:
    """What there is to read, and where each of it belongs."""

    records: list[Record]
    groups: dict[str, int]
    """The key group of each key."""

    def partition(self, key: str, parallelism: int, max_parallelism: int) -> int:
        return partition_of(self.groups[key], parallelism, max_parallelism)


class SimEngine:
    """Runs the jobs of one driver process."""

    cores = 2
    is_local = True

    def __init__(self, world: World, process: Process, input: Input, plan: Plan) -> None:
        self.world = world
        self.process = process
        self.input = input
        self.plan = plan
        self.tasks = 0

    def stream_counts(self, plan: Plan) -> dict[str, int]:
        return {source.uid: 1 for source in plan.sources}

    def pickle(self, value: object) -> bytes:
        return pickle_by_value(value)

    def run_tasks(self, description: str, tasks: Sequence[Any]) -> list[Any]:
        return [self._run(task) for task in tasks]

    def _run(self, task: Any) -> Any:
        if isinstance(task, MergeTask):
            return merged(task)
        if isinstance(task, IntakeTask):
            return taken_in(task, self.plan, self.input.groups)
        if isinstance(task, CopyTask):  # which runs beside epochs, when Spark comes to it
            self.world.clock.sleep(self.world.rng.choice((0.0, _EPOCH_S, 10 * _EPOCH_S)))
        return task.run()

    def query(self, plan: Plan, spec: JobSpec, storage: Storage, attempt: int) -> SimQuery:
        return SimQuery(self, plan)

    def lost(self) -> str | None:
        return None

    def web_ui(self) -> str | None:
        return None

    def application(self) -> str | None:
        return None


class SimQuery:
    """Reads the input in pieces, each of them an epoch."""

    def __init__(self, engine: SimEngine, plan: Plan) -> None:
        self.engine, self.plan = engine, plan
        self.offset = 0
        self.stores: dict[int, tuple[tuple[str, ...], dict[str, int]]] = {}
        self.reran = False
        self._on_input: Callable[[EpochInput], None] | None = None

    def restore(self, sources: Sources) -> None:
        position = sources.get(SOURCE)
        self.offset = int(position.offset or 0) if position is not None else 0

    def start(self, on_input: Callable[[EpochInput], None]) -> None:
        self._on_input = on_input

    def empty_input(self) -> SimEpoch:
        return SimEpoch(self, self.offset, self.offset)

    def wait(self, seconds: float) -> bool:
        world = self.engine.world
        if self.offset >= len(self.engine.input.records):
            return True
        world.wait_until(lambda: False, world.rng.choice((0.0, _EPOCH_S, seconds)))
        if world.rng.random() < 0.2:
            return False
        upto = min(self.offset + world.rng.randint(1, 4), len(self.engine.input.records))
        assert self._on_input is not None
        self._on_input(SimEpoch(self, self.offset, upto))
        self.offset = upto
        return False

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass

    def has_rerun(self, acks: Sequence[TaskAck]) -> bool:
        return self.reran


@dataclass
class SimEpoch:
    """The records of one epoch."""

    query: SimQuery
    first: int
    upto: int

    def run(self, description: str, commands: Sequence[EpochCommand]) -> list[Barrier]:
        (command,) = commands
        engine, plan = self.query.engine, self.query.plan
        parallelism = plan.levels[0].parallelism
        assert parallelism is not None
        records = engine.input.records[self.first : self.upto]
        self.query.reran = False
        barriers = []
        for partition in range(parallelism):
            mine = [
                key
                for key, _ in records
                if engine.input.partition(key, parallelism, plan.max_parallelism) == partition
            ]
            barriers.append(self._run_task(command, partition, mine))
        if not engine.world.healthy and engine.world.rng.random() < 0.01:
            engine.world.tell(
                f"{engine.process.name}: Spark has lost output of epoch {command.epoch}"
            )
            raise EpochConflictError("output of tasks that other tasks had read was lost")
        return barriers

    def _run_task(self, command: EpochCommand, partition: int, keys: list[str]) -> Barrier:
        world, engine = self.query.engine.world, self.query.engine
        copies = 0 if world.healthy or not keys else int(world.rng.random() < 0.08)
        if copies:
            self.query.reran = True
            engine.tasks += 1
            self._spawn_copy(command, partition, keys, engine.tasks)
        engine.tasks += 1
        return self._task(command, partition, keys, engine.tasks).run()

    def _spawn_copy(
        self, command: EpochCommand, partition: int, keys: list[str], number: int
    ) -> None:
        """Start a copy of a task on another machine: it outlives the driver, and may be killed."""
        world = self.query.engine.world
        name = f"{self.query.engine.process.name} copy {command.epoch}.{partition}.{number}"
        process = world.process(name)
        task = self._task(command, partition, keys, number)

        def run() -> None:
            if world.rng.random() < 0.3:
                world.pause(process, world.rng.choice((5, 50, 300)))
                world.wait_until(lambda: True)
            try:
                task.run()
            except Exception as error:  # noqa: BLE001 - nobody waits for it
                world.tell(f"{name} failed: {error}")

        world.spawn(name, process, run)
        if world.rng.random() < 0.3:
            self._kill_soon(process)

    def _kill_soon(self, copy: Process) -> None:
        """As Spark kills a copy when another attempt has done the task; it is not quick at it."""
        world = self.query.engine.world
        end = world.process(f"{copy.name} end")
        world.pause(end, world.rng.randint(1, 20))

        def kill() -> None:
            world.tell(f"{copy.name} is killed")
            world.kill(copy)

        world.spawn(end.name, end, kill)

    def _task(self, command: EpochCommand, partition: int, keys: list[str], number: int) -> SimTask:
        query = self.query
        return SimTask(query, command, TaskName(partition, number), keys)

    def source_tasks(self) -> int:
        return 0

    def positions(self) -> Sources | None:
        return {SOURCE: SourcePosition(str(self.upto))}

    def file_order(self) -> dict[int, int]:
        return {}

    def partitions(self) -> Mapping[str, Sequence[str]] | None:
        return None


@dataclass
class SimTask:
    """One attempt of one task in one epoch."""

    query: SimQuery
    command: EpochCommand
    name: TaskName
    keys: list[str]

    def run(self) -> Barrier:
        plan = self.query.plan
        counts = dict(self._restored())
        rows = []
        for key in self.keys:
            counts[key] = counts.get(key, 0) + 1
            rows.append((key, counts[key]))
        transactions: dict[str, tuple[bytes, ...]] = {}
        for op in plan.levels[0].operators:
            if op.uid != COUNT:
                handle = self._write(op, rows)
                if handle is not None:
                    transactions[op.uid] = (handle,)
        state = self._snapshot(counts) if rows else None
        ack = TaskAck(0, self.name, TaskSet.of(()), state, (_SCHEMA,), transactions)
        return Barrier(0, self.name, (ack,))

    def _restored(self) -> dict[str, int]:
        """The counts before this epoch; of files that were read before, from memory."""
        files = self.command.files.get(self.name.partition, ())
        paths = tuple(file.path for file in files)
        known, counts = self.query.stores.get(self.name.partition, ((), {}))
        if known != paths[: len(known)]:
            known, counts = (), {}
        counts = dict(counts)
        for file in files[len(known) :]:
            counts.update(read_counts(self.command.storage, file, self.query.engine.input.groups))
        self.query.stores[self.name.partition] = (paths, counts)
        return counts

    def _snapshot(self, counts: Mapping[str, int]) -> StateFile:
        changed = {key: counts[key] for key in sorted(set(self.keys))}
        groups = [self.query.engine.input.groups[key] for key in changed]
        number, epoch = self.name.attempt, self.command.epoch
        path = (
            f"state/{self.command.attempt}/0-{self.name.partition}-{epoch}-{number}-"
            f"{uuid.uuid4().hex[:6]}.json"
        )
        data = json.dumps(changed).encode()
        storage_of(self.command.storage).put(path, data)
        return StateFile(
            path=path,
            length=len(data),
            digest=digest(data),
            rows=len(changed),
            first_epoch=epoch,
            last_epoch=epoch,
            first_group=min(groups),
            last_group=max(groups),
            operators=(COUNT,),
            lineage=((self.command.line, epoch),),
        )

    def _write(self, op: Operator, rows: list[tuple[str, int]]) -> bytes | None:
        command = self.command
        assert op.input_type is not None
        ctx = WriterContext(
            command.job,
            command.job_id,
            op.uid,
            command.attempt,
            command.epoch,
            self.name.partition,
            self.name.attempt,
            op.input_type,
            command.storage,
            command.directory_id,
            command.nonce,
        )
        writer = op.function.writer(ctx)
        try:
            if rows:
                writer.write(Batch(op.input_type, rows))
            handle: bytes | None = writer.prepare()
        except Exception:
            try:
                writer.abort()
            except Exception as error:  # noqa: BLE001 - as a task does
                self.query.engine.world.tell(f"abort failed: {error}")
            raise
        return handle


def read_counts(storage: StorageRef, file: StateFile, groups: Mapping[str, int]) -> dict[str, int]:
    """What a file holds for the partition that it was clipped for."""
    data = read_state(storage, file)
    counts: dict[str, int] = json.loads(data)
    return {
        key: n for key, n in counts.items() if file.first_group <= groups[key] <= file.last_group
    }


def taken_in(
    task: IntakeTask, plan: Plan, groups: Mapping[str, int]
) -> tuple[list[StateFile], list[StateSchema]]:
    """Write the counts of a partition anew as `IntakeTask` does, in the format of these tasks."""
    parallelism = plan.levels[0].parallelism
    stored = task.stored.get(_SCHEMA.id)
    assert parallelism is not None
    if stored is None:
        return [], [_SCHEMA]
    span = group_range(task.partition, parallelism, plan.max_parallelism)
    counts = counts_in(stored.storage, clip_files(stored.files, {COUNT: span}), groups)
    if not counts:
        return [], [_SCHEMA]
    path = f"state/{task.attempt}/taken-{task.partition}-{uuid.uuid4().hex}.json"
    data = json.dumps(counts).encode()
    storage_of(task.target).put(path, data)
    file = StateFile(
        path=path,
        length=len(data),
        digest=digest(data),
        rows=len(counts),
        first_epoch=task.epoch,
        last_epoch=task.epoch,
        first_group=span[0],
        last_group=span[1],
        operators=(COUNT,),
        lineage=((task.line, task.epoch),),
    )
    return [file], [_SCHEMA]


def counts_in(
    storage: StorageRef, files: Sequence[StateFile], groups: Mapping[str, int]
) -> dict[str, int]:
    """What files hold together, as `clip_files` gives them."""
    counts: dict[str, int] = {}
    for file in files:
        counts |= read_counts(storage, file, groups)
    return counts


def merged(task: MergeTask) -> StateFile:
    """Merge files as `MergeTask` does, in the format of these tasks."""
    storage = storage_of(task.storage)
    counts: dict[str, int] = {}
    for file in task.files:
        counts |= json.loads(storage.get(file.path))
    level, partition = task.home
    data = json.dumps(counts).encode()
    path = f"state/{task.attempt}/{level}-{partition}-merged-{uuid.uuid4().hex}.json"
    storage.put(path, data)
    newest = max(task.files, key=lambda file: file.last_epoch)
    file = replace(
        newest,
        path=path,
        length=len(data),
        digest=digest(data),
        rows=len(counts),
        first_epoch=min(f.first_epoch for f in task.files),
        first_group=min(f.first_group for f in task.files),
        last_group=max(f.last_group for f in task.files),
    )
    if not task.final:
        return file
    first, last = task.groups
    return replace(
        file, first_group=first, last_group=last, operators=task.operators, complete=True
    )
