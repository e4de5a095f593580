"""The epochs of an attempt: running them, confirming them, and counting what they do."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.manifest import (
    EpochCut,
    OperatorInfo,
    add_malformed,
    malformed_counts,
)
from turnback.core.errors import EpochConflictError
from turnback.driver.context import AttemptContext, JobContext
from turnback.driver.engine import EpochInput, Query
from turnback.driver.event_time import EventTime
from turnback.driver.job import EpochStats
from turnback.driver.merger import Merger
from turnback.driver.meter import Meter, Records, total
from turnback.driver.progress import ProgressMeter
from turnback.driver.redrive import Feed
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Level
from turnback.sinks.base import directory_digest
from turnback.state.expiring import merge_limits
from turnback.worker.event_time import EpochTime
from turnback.worker.message import Barrier, Order, TaskAck, align
from turnback.worker.program import Chains, level_programs
from turnback.worker.restoring import store_task
from turnback.worker.stamps import Segment

_LOG = logging.getLogger(__name__)
_TRIES = 3


@dataclass(frozen=True)
class EpochAcks:
    """The acknowledgements of all tasks of an epoch, each of the attempt whose output counted."""

    acks: tuple[TaskAck, ...]
    segments: tuple[Segment, ...] = ()

    def next_timer_ms(self) -> int | None:
        """When the next timer by the clock is due."""
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

    def fed(self) -> Counter[int]:
        """Elements that Spark itself gave from sources, by channel."""
        return sum((Counter(ack.fed) for ack in self.acks), Counter())

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

    `source_tasks` is how many tasks a first level has that reads the sources.

    Raises:
        EpochConflictError: Two attempts of a task were read; nothing is confirmed.
    """
    acks = [ack for barrier in barriers for ack in barrier.acks]
    names = align(barriers, _tasks(levels[-1], source_tasks), "the driver")
    for level in reversed(levels):
        if len(names) != _tasks(level, source_tasks):
            raise EpochConflictError(
                f"level {level.index}: output of {len(names)} tasks was read, of "
                f"{_tasks(level, source_tasks)}"
            )
        mine = sorted((a for a in acks if a.level == level.index), key=lambda a: a.name.partition)
        if tuple(a.name for a in mine) != names:
            raise EpochConflictError(
                f"level {level.index}: the tasks that acknowledged are not those whose output was "
                f"read: {[str(a.name) for a in mine]} against {[*map(str, names)]}"
            )
        seen = {a.upstream for a in mine}
        if len(seen) > 1:
            raise EpochConflictError(
                f"level {level.index}: tasks have read different attempts of the level before: "
                f"{sorted(str([*map(str, names)]) for names in seen)}"
            )
        if level.index > 0:
            names = seen.pop()
    segments = {segment.id: segment for barrier in barriers for segment in barrier.segments}
    return EpochAcks(tuple(acks), tuple(segments.values()))


def _tasks(level: Level, source_tasks: int) -> int:
    return source_tasks if level.parallelism is None else level.parallelism


class Epochs:
    """Runs the epochs of one attempt, one after the other.

    An epoch runs every level once over the new input. All tasks write what changed in their state,
    and prepare the output of their sinks; their acknowledgements come back in barriers, which are
    checked here. Only then is the epoch confirmed: its state files join the chains of their
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
        self._chains = Chains(self._programs)
        self._merger = Merger(job.engine, self._programs, job.storage, context.fence.attempt)
        self._sinks = [op.uid for op in plan.operators() if op.kind is NodeKind.SINK]
        """When the epoch began that is running."""
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
            self._chains.restore(snapshot.state)
            stores = self._chains.items()
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
                watermarks=snapshot.watermarks,
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
        feed: Feed | None = None,
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
                self._chains.confirm(ack.level, ack.name.partition, ack.state)
        sources = self._identities.stamp(input.positions() or self.sources)
        sources = add_malformed(sources, self.sources, acks.malformed())
        self.time.advance(acks.segments, acks.next_timer_ms())
        limits = merge_limits(schemas.values(), now.now_ms)
        merged_away = self._merger.advance(self._chains, limits)
        batches = self.redriven.batches if feed is None else feed.batch
        self.redriven = self.redriven.advance(epoch, batches)
        cut = EpochCut(
            epoch=epoch,
            sources=sources,
            state=self._chains.live(),
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
            self._has_leftovers = not self._coordinator.discard_others()
        records = acks.records()
        took = time.perf_counter() - started
        read = self.meter.count(
            records, cut.state, acks.left_out(), acks.fed(), malformed_counts(sources)
        )
        self.progress.end(epoch)
        self.meter.count_load(acks.acks, took, self._chains)
        self.meter.watermarks = self.time.of_operators()
        written = sum(records.get(uid, (0, 0))[0] for uid in self._sinks)
        self._on_epoch(EpochStats(epoch, read, written, took, acks.opened()))

    def close(self) -> None:
        self._merger.close()
        self._restoring.end()

    def _acknowledged(
        self, input: EpochInput, epoch: int, now: EpochTime, feed: Feed | None
    ) -> EpochAcks:
        """Run the levels, again if downstream tasks have read two attempts of one task."""
        orders = [self._order(epoch, program.level, now, feed) for program in self._programs]
        description = f"{self._spec.name}: epoch {epoch}"
        tries = 0
        while True:
            try:
                barriers = input.run(description, orders)
                source_tasks = 0 if self._plan.native else input.source_tasks()
                return check_barriers(barriers, self._plan.levels, source_tasks)
            except EpochConflictError as e:
                tries += 1
                if tries == _TRIES:
                    raise
                _LOG.warning("epoch %d is replayed: %s", epoch, e)
                # Now, or the replay may wait for locks of what the first run has prepared; and
                # again after it, because tasks of the first run may still be ending.
                self._coordinator.discard_others()
                self._has_leftovers = True

    def _order(self, epoch: int, level: Level, now: EpochTime, feed: Feed | None) -> Order:
        letters = [feed.letters.get(op.uid, ()) for op in level.operators] if feed else []
        return Order(
            job=self._spec.name,
            job_id=self._fence.job_id,
            attempt=self._fence.attempt,
            epoch=epoch,
            backend=self._spec.backend,
            local_dir=self._spec.local_dir,
            storage=self._storage,
            files=self._chains.of_level(level.index),
            line=self._fence.line,
            nonce=self._fence.nonce,
            directory_id=self._directory_id,
            time=now,
            letters=tuple(chain.from_iterable(letters)),
        )
