from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from turnback.coordinator import CheckpointCoordinator, EpochCut, Fence, Manifest, OperatorInfo
from turnback.core.errors import EpochConflictError
from turnback.planner import Plan
from turnback.runtime.chains import Chains
from turnback.runtime.job import EpochStats, JobSpec
from turnback.runtime.message import Order
from turnback.runtime.meter import Meter
from turnback.runtime.positions import Positions
from turnback.runtime.spark.epoch import EpochAcks, run_epoch
from turnback.runtime.spark.frames import EpochFrames
from turnback.runtime.spark.merger import Merger
from turnback.runtime.spark.retries import Retries
from turnback.runtime.spark.scratch import Scratch
from turnback.runtime.storageref import StorageRef
from turnback.state import StateSchema

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
