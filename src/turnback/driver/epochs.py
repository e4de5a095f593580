"""The epochs of an attempt: running them, confirming them, and counting what they do."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from msgspec.structs import replace

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import slot_path
from turnback.checkpoint.manifest import EpochCut, OperatorInfo, add_malformed, malformed_counts
from turnback.core.clock import Clock
from turnback.driver.context import AttemptContext, JobContext
from turnback.driver.engine import Engine, EpochInput, Query
from turnback.driver.event_time import EventTime
from turnback.driver.job import EpochStats, JobSpec
from turnback.driver.metrics import Meter, Records, total
from turnback.driver.redrive import RedriveInput
from turnback.errors import EpochConflictError
from turnback.functions.event_time import MIN_TIME
from turnback.job.status import AttemptProgress, WatchLimits
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Level
from turnback.sinks.base import directory_digest
from turnback.state.expiry import Limits, merge_limits
from turnback.state.files import (
    StateFile,
    StorageRef,
    merged_lineage,
    plan_merges,
    read_state,
    storage_of,
)
from turnback.state.merging import merge
from turnback.worker.event_time import EpochTime, Segment
from turnback.worker.local_state import store_task
from turnback.worker.message import Barrier, EpochCommand, TaskAck, TaskSet, align
from turnback.worker.program import LevelProgram, PartitionId, StateFileIndex, level_programs

_GRAIN_MS = 1_000
"""Epochs that end within so long are kept as one."""


def watch_limits(spec: JobSpec) -> WatchLimits:
    """When a job counts as stalled, given how often it has epochs and checkpoints anyway."""
    settings = spec.settings
    watchdog = spec.watchdog
    epoch_ms = watchdog.no_epoch_ms
    checkpoint_ms = watchdog.no_checkpoint_ms
    if epoch_ms is not None:
        epoch_ms += spec.epoch_interval_ms
    if settings.interval_ms is None:
        checkpoint_ms = None
    elif checkpoint_ms is not None:
        checkpoint_ms += max(settings.interval_ms, settings.min_pause_ms)
    return WatchLimits(
        heartbeat_ms=watchdog.no_heartbeat_ms, epoch_ms=epoch_ms, checkpoint_ms=checkpoint_ms
    )


class ProgressMeter:
    """Notes when epochs begin and end, and what they wait for. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._since_ms = clock.now_ms()
        self._begun_s = 0.0
        self._asked_ms: int | None = None
        self._uncovered: deque[tuple[int, int]] = deque()
        """Confirmed epochs without a checkpoint, the last of a group and when its first ended."""

    def run(self) -> None:
        with self._lock:
            self._since_ms = self._clock.now_ms()

    def begin(self, epoch: int) -> None:
        with self._lock:
            self._epoch = epoch
            self._since_ms = self._clock.now_ms()
            self._begun_s = self._clock.monotonic()

    def end(self, epoch: int) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            self._epoch = None
            self._since_ms = now_ms
            first_ms = now_ms
            if self._uncovered and now_ms - self._uncovered[-1][1] < _GRAIN_MS:
                _, first_ms = self._uncovered.pop()
            self._uncovered.append((epoch, first_ms))

    def running_s(self) -> float:
        """For how long an epoch has been running; 0 between two of them."""
        with self._lock:
            return 0.0 if self._epoch is None else self._clock.monotonic() - self._begun_s

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While Spark is asked something that it answers in a moment."""
        self._asked_ms = self._clock.now_ms()
        try:
            yield
        finally:
            self._asked_ms = None

    def progress(self, covered: int | None) -> AttemptProgress:
        """How it gets on, given the epoch of the newest complete checkpoint."""
        with self._lock:
            while self._uncovered and covered is not None and self._uncovered[0][0] <= covered:
                self._uncovered.popleft()
            return AttemptProgress(
                epoch=self._epoch,
                since_ms=self._since_ms,
                asked_ms=self._asked_ms,
                uncovered_ms=self._uncovered[0][1] if self._uncovered else None,
            )


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergeTask:
    """Files of one partition to be merged into one, on some executor."""

    home: PartitionId
    files: tuple[StateFile, ...]
    """In epoch command."""
    final: bool
    """Whether the result is complete, so that tombstones can go."""
    operators: tuple[str, ...]
    """Keyed operators of the level."""
    groups: tuple[int, int]
    storage: StorageRef
    attempt: int
    limits: Limits = field(default_factory=dict)
    """What has expired."""

    def run(self) -> StateFile:
        read = partial(read_state, self.storage)
        merged = merge(self.files, read, final=self.final, limits=self.limits)
        level, partition = self.home
        path = f"state/{self.attempt}/{level}-{partition}-merged-{uuid.uuid4().hex}.arrow"
        if not self.storage.inline:
            storage_of(self.storage).put(path, merged.data)
        file = replace(
            merged.file(path, max(f.last_epoch for f in self.files), inline=self.storage.inline),
            first_epoch=min(f.first_epoch for f in self.files),
            lineage=merged_lineage(self.files, complete=self.final),
        )
        if not self.final:
            return file
        # It is complete for all key groups and operators of its partition, also those without rows.
        first, last = self.groups
        return replace(
            file, first_group=first, last_group=last, operators=self.operators, complete=True
        )


class Merger:
    """Merges small state files into larger ones, as Spark jobs beside the epochs."""

    def __init__(
        self, engine: Engine, programs: Sequence[LevelProgram], storage: StorageRef, attempt: int
    ) -> None:
        self._engine = engine
        self._programs = {p.level.index: p for p in programs}
        self._storage = storage
        self._attempt = attempt
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="turnback-merge")
        self._running: tuple[list[MergeTask], Future[list[StateFile]]] | None = None

    def advance(self, file_index: StateFileIndex, limits: Limits) -> list[str]:
        """Use the results of finished merges, start new ones; return the paths merged away.

        To be called between epochs, as no new epoch needs those files. What has expired by the time
        of the last epoch, as the `limits` say, is expired in all that come.
        """
        gone: list[str] = []
        if self._running is not None and self._running[1].done():
            gone = self._take(file_index, *self._running)
            self._running = None
        if self._running is None and (tasks := self._due(file_index, limits)):
            description = f"Turnback: merge state of {len(tasks)} partitions"
            self._running = (tasks, self._pool.submit(self._engine.run_tasks, description, tasks))
        return gone

    def close(self) -> None:
        """Start no more merges; one under way is left to end by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(
        self, file_index: StateFileIndex, tasks: list[MergeTask], future: Future[list[StateFile]]
    ) -> list[str]:
        error = future.exception()
        if error is not None:
            # Nothing refers to a half-done merge; the files it was to replace are all there.
            _LOG.warning("merging state files failed, retrying: %s", error)
            return []
        gone: list[str] = []
        for task, file in zip(tasks, future.result(), strict=True):
            gone += file_index.replace(task.home, task.files, file)
        return gone

    def _due(self, file_index: StateFileIndex, limits: Limits) -> list[MergeTask]:
        tasks: list[MergeTask] = []
        for home, files in file_index.items():
            program = self._programs[home[0]]
            stateful = program.level.stateful
            alike = len({op.parallelism for op in stateful}) == 1
            tasks += [
                MergeTask(
                    home,
                    tuple(planned.files),
                    planned.final and alike,
                    tuple(op.uid for op in stateful),
                    program.groups(home[1]),
                    self._storage,
                    self._attempt,
                    limits,
                )
                for planned in plan_merges(files)
            ]
        return tasks


