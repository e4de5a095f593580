from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.manifest import EpochCut, OperatorInfo
from turnback.core.errors import EpochConflictError
from turnback.program.plan import Level
from turnback.spark.driver import AttemptContext, JobContext
from turnback.spark.engine import EpochInput, Query
from turnback.spark.job import EpochStats
from turnback.spark.merger import Merger
from turnback.state.schema import StateSchema
from turnback.worker.message import Barrier, Order, TaskAck, align
from turnback.worker.meter import Meter
from turnback.worker.program import Chains, level_programs

_LOG = logging.getLogger(__name__)
_TRIES = 3


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

    def found(self) -> dict[str, int]:
        """How often a task found its state at home, had to catch up, or rebuilt it."""
        counts: dict[str, int] = {}
        for ack in self.acks:
            if ack.found:
                counts[ack.found] = counts.get(ack.found, 0) + 1
        return counts


def run_epoch(
    input: EpochInput, description: str, orders: Sequence[Order], levels: Sequence[Level]
) -> EpochAcks:
    """Run all levels once and check what came back.

    Raises:
        EpochConflictError: Two attempts of a task were read; nothing is confirmed.
    """
    return check_barriers(input.run(description, orders), levels)


def check_barriers(barriers: list[Barrier], levels: Sequence[Level]) -> EpochAcks:
    """Check that every task has read the attempts that acknowledge, and no others.

    Raises:
        EpochConflictError: Two attempts of a task were read; nothing is confirmed.
    """
    acks = [ack for barrier in barriers for ack in barrier.acks]
    names = align(barriers, "the driver")
    for level in reversed(levels):
        mine = sorted((a for a in acks if a.level == level.index), key=lambda a: a.name.partition)
        if tuple(a.name for a in mine) != names:
            raise EpochConflictError(
                f"level {level.index}: the tasks that acknowledged are not those whose output was "
                f"read: {_texts(a.name for a in mine)} against {_texts(names)}"
            )
        seen = {a.upstream for a in mine}
        if len(seen) > 1:
            raise EpochConflictError(
                f"level {level.index}: tasks have read different attempts of the level before: "
                f"{sorted(str(_texts(s)) for s in seen)}"
            )
        if level.index > 0:
            names = seen.pop()
    return EpochAcks(tuple(acks))


def _texts(names: Iterable[object]) -> list[str]:
    return [str(name) for name in names]


class Epochs:
    """Runs the epochs of one attempt, one after the other."""

    def __init__(
        self,
        job: JobContext,
        context: AttemptContext,
        query: Query,
        coordinator: CheckpointCoordinator,
        meter: Meter,
        on_epoch: Callable[[EpochStats], None],
    ) -> None:
        plan, snapshot = job.plan, context.restore_point
        self._plan = plan
        self._spec = job.spec
        self._fence = context.fence
        self._storage = job.storage
        self._query = query
        self._coordinator = coordinator
        self._on_epoch = on_epoch
        self._meter = meter
        self._programs = level_programs(plan)
        self._chains = Chains(self._programs, plan.max_parallelism)
        self._merger = Merger(job.engine, self._programs, job.storage, context.fence.attempt)
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

    def run(self, input: EpochInput) -> None:
        """Run one epoch and hand it to the coordinator."""
        started = time.perf_counter()
        epoch = self._epoch + 1
        acks = self._acknowledged(input, epoch)
        self.prepared = acks.transactions()
        self._take_schemas(acks)
        for ack in acks.acks:
            if ack.state is not None:
                self._chains.confirm(ack.level, ack.name.partition, ack.state)
        sources = input.positions()
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
        if self._losers or self._query.has_rerun(acks.acks):
            self._losers = not self._coordinator.discard_others()
        read = self._meter.count(acks.records(), cut.state)
        took = time.perf_counter() - started
        self._on_epoch(EpochStats(epoch, read, took, acks.found()))

    def close(self) -> None:
        """Start nothing more."""
        self._merger.close()

    def _acknowledged(self, input: EpochInput, epoch: int) -> EpochAcks:
        """Run the levels, again if downstream tasks have read two attempts of one task."""
        orders = [self._order(epoch, program.level.index) for program in self._programs]
        description = f"{self._spec.name}: epoch {epoch}"
        for left in reversed(range(_TRIES)):
            try:
                return run_epoch(input, description, orders, self._plan.levels)
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
