from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest
from turnback.checkpoint.retention import PinnedCheckpoint, PinnedFiles
from turnback.core.clock import Clock
from turnback.job.directory import JobDirectory
from turnback.job.history import History
from turnback.job.status import Metrics
from turnback.program.plan import Plan
from turnback.spark.epochs import Epochs
from turnback.spark.job import EpochStats, JobSpec
from turnback.spark.scratch import Positions, Scratch
from turnback.spark.session import cheap_local_files, unless_jvm_lost
from turnback.spark.sinks import JobSinks
from turnback.spark.sources import leaf_names, united
from turnback.state.files import StorageRef
from turnback.worker.meter import Meter

_LOG = logging.getLogger(__name__)
_GATE_S = 0.2


class Attempt:
    """One life of a job, from a snapshot to its end or its failure.

    Every start is this one operation. Recovery, a chosen checkpoint and a fresh start differ only
    in the snapshot that is given.

    Args:
        spark: The session.
        plan: The program.
        spec: How to run it.
        directory: The job's directory.
        log: Its checkpoints; already fenced.
        fence: The fence that was taken.
        snapshot: What to start from; None to start empty.
        sinks: The program's sinks; what older attempts left in them is settled.
        history: What happened.
        clock: Where time comes from.
        on_epoch: Called after every epoch.
        on_running: Called when what it starts from is restored.
        holds: Files that savepoints are written from.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        spec: JobSpec,
        directory: JobDirectory,
        log: CheckpointLog,
        fence: Fence,
        snapshot: Manifest | None,
        sinks: JobSinks,
        history: History,
        clock: Clock,
        on_epoch: Callable[[EpochStats], None],
        on_running: Callable[[], None],
        pins: PinnedFiles,
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._spec = spec
        self._snapshot = snapshot
        self._sinks = sinks
        self._failure: BaseException | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._gate = threading.Lock()
        self._on_running = on_running
        self._meter = Meter(plan, clock)
        self.is_running = False
        """Whether checkpoints of it can be taken."""
        self._positions = Positions(directory.storage, fence.attempt)
        leaves = leaf_names(plan)
        self._scratch = Scratch(leaves)
        self.coordinator = CheckpointCoordinator(
            log,
            spec.settings,
            sinks.committers,
            max_parallelism=plan.max_parallelism,
            parent=(snapshot.number or None) if snapshot else None,
            history=history,
            clock=clock,
            on_failure=lambda _: self._wake.set(),
            pins=pins,
            inherited=snapshot.files() if snapshot else (),
        )
        storage = StorageRef(directory.storage.uri, dict(spec.storage_options), spec.inline)
        self._epochs = Epochs(
            spark,
            plan,
            spec,
            fence,
            storage,
            snapshot,
            self._positions,
            self._scratch,
            self.coordinator,
            on_epoch,
            self._meter,
        )

    def run(self) -> None:
        """Start from the snapshot and process epochs until the input ends or `stop` is called.

        Raises:
            TurnbackError: Why this attempt failed.
        """
        try:
            self._restore()
            self.coordinator.start()
            self.is_running = True
            self._on_running()
            with cheap_local_files(self._spark):
                self._drive()
            if not self._stopping:
                self.coordinator.final()
        finally:
            self.is_running = False
            self._epochs.close()
            self.coordinator.close(cancelled=self._stopping)
            self._sinks.roll_back(self._epochs.prepared)
            self._scratch.remove()

    def stop(self) -> None:
        """End this attempt from another thread, as a cancellation."""
        self._stopping = True
        self._wake.set()

    def pause(self) -> None:
        """Wait for the end of the running epoch, and start no other until `resume`."""
        self._gate.acquire()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._gate.release()

    def finish(self) -> None:
        """End this attempt from another thread as if its input had ended."""
        self._wake.set()

    def hold(self, kind: str) -> Future[PinnedCheckpoint]:
        """Take a checkpoint of the newest epoch, and keep its files until it is released."""
        self.coordinator.offer(self._epochs.initial)
        return self.coordinator.pin(kind)

    def metrics(self, completed: int, failed: int) -> Metrics:
        """The numbers of this attempt, and those of earlier ones added to its checkpoints."""
        return self._meter.metrics(self.coordinator, completed, failed)

    def _restore(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        mine = {k: v for k, v in snapshot.sources.items() if k in self._scratch.leaves}
        logs = self._positions.restore(mine)
        self._scratch.seed({leaf: position.offset for leaf, position in mine.items()}, logs)

    def _drive(self) -> None:
        writer = united(self._plan).writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", self._scratch.path.as_uri())
        if self._spec.bounded:
            writer = writer.trigger(availableNow=True)
        elif self._spec.epoch_interval_ms:
            writer = writer.trigger(processingTime=f"{self._spec.epoch_interval_ms} milliseconds")
        query = writer.start()
        try:
            self._await(query)
        finally:
            with unless_jvm_lost("stopping the query"):
                query.stop()

    def _await(self, query: StreamingQuery) -> None:
        """Wait for the end of the query; whatever failed first is what is raised."""
        try:
            ended: bool | None = False
            while not ended and not self._wake.is_set():
                ended = query.awaitTermination(0.2)  # type: ignore[arg-type]
        except StreamingQueryException as e:
            raise (self._failure or e) from None
        self.coordinator.raise_failure()
        if self._failure is not None:
            raise self._failure

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        while not self._gate.acquire(timeout=_GATE_S):
            if self._wake.is_set():  # an attempt that is paused can fail or be ended, too
                return
        try:
            if not self._wake.is_set():
                self._epochs.run(batch, batch_id)
        except Exception as e:
            if self._wake.is_set():  # stopped; an exception now makes Spark print a page
                _LOG.debug("epoch %d ended by stopping the job: %s", batch_id, e)
                return
            self._failure = self._failure or e
            raise
        finally:
            self._gate.release()