_TRIES = 3
_NAMED = 20


@dataclass(frozen=True)
class EpochAcks:
    """The acknowledgements of all tasks of an epoch, each of the attempt whose output counted."""

    acks: tuple[TaskAck, ...]
    segments: tuple[Segment, ...] = ()

    def next_timer_ms(self) -> int | None:
        times = [ack.next_timer_ms for ack in self.acks if ack.next_timer_ms is not None]
        return min(times, default=None)

    def transactions(self) -> dict[str, tuple[bytes, ...]]:
        by_sink: defaultdict[str, tuple[bytes, ...]] = defaultdict(tuple)
        for ack in self.acks:
            for uid, handles in ack.transactions.items():
                by_sink[uid] += tuple(handles)
        return dict(by_sink)

    def records(self) -> Records:
        return total(ack.records for ack in self.acks)

    def left_out(self) -> Counter[str]:
        """Elements at which functions failed, by operator uid."""
        return sum((Counter(ack.left_out) for ack in self.acks), Counter())

    def malformed(self) -> Counter[str]:
        """Records that did not fit the schema of their source, by its uid."""
        return sum((Counter(ack.malformed) for ack in self.acks), Counter())

    def native_records(self) -> Counter[int]:
        """Elements that Spark itself gave from sources, by channel."""
        return sum((Counter(ack.native_records) for ack in self.acks), Counter())

    def sync_ms(self) -> int:
        """How long the slowest task took to snapshot its state."""
        slowest = max((ack.seconds.get("snapshot", 0.0) for ack in self.acks), default=0.0)
        return round(slowest * 1000)

    def opened(self) -> dict[str, int]:
        """How many tasks have opened their local store in which way."""
        return dict(Counter(ack.opened for ack in self.acks if ack.opened))


