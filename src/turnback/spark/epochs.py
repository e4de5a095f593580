from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.manifest import EpochCut, Fence, Manifest, OperatorInfo
from turnback.core.errors import EpochConflictError
from turnback.program.graph import NodeKind
from turnback.program.plan import Level, Plan
from turnback.spark.frames import EpochFrames
from turnback.spark.job import EpochStats, JobSpec
from turnback.spark.merger import Merger
from turnback.spark.scratch import Positions, Scratch
from turnback.state.files import StorageRef
from turnback.state.schema import StateSchema
from turnback.worker.message import Barrier, Order, TaskAck, align, decode_barrier, unmarked
from turnback.worker.meter import Meter
from turnback.worker.program import Chains
from turnback.worker.routing import CONTROL


class Retries:
    """Tells whether Spark has run tasks of an epoch whose output did not count.

    Only those matter that write to sinks: what they have prepared, nobody commits.
    """

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self._levels = {
            level.index
            for level in plan.levels
            if any(op.kind is NodeKind.SINK for op in level.operators)
        }
        context = spark.sparkContext
        self._tracker = context.statusTracker()
        # A copy that lost against the first attempt leaves no trace in what has won.
        self._speculates = context.getConf().get("spark.speculation", "false") == "true"

    def happened(self, acks: EpochAcks) -> bool:
        """Return whether a task was run more than once, or may have been."""
        names = [ack.name for ack in acks.acks if ack.level in self._levels]
        if not names:
            return False
        if self._speculates or any(name.tries for name in names):
            return True
        return any(map(self._ran_again, {name.stage for name in names}))

    def _ran_again(self, stage: int) -> bool:
        """Whether a stage was run again, after its output was lost with an executor."""
        info = self._tracker.getStageInfo(stage)
        return info is not None and (info.currentAttemptId > 0 or info.numFailedTasks > 0)


_NO_WAY_BACK = "Spark cannot rollback"
"""How Spark puts it that output was lost with an executor after some had read it."""


@dataclass(frozen=True)
class EpochAcks:
    """The acknowledgements of all tasks of an epoch, each of the attempt whose output counted."""

    acks: tuple[TaskAck, ...]

    def transactions(self) -> dict[str, tuple[bytes, ...]]:
        """Everything sinks prepared, by sink uid."""
        found: dict[str, tuple[bytes, ...]] = {}
        for ack in self.acks:
            for uid, handles in ack.transactions.items():
                found[uid] = (*found.get(uid, ()), *handles)
        return found

    def records(self) -> dict[str, tuple[int, int]]:
        """Elements read and written by operator uid."""
        totals: dict[str, tuple[int, int]] = {}
        for ack in self.acks:
            for uid, (read, written) in ack.records.items():
                before = totals.get(uid, (0, 0))
                totals[uid] = (before[0] + read, before[1] + written)
        return totals

    def sync_ms(self) -> int:
        """How long the slowest task took to snapshot its state."""
        slowest = max((ack.seconds.get("snapshot", 0.0) for ack in self.acks), default=0.0)
        return round(slowest * 1000)

    def row_bytes(self) -> int:
        """The size of the largest rows that were handed to tasks; 0 if there were too few."""
        return max((ack.row_bytes for ack in self.acks), default=0)

    def found(self) -> dict[str, int]:
        """How often a task found its state at home, had to catch up, or rebuilt it."""
        counts: dict[str, int] = {}
        for ack in self.acks:
            if ack.found:
                counts[ack.found] = counts.get(ack.found, 0) + 1
        return counts


def run_epoch(frame: DataFrame, levels: Sequence[Level]) -> EpochAcks:
    """Run the epoch's one Spark job and check what came back.

    Raises:
        EpochConflictError: Two attempts of a task were read; nothing is confirmed.
    """
    try:
        rows = frame.collect()
    except Exception as e:
        cause = unmarked(e)
        if cause is not e:
            raise cause from None
        if _NO_WAY_BACK in str(e):
            raise EpochConflictError("output of tasks that others had read was lost") from None
        raise
    return _checked([decode_barrier(bytes(row[CONTROL])) for row in rows], levels)


def _checked(barriers: list[Barrier], levels: Sequence[Level]) -> EpochAcks:
    acks = [ack for barrier in barriers for ack in barrier.acks]
    names = align(barriers, "the driver")
    for level in reversed(levels):
        mine = sorted((a for a in acks if a.level == level.index), key=lambda a: a.name.partition)
        if tuple(a.name for a in mine) != names:
            raise EpochConflictError(
                f"level {level.index}: the tasks that acknowledged are not those whose output was "
                f"read: {_told(a.name for a in mine)} against {_told(names)}"
            )
        seen = {a.upstream for a in mine}
        if len(seen) > 1:
            raise EpochConflictError(
                f"level {level.index}: tasks have read different attempts of the level before: "
                f"{sorted(str(_told(s)) for s in seen)}"
            )
        if level.index > 0:
            names = seen.pop()
    return EpochAcks(tuple(acks))


