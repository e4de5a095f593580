"""Runs jobs in one process, without Spark and without a JVM, by drivers that can be killed."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.api.client import JobClient
from turnback.checkpoint.retention import PinnedCheckpoint
from turnback.driver.collection import encode_collection
from turnback.driver.engine import EpochInput, Sources, Task
from turnback.driver.job import JobSpec
from turnback.driver.positions import Positions
from turnback.errors import ConfigurationError, PlanError, StorageError, TurnbackError
from turnback.plan.bad_records import MALFORMED_COLUMN, ErrorPolicy, malformed_error
from turnback.plan.plan import Channel, Plan, Routing
from turnback.plan.sources import PARTITION_COLUMN, EpochLimit
from turnback.spark.pickling import pickle_by_value
from turnback.storage.base import Storage
from turnback.testing.crash_points import POINTS, Countdown, changes, wrapping
from turnback.testing.streams import FileSource, ListSource, LocalSource, Pushes
from turnback.values.columns import Batch, from_column, stream_columns
from turnback.values.keys import partition_of
from turnback.values.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.event_time import PARTITION, Stamps
from turnback.worker.level import LevelInstance
from turnback.worker.message import (
    Barrier,
    EpochCommand,
    TaskAck,
    TaskName,
    decode_barrier,
    decode_error,
    encode_error,
    user_error,
)
from turnback.worker.program import (
    LevelProgram,
    level_programs,
    load_program,
    pickled,
    source_layout,
)

_MOST_ROWS = 10_000
"""The default of spark.sql.execution.arrow.maxRecordsPerBatch."""

Partitions = dict[int, list[pa.RecordBatch]]
BeforeTask = Callable[[LevelProgram], None]


class Levels:
    """The levels of one attempt, run one task after the other; `before_task` may raise.

    Args:
        readers: How many tasks read the sources, each of them several batches; None for a task per
            batch.
    """

    def __init__(
        self,
        plan: Plan,
        before_task: BeforeTask = lambda program: None,
        *,
        readers: int | None = None,
    ):
        self.programs = level_programs(plan)
        self._plan = plan
        self._before_task = before_task
        self._readers = readers
        self._blobs = [pickled(program, pickle_by_value) for program in self.programs]
        self._instances: dict[tuple[int, int], LevelInstance] = {}
        self._tasks = 0

    def run(
        self, inputs: Mapping[str, Sequence[pa.RecordBatch]], commands: Sequence[EpochCommand]
    ) -> list[Barrier]:
        parts = self._source_tasks(inputs) or {0: []}
        for program, command in zip(self.programs, commands, strict=True):
            parts = self._run_level(program, command, parts)
        batches = [batch for batches in parts.values() for batch in batches]
        controls = [c for batch in batches for c in self.programs[-1].output.unpack(batch)[1]]
        return [decode_barrier(control) for control in controls]

    def close(self) -> None:
        while self._instances:
            self._instances.popitem()[1].close()

    def _source_tasks(self, inputs: Mapping[str, Sequence[pa.RecordBatch]]) -> Partitions:
        layout = source_layout(self._plan)
        channels = {channel.producer: channel for channel in layout.channels}
        tasks: Partitions = {}
        for source in self._plan.sources:
            channel = channels[source.id]
            columns = [name for name, _ in stream_columns(channel.row_type)]
            for batch in inputs.get(source.uid, ()):
                elements = Batch(channel.row_type, batch.select(columns))
                # Batches are in the order of their source, or of their partition.
                number = np.full(len(elements), len(tasks), np.int64)
                part = number
                block = 0 * number
                if PARTITION_COLUMN in batch.schema.names:
                    part = batch[PARTITION_COLUMN].to_numpy()
                    block = PARTITION - number
                elements.stamps = Stamps(number, block, part, 0 * number)
                tasks[len(tasks)] = [layout.pack(channel.id, elements, None)]
        return self._read_together(tasks)

    def _read_together(self, tasks: Partitions) -> Partitions:
        """The batches of so many tasks in the first of them; the others have nothing to read.

        Each reads some that follow one another, as it does of a partition.
        """
        if self._readers is None or len(tasks) <= self._readers:
            return tasks
        shared: Partitions = {task: [] for task in tasks}
        for task, batches in tasks.items():
            shared[task * self._readers // len(tasks)] += batches
        return shared

    def _run_level(
        self, program: LevelProgram, command: EpochCommand, parts: Partitions
    ) -> Partitions:
        level = program.level
        if level.parallelism is not None:
            parts = self._shuffle(program, parts)
        count = len(parts) if level.parallelism is None else level.parallelism
        return {
            partition: self._run_task(program, command, partition, parts.get(partition, []))
            for partition in range(count)
        }

    def _run_task(
        self,
        program: LevelProgram,
        command: EpochCommand,
        partition: int,
        batches: list[pa.RecordBatch],
    ) -> list[pa.RecordBatch]:
        key = (program.level.index, -1 if program.reads_sources else partition)
        self._tasks += 1
        try:
            self._before_task(program)
            if key not in self._instances:
                # As in a worker: the functions are its own.
                own = load_program(self._blobs[program.level.index])
                self._instances[key] = LevelInstance(own, partition)
            name = TaskName(partition, command.attempt * 1_000_000 + self._tasks)
            pieces = [piece for batch in batches for piece in _as_spark_gives_them(batch)]
            return list(self._instances[key].run(command, name, pieces))
        except BaseException as error:
            # What the functions of the instance hold may be half done.
            with suppress(Exception):
                self._instances.pop(key).close()
            if isinstance(error, TurnbackError):
                # As it would come back from a worker: its class and its text, nothing else.
                raise decode_error(encode_error(error)) from None
            raise

    def _shuffle(self, program: LevelProgram, parts: Partitions) -> Partitions:
        shuffled: Partitions = defaultdict(list)
        for batches in parts.values():
            for batch in batches:
                targets = self._targets(program, batch)
                for partition in sorted(set(targets)):
                    mine = pa.array([target == partition for target in targets])
                    shuffled[partition].append(batch.filter(mine))
        return shuffled

    def _targets(self, program: LevelProgram, batch: pa.RecordBatch) -> list[int]:
        """The partition of each row: given, or computed from its key columns."""
        if program.input.bare:
            parts, _ = program.input.unpack(batch)  # none, if there are no rows
            maximum = program.max_parallelism
            return [p for channel, e in parts for p in _key_partitions(channel, e.arrow, maximum)]
        targets: list[int] = batch.column(0).to_pylist()
        for channel in program.input.channels:
            if channel.routing(program.level.index) is Routing.KEY_COLUMNS:
                rows = np.flatnonzero(pc.equal(batch.column(1), channel.id).fill_null(False))
                if len(rows):
                    ((_, elements),) = program.input.unpack(batch.take(pa.array(rows)))[0]
                    partitions = _key_partitions(channel, elements.arrow, program.max_parallelism)
                    for row, partition in zip(rows, partitions, strict=True):
                        targets[row] = partition
        return targets


def _as_spark_gives_them(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """A batch in pieces of at most as many rows as Spark puts into one."""
    starts = range(0, batch.num_rows, _MOST_ROWS)
    return [batch.slice(start, _MOST_ROWS) for start in starts] or [batch]


def _key_partitions(channel: Channel, data: pa.RecordBatch, max_parallelism: int) -> list[int]:
    assert channel.key is not None
    group = channel.key.codec().group
    names = [name for name, _ in stream_columns(channel.type)]
    columns = [
        from_column(data.column(names.index(name)), type)
        for name, type in zip(channel.key.columns, channel.key.types, strict=True)
    ]
    keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    partitions = []
    for key in keys:
        # Null keys have to go somewhere: the operator refuses them, and names itself.
        is_null = key is None or (len(columns) > 1 and None in key)
        number = 0 if is_null else group(key, max_parallelism)
        partitions.append(partition_of(number, channel.parallelism, max_parallelism))
    return partitions


T = TypeVar("T")
_POLL_S = 0.02
_TIMEOUT_S = 60.0
_DURABLE = (
    *(f"storage.local:LocalStorage.{name}" for name in ("put", "put_if_absent", "get", "delete")),
    "storage.local:LocalStorage.list",
    "sinks.memory:InlineCommitter.commit",
)
"""What a driver that was killed cannot do any more."""


class LocalEngine:
    """Runs epochs and tasks one after the other in threads of this process.

    Everything else is what a job on Spark has: planner, tasks, state files, checkpoints, restarts,
    savepoints. Pass it to `StreamExecutionEnvironment(engine=...)`; sources are `from_files`,
    `from_collection`, and with a `JobHarness` `source`.

    Attributes:
        pushes: The sources that elements are pushed to.
        is_killed: Whether its driver was killed, see `LocalDriver`.
        sources: Uids of the sources that its program reads, once it runs.
        read_upto: The offset of each source after the newest epoch that all tasks have confirmed.
    """

    def __init__(self, pushes: Pushes | None = None) -> None:
        self.pushes = pushes
        self.is_killed = False
        self.sources: frozenset[str] = frozenset()
        self.read_upto: Mapping[str, str | None] = {}
        self._failures: dict[str, Exception] = {}

    @property
    def cores(self) -> int:
        return 2

    @property
    def is_local(self) -> bool:
        return True

    def file_source(
        self,
        path: str,
        format: str,
        type: RowTypeInfo,
        limit: EpochLimit,
        options: Mapping[str, Any],
        on_malformed: ErrorPolicy | None,
    ) -> FileSource:
        return FileSource(Path(path), format, type, limit, options)

    def collection_source(self, elements: Sequence[Any], type: Any) -> tuple[ListSource, TypeInfo]:
        data, kind = encode_collection(elements, type)
        return ListSource(kind, data), kind

    def stream_counts(self, plan: Plan) -> dict[str, int]:
        return {source.uid: 1 for source in plan.sources}

    def pickle(self, value: object) -> bytes:
        return pickle_by_value(value)

    def run_tasks(self, description: str, tasks: Sequence[Task[T]]) -> list[T]:
        return [_run_task(task) for task in tasks]

    def query(self, plan: Plan, spec: JobSpec, storage: Storage, attempt: int) -> LocalQuery:
        self.sources = frozenset(source.uid for source in plan.sources)
        return LocalQuery(self, plan, spec, Positions(storage, attempt))

    def lost(self) -> str | None:
        return "the driver was killed by its test" if self.is_killed else None

    def web_ui(self) -> str | None:
        return None

    def application(self) -> str | None:
        return None

    def check_alive(self) -> None:
        """Raise `StorageError` if the driver was killed, so that whatever it does fails."""
        if self.is_killed:
            raise StorageError("the driver was killed by its test")

    def pushes_read(self, uid: str) -> int:
        """How many pushes to a source have been processed, the newest epoch included."""
        offset = self.read_upto.get(uid)
        return json.loads(offset)["pushes"] if offset is not None else 0

    def fail_next_task(self, uid: str, error: Exception) -> None:
        """Let the next task that runs an operator fail as if its function had raised an error."""
        self._failures[uid] = error

    def before_task(self, program: LevelProgram) -> None:
        """Fail, if the test wants that."""
        self.check_alive()
        for operator in program.level.operators:
            error = self._failures.pop(operator.uid, None)
            if error is not None:
                raise user_error(error, operator.uid, operator.name, where="the test") from error


class LocalQuery:
    """Reads all sources of an attempt; whenever there is something new, that is an epoch."""

    def __init__(
        self, engine: LocalEngine, plan: Plan, spec: JobSpec, positions: Positions
    ) -> None:
        self._engine = engine
        self._spec = spec
        self.source_positions = positions
        self.levels = Levels(plan, self._before_task)
        self.strict = [s.uid for s in plan.sources if s.on_malformed is ErrorPolicy.FAIL]
        self.readers = {s.uid: _reader(s.uid, s.dataframe) for s in plan.sources}
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def restore(self, sources: Sources) -> None:
        known = {uid: position for uid, position in sources.items() if uid in self.readers}
        entries = self.source_positions.restore(known)
        self._engine.read_upto = {uid: position.offset for uid, position in known.items()}
        for uid, position in known.items():
            if position.offset is not None:
                self.readers[uid].restore(position.offset, entries.get(uid, []))

    def start(self, on_input: Callable[[EpochInput], None]) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(on_input,), name="turnback-query", daemon=True
        )
        self._thread.start()

    def empty_input(self) -> EpochInput:
        return LocalEpochInput(self, {}, None)

    def wait(self, seconds: float) -> bool:
        assert self._thread is not None
        self._thread.join(seconds)
        self._engine.check_alive()
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        self.levels.close()

    def has_rerun(self, acks: Sequence[TaskAck]) -> bool:
        return False

    def _run(self, on_input: Callable[[EpochInput], None]) -> None:
        try:
            if self._spec.bounded:
                for reader in self.readers.values():
                    reader.end_here()
            while not self._stopped.is_set():
                batches = self._read()
                if any(batches.values()):
                    offsets = {uid: reader.offset for uid, reader in self.readers.items()}
                    input = LocalEpochInput(self, batches, offsets)
                    on_input(input)
                    if input.is_confirmed:
                        self._engine.read_upto = offsets
                    self._stopped.wait(self._spec.epoch_interval_ms / 1000)
                elif self._spec.bounded:
                    return
                else:
                    self._wait_for_news()
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`
            self._error = error

    def _read(self) -> dict[str, list[pa.RecordBatch]]:
        try:
            return {uid: reader.read() for uid, reader in self.readers.items()}
        except TurnbackError as error:
            # Spark hides the class of an error in a source, so restarts go on.
            raise RuntimeError(str(error)) from error

    def _wait_for_news(self) -> None:
        pushes = self._engine.pushes
        if pushes is None:
            self._stopped.wait(_POLL_S)
        elif pushes.arrived.wait(_POLL_S):
            pushes.arrived.clear()

    def _before_task(self, program: LevelProgram) -> None:
        if self._stopped.is_set():
            raise ConfigurationError("the epoch ends here: its job was stopped")
        self._engine.before_task(program)


@dataclass
class LocalEpochInput:
    """The elements of one epoch."""

    query: LocalQuery
    batches: Mapping[str, Sequence[pa.RecordBatch]]
    offsets: Mapping[str, str | None] | None
    is_confirmed: bool = False

    def run(self, description: str, commands: Sequence[EpochCommand]) -> list[Barrier]:
        for uid in self.query.strict:
            for batch in self.batches.get(uid, ()):
                for found in batch[MALFORMED_COLUMN].drop_null().slice(0, 1).to_pylist():
                    raise malformed_error(uid, found["place"], found["text"])
        return self.query.levels.run(self.batches, commands)

    def source_tasks(self) -> int:
        return sum(map(len, self.batches.values())) or 1

    def file_order(self) -> dict[int, int]:
        return {number: number for number in range(self.source_tasks())}  # a batch is a file

    def partitions(self) -> Mapping[str, Sequence[str]] | None:
        return {uid: each.partitions for uid, each in self.query.readers.items() if each.partitions}

    def positions(self) -> Sources | None:
        self.is_confirmed = True
        if self.offsets is None:
            return None
        readers = self.query.readers
        return self.query.source_positions.advance(
            self.offsets, lambda uid, after, upto: readers[uid].entries(after, upto)
        )


def _reader(uid: str, source: object) -> LocalSource:
    if not isinstance(source, LocalSource):
        raise PlanError(
            f"source {uid!r} is a Spark DataFrame, which cannot be read without Spark; use "
            "from_files, from_collection or source(...)"
        )
    return copy(source)


def _run_task(task: Task[T]) -> T:
    """Run a task as a worker would: on a copy, which gives a copy of its result."""
    own: Task[T] = pickle.loads(pickle_by_value(task))
    try:
        result: T = pickle.loads(pickle.dumps(own.run()))
    except TurnbackError as error:
        raise decode_error(encode_error(error)) from None
    return result


class LocalDriver:
    """A running job, and the engine it runs on.

    To kill it is to let every thread of it fail whatever it does next that would outlive the
    process: nothing it had prepared becomes visible, nothing is rolled back or cleaned up.

    What kills it are `points`, with how often they have to be reached.
    """

    def __init__(
        self, engine: LocalEngine, start: Callable[[], JobClient], points: dict[str, int]
    ) -> None:
        self.engine = engine
        self.killed_at: str | None = None
        self._owner = threading.get_ident()
        self._before = set(threading.enumerate())
        self._wrapped = ExitStack()
        try:
            for method in _DURABLE:
                self._wrap(*wrapping(method, self._unless_killed))
            for name, count in points.items():
                self.kill_at(name, count)
            self.client = start()
        except BaseException:
            self._wrapped.close()
            raise

    def kill_at(self, name: str, count: int) -> None:
        """Kill it when it reaches a point for the `count`-th time."""
        reached = Countdown(count, lambda: self._kill(name))
        for point in POINTS[name]:
            for module, change in changes(point, reached):
                self._wrap(module, change)

    def kill(self) -> None:
        """Kill it now, and wait until nothing of it is left."""
        self.killed_at = "a moment chosen by the test"
        self.engine.is_killed = True
        self.wait_for_threads()

    def wait_for_threads(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        for thread in set(threading.enumerate()) - self._before:
            if thread.name.startswith("turnback"):
                # One that is just being started has no ident yet, and cannot be joined.
                while (thread.ident is None or thread.is_alive()) and time.monotonic() < deadline:
                    time.sleep(0.005)
                if thread.ident is None or thread.is_alive():
                    raise TimeoutError(f"{thread.name} of a killed driver does not end")

    def close(self) -> None:
        """End it, and leave the methods of Turnback as they were."""
        try:
            if not self.client.done():
                self.client.cancel()
            self.wait_for_threads()
        finally:
            self._wrapped.close()

    def is_running(self) -> bool:
        attempt = self.client._runner.attempt
        return attempt is not None and attempt.is_running and attempt.coordinator.failure is None

    def hold(self) -> Future[PinnedCheckpoint] | None:
        """Take a checkpoint of the newest epoch; None while the job restarts."""
        attempt = self.client._runner.attempt
        return None if attempt is None else attempt.hold("harness")

    def _wrap(self, module: str, change: Any) -> None:
        self._wrapped.callback(change(import_module(module)))

    def _kill(self, name: str) -> None:
        self.killed_at = name
        self.engine.is_killed = True
        self.engine.check_alive()

    def _unless_killed(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        # The test itself may go on reading and writing.
        if threading.get_ident() != self._owner:
            self.engine.check_alive()
        return method(*args, **named)