def check_barriers(
    barriers: list[Barrier], levels: Sequence[Level], source_tasks: int
) -> EpochAcks:
    """Check that every task has read the attempts that acknowledge, and no others.

    `source_tasks` is how many tasks a first level has that reads the sources. If two attempts of a
    task were read, nothing is confirmed: `EpochConflictError`.
    """
    acks = [ack for barrier in barriers for ack in barrier.acks]
    read = TaskSet.of(align(barriers, _tasks(levels[-1], source_tasks), "the driver"))
    for level in reversed(levels):
        if read.count != _tasks(level, source_tasks):
            raise EpochConflictError(
                f"level {level.index}: the output of only {read.count} of "
                f"{_tasks(level, source_tasks)} tasks was read"
            )
        mine = sorted((a for a in acks if a.level == level.index), key=lambda a: a.name.partition)
        if TaskSet.of(a.name for a in mine) != read:
            raise EpochConflictError(
                f"level {level.index}: the tasks that acknowledged are not those whose output was "
                f"read: {read.count} were read, and these {len(mine)} acknowledged: "
                f"{_some([str(a.name) for a in mine])}"
            )
        seen = Counter(a.upstream for a in mine)
        if len(seen) > 1:
            (_, most), *others = seen.most_common()
            raise EpochConflictError(
                f"level {level.index}: tasks have read different attempts of the previous level: "
                f"{most} tasks one set of attempts, {sum(n for _, n in others)} other ones"
            )
        if level.index > 0:
            read = mine[0].upstream
    segments = {segment.id: segment for barrier in barriers for segment in barrier.segments}
    return EpochAcks(tuple(acks), tuple(segments.values()))