def _told(names: Iterable[object]) -> list[str]:
    return [str(name) for name in names]


_LOG = logging.getLogger(__name__)
_TRIES = 3


class Epochs:
    """Runs the epochs of one attempt, one after the other."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        spec: JobSpec,
        fence: Fence,
        storage: StorageRef,
        snapshot: Manifest | None,
        positions: Positions,
        scratch: Scratch,
        coordinator: CheckpointCoordinator,
        on_epoch: Callable[[EpochStats], None],
        meter: Meter,
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._spec = spec
        self._fence = fence
        self._storage = storage
        self._positions = positions
        self._scratch = scratch
        self._coordinator = coordinator
        self._on_epoch = on_epoch
        self._meter = meter
        self._frames = EpochFrames(spark, plan)
        self._chains = Chains(self._frames.programs, plan.max_parallelism)
        self._merger = Merger(spark, self._frames.programs, storage, fence.attempt)
        self._retries = Retries(spark, plan)
        self._losers = False
        """Whether tasks whose output did not count may have left something in the sinks."""
        self._epoch = snapshot.epoch if snapshot else 0
        self.prepared: dict[str, tuple[bytes, ...]] = {}
        """What the sinks have prepared in an epoch the coordinator does not know of yet."""
        self._schemas: tuple[StateSchema, ...] = snapshot.schemas if snapshot else ()
        self._operators = tuple(
            OperatorInfo(uid, name, kind.value, parallelism)
            for uid, (name, kind, parallelism) in plan.uids().items()
        )
        if snapshot is not None:
            self._chains.restore(snapshot.state)
            meter.count({}, snapshot.state)
        self.initial = EpochCut(
            epoch=self._epoch,
            sources=snapshot.sources if snapshot else {},
            state=snapshot.state if snapshot else (),
            schemas=self._schemas,
            operators=self._operators,
        )
        """What the attempt starts from, as if it were an epoch of its own."""

    def run(self, batch: DataFrame, batch_id: int) -> None:
        """Run one epoch over one input batch and hand it to the coordinator."""
        started = time.perf_counter()
        epoch = self._epoch + 1
        acks = self._acknowledged(batch, epoch)
        self.prepared = acks.transactions()
        self._take_schemas(acks)
        for ack in acks.acks:
            if ack.state is not None:
                self._chains.confirm(ack.level, ack.name.partition, ack.state)
        offsets = self._scratch.offsets(batch_id)
        sources = self._positions.advance(offsets, self._scratch.log_entries)
        merged_away = self._merger.tend(self._chains)
        cut = EpochCut(
            epoch=epoch,
            sources=sources,
            state=self._chains.live(),
            schemas=self._schemas,
            operators=self._operators,
            transactions=self.prepared,
            sync_ms=acks.sync_ms(),
            tasks=len(acks.acks),
        )
        self.prepared = {}
        self._coordinator.epoch_confirmed(cut)
        self._coordinator.retire(merged_away)
        self._epoch = epoch
        if self._losers or self._retries.happened(acks):
            self._losers = not self._coordinator.discard_others()
        read = self._meter.count(acks.records(), cut.state)
        took = time.perf_counter() - started
        self._on_epoch(EpochStats(epoch, read, took, acks.found()))

    def close(self) -> None:
        """Start nothing more."""
        self._merger.close()

    def _acknowledged(self, batch: DataFrame, epoch: int) -> EpochAcks:
        """Run the Spark job, again if downstream tasks have read two attempts of one task."""
        orders = [self._order(epoch, p.level.index) for p in self._frames.programs]
        self._spark.sparkContext.setJobDescription(f"{self._spec.name}: epoch {epoch}")
        for left in reversed(range(_TRIES)):
            try:
                acks = run_epoch(self._frames.build(batch, orders), self._plan.levels)
                self._frames.limit.learn(acks.row_bytes())
                return acks
            except EpochConflictError as e:
                if not left:
                    raise
                _LOG.warning("epoch %d is replayed: %s", epoch, e)
                # Now, or the replay may wait for locks of what the first run has prepared; and
                # again after it, because tasks of the first run may still be ending.
                self._coordinator.discard_others()
                self._losers = True
        raise AssertionError("the loop returns or raises")

    def _order(self, epoch: int, level: int) -> Order:
        return Order(
            job=self._spec.name,
            job_id=self._fence.job_id,
            attempt=self._fence.attempt,
            epoch=epoch,
            backend=self._spec.backend,
            local_dir=self._spec.local_dir,
            storage=self._storage,
            files=self._chains.of_level(level),
            line=self._fence.line,
        )

    def _take_schemas(self, acks: EpochAcks) -> None:
        """Learn which states the program has."""
        found = {schema.id: schema for ack in acks.acks for schema in ack.schemas}
        self._schemas = tuple(found.values())