def _some(names: Sequence[str]) -> str:
    """Names for a message, which would not be read if they were thousands."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _tasks(level: Level, source_tasks: int) -> int:
    return source_tasks if level.parallelism is None else level.parallelism


class Epochs:
    """Runs the epochs of one attempt, one after the other.

    An epoch runs every level once over the new input. All tasks write what changed in their state,
    and prepare the output of their sinks; their acknowledgements come back in barriers, which are
    checked here. Only then is the epoch confirmed: its state files join the file_index of their
    partitions, and the coordinator gets one consistent cut of positions, state and output. An
    epoch whose acknowledgements contradict each other is run again.
    """

    def __init__(
        self,
        job: JobContext,
        context: AttemptContext,
        query: Query,
        coordinator: CheckpointCoordinator,
        on_epoch: Callable[[EpochStats], None],
    ) -> None:
        plan = job.plan
        snapshot = context.restore_point
        self._plan = plan
        self._spec = job.spec
        self._fence = context.fence
        self._storage = job.storage
        self._directory_id = directory_digest(job.storage.uri)
        self._query = query
        self._identities = job.identities
        self._coordinator = coordinator
        self._on_epoch = on_epoch
        self.meter = Meter(plan, job.clock)
        self.progress = ProgressMeter(job.clock)
        self._restoring = job.restoring
        self._programs = level_programs(plan)
        self._file_index = StateFileIndex(self._programs)
        self._merger = Merger(job.engine, self._programs, job.storage, context.fence.attempt)
        self._sinks = [op.uid for op in plan.operators() if op.kind is NodeKind.SINK]
        self._has_leftovers = False
        """Whether tasks whose output did not count may have left something in the sinks."""
        self.prepared: dict[str, tuple[bytes, ...]] = {}
        """What the sinks have prepared in an epoch the coordinator does not know of yet."""
        operators = tuple(
            OperatorInfo(uid, name, kind.value, parallelism)
            for uid, (name, kind, parallelism) in plan.uids().items()
        )
        self.redriven = context.redriven
        """How far it is with dead letters that are fed back."""
        self.initial = EpochCut(0, {}, operators=operators, redriven=self.redriven)
        """What the attempt starts from, as if it were an epoch of its own."""
        if snapshot is not None:
            self._file_index.restore(snapshot.state)
            stores = self._file_index.items()
            weights = {store_task(*id): sum(file.rows for file in files) for id, files in stores}
            self._restoring.begin("filling local stores", context.fence.attempt, weights)
            self.meter.count({}, snapshot.state, malformed=malformed_counts(snapshot.sources))
            self._identities.restore(snapshot.sources)
            self.initial = EpochCut(
                snapshot.epoch,
                snapshot.sources,
                snapshot.state,
                snapshot.schemas,
                operators,
                watermarks={u: at for u, at in snapshot.watermarks.items() if at > MIN_TIME},
                redriven=self.redriven,
                drained_by=snapshot.drained_by,
            )
        self._epoch = self.initial.epoch
        self.sources = self.initial.sources
        """Where the sources are after the newest confirmed epoch."""
        self.time = EventTime(plan, job.clock, snapshot.watermarks if snapshot else None)

    def run(
        self,
        input: EpochInput,
        *,
        ended: bool = False,
        drained_by: str = "",
        feed: RedriveInput | None = None,
    ) -> None:
        """Run one epoch and hand it to the coordinator.

        Event time may end with it, for a request or not, and dead letters be fed back in it.
        """
        started = time.perf_counter()
        epoch = self._epoch + 1
        self.progress.begin(epoch)
        timed = bool(self._plan.strategies)
        files = input.file_order() if timed else {}
        now = self.time.begin(files, input.partitions() if timed else None, ended=ended)
        acks = self._acknowledged(input, epoch, now, feed)
        self._restoring.end()
        self.prepared = acks.transactions()
        schemas = {schema.id: schema for ack in acks.acks for schema in ack.schemas}
        for ack in acks.acks:
            if ack.state is not None:
                self._file_index.confirm(ack.level, ack.name.partition, ack.state)
        sources = self._identities.stamp(input.positions() or self.sources)
        sources = add_malformed(sources, self.sources, acks.malformed())
        self.time.advance(acks.segments, acks.next_timer_ms())
        limits = merge_limits(schemas.values(), now.now_ms)
        merged_away = self._merger.advance(self._file_index, limits)
        batches = self.redriven.batches if feed is None else feed.batch
        self.redriven = self.redriven.advance(epoch, batches)
        cut = EpochCut(
            epoch=epoch,
            sources=sources,
            state=self._file_index.live(),
            schemas=tuple(schemas.values()),
            operators=self.initial.operators,
            transactions=self.prepared,
            sync_ms=acks.sync_ms(),
            tasks=len(acks.acks),
            watermarks=self.time.watermarks(),
            redriven=self.redriven,
            drained_by=drained_by,
        )
        self.prepared = {}
        self._coordinator.epoch_confirmed(cut)
        self._coordinator.retire(merged_away)
        self._epoch = epoch
        self.sources = sources
        if self._has_leftovers or self._query.has_rerun(acks.acks):
            self._has_leftovers = not self._coordinator.abort_orphans()
        records = acks.records()
        took = time.perf_counter() - started
        read = self.meter.count(
            records, cut.state, acks.left_out(), acks.native_records(), malformed_counts(sources)
        )
        self.progress.end(epoch)
        self.meter.count_load(acks.acks, took, self._file_index)
        self.meter.watermarks = self.time.of_operators()
        written = sum(records.get(uid, (0, 0))[0] for uid in self._sinks)
        self._on_epoch(EpochStats(epoch, read, written, took, acks.opened()))

    def close(self) -> None:
        self._merger.close()
        self._restoring.end()

    def _acknowledged(
        self, input: EpochInput, epoch: int, now: EpochTime, feed: RedriveInput | None
    ) -> EpochAcks:
        """Run the levels, again if downstream tasks have read two attempts of one task."""
        commands = [self._command(epoch, program.level, now, feed) for program in self._programs]
        description = f"{self._spec.name}: epoch {epoch}"
        tries = 0
        while True:
            try:
                barriers = input.run(description, commands)
                source_tasks = 0 if self._plan.native else input.source_tasks()
                return check_barriers(barriers, self._plan.levels, source_tasks)
            except EpochConflictError as e:
                tries += 1
                if tries == _TRIES:
                    raise
                _LOG.warning("replaying epoch %d: %s", epoch, e)
                # Now, or the replay may wait for locks of what the first run has prepared; and
                # again after it, because tasks of the first run may still be ending.
                self._coordinator.abort_orphans()
                self._has_leftovers = True

    def _command(
        self, epoch: int, level: Level, now: EpochTime, feed: RedriveInput | None
    ) -> EpochCommand:
        letters = [feed.letters.get(op.uid, ()) for op in level.operators] if feed else []
        return EpochCommand(
            job=self._spec.name,
            job_id=self._fence.job_id,
            attempt=self._fence.attempt,
            epoch=epoch,
            backend=self._spec.backend,
            local_dir=self._spec.local_dir,
            storage=self._storage,
            files=self._file_index.of_level(level.index),
            line=self._fence.line,
            nonce=self._fence.nonce,
            directory_id=self._directory_id,
            fence=slot_path(self._fence.number),
            time=now,
            letters=tuple(chain.from_iterable(letters)),
        )
