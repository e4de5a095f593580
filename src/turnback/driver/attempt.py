"""An attempt: one life of a job, and how it is paused and ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

from msgspec.structs import replace

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.manifest import SourcePosition
from turnback.checkpoint.retention import PinnedCheckpoint
from turnback.driver.context import AttemptContext, JobContext
from turnback.driver.engine import EpochInput
from turnback.driver.epochs import Epochs
from turnback.driver.job import EpochStats
from turnback.driver.redrive import Redriver
from turnback.job.redrive import RedriveInbox
from turnback.job.status import Metrics

_LOG = logging.getLogger(__name__)
_WAIT_S = 0.2
_SHORT_S = 0.01


class Attempt:
    """One life of a job, from a snapshot to its end or its failure.

    Every start is this one operation. Recovery, a chosen checkpoint and a fresh start differ only
    in the snapshot that is given. `on_epoch` is called after every epoch, `on_running` when the
    snapshot is restored.
    """

    def __init__(
        self,
        job: JobContext,
        context: AttemptContext,
        on_epoch: Callable[[EpochStats], None],
        on_running: Callable[[], None],
    ) -> None:
        plan = job.plan
        storage = job.directory.storage
        attempt = context.fence.attempt
        snapshot = self._snapshot = context.restore_point
        self._sinks = context.sinks
        self._is_over = context.is_over
        self._ends_event_time = job.spec.end_event_time
        self._failure: BaseException | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._gate = threading.Lock()
        self._on_running = on_running
        self.is_running = False
        """Whether checkpoints of it can be taken."""
        self._query = job.engine.query(plan, job.spec, storage, attempt)
        self.coordinator = CheckpointCoordinator(
            context.log,
            job.spec.settings,
            context.sinks.committers,
            max_parallelism=plan.max_parallelism,
            parent=(snapshot.number or None) if snapshot else None,
            history=context.history,
            clock=job.clock,
            on_failure=lambda _: self._wake.set(),
            pins=job.pins,
            inherited=context.inherited(),
        )
        self._epochs = Epochs(job, context, self._query, self.coordinator, on_epoch)
        job_id = context.fence.job_id
        self._redriver = Redriver(plan, RedriveInbox(storage, job_id), job_id, job.clock)

    def run(self) -> None:
        """Start from the snapshot and process epochs until the input ends or `stop` is called."""
        try:
            if self._snapshot is not None:
                self._query.restore(self._snapshot.sources)
            self.coordinator.start()
            self._epochs.progress.run()
            self.is_running = True
            self._on_running()
            self._drive()
            if not self._stopping:
                self.coordinator.final()
        finally:
            self.is_running = False
            self._epochs.close()
            self.coordinator.close(cancelled=self._stopping)
            self._sinks.roll_back(self._epochs.prepared)
            self._query.close()

    def stop(self) -> None:
        """End this attempt from another thread, as a cancellation."""
        self._stopping = True
        self._wake.set()

    def fail(self, error: BaseException) -> None:
        """Fail this attempt from another thread, unless it has ended."""
        if not self._wake.is_set():
            self._failure = self._failure or error
            self._wake.set()

    def pause(self) -> None:
        """Wait for the end of the running epoch, and start no other until `resume`."""
        self._gate.acquire()

    def resume(self) -> None:
        self._gate.release()

    def finish(self) -> None:
        """End this attempt from another thread as if its input had ended."""
        self._wake.set()

    def hold(self, kind: str) -> Future[PinnedCheckpoint]:
        """Take a checkpoint of the newest epoch, and keep its files until it is released."""
        self.coordinator.offer(self._epochs.initial)
        return self.coordinator.pin(kind)

    def positions(self) -> Mapping[str, SourcePosition] | None:
        """Where the sources are after the newest confirmed epoch; None while it does not run."""
        return self._epochs.sources if self.is_running else None

    def metrics(self, completed: int, failed: int) -> Metrics:
        """The numbers of this attempt, and those of earlier ones added to its checkpoints."""
        meter = self._epochs.meter
        metrics = meter.metrics(self.coordinator, completed, failed, self.epoch_s())
        if not self.is_running:
            return metrics
        last = self.coordinator.last
        progress = self._epochs.progress.progress(last.epoch if last is not None else None)
        return replace(metrics, progress=progress)

    def epoch_s(self) -> float:
        """For how long an epoch has been running; 0 between two of them."""
        return self._epochs.progress.running_s()

    def _drive(self) -> None:
        """Run epochs until the end of the input; whatever failed first is what is raised."""
        if self._is_over:
            with self._turn():
                return  # once nobody needs it any more, as a savepoint may
        try:
            self._redrive()
            self._query.start(self._on_input)
            while not self._wake.is_set() and not self._wait():
                if not self._epochs.time.due_in_s():
                    self._run_without_input()
                self._redrive()
            ends = self._ends_event_time and self._epochs.time.has_end
            if ends and not self._wake.is_set():
                self._run_without_input(ended=True)
        except Exception as e:  # noqa: BLE001 - raised, unless something else failed before
            raise (self._failure or e) from None
        finally:
            self._query.stop()
        self.coordinator.raise_failure()
        if self._failure is not None:
            raise self._failure

    def drain(self, request: str) -> None:
        """Let event time run to its end, while the attempt is paused.

        The checkpoint that comes next says for which request: with it the job ends.
        """
        if self._epochs.time.has_end:
            with self._failing():
                self._epochs.run(self._query.empty_input(), ended=True, drained_by=request)

    def _wait(self) -> bool:
        """Wait for the end of the input, for a moment; returns whether it has ended."""
        with self._epochs.progress.asking():
            return self._query.wait(self._patience())

    def _patience(self) -> float:
        """How long to wait before looking whether time alone gives a reason for an epoch."""
        return max(_SHORT_S, min(_WAIT_S, self._epochs.time.due_in_s()))

    def _run_without_input(self, *, ended: bool = False) -> None:
        with self._turn() as is_mine:
            if is_mine and (ended or not self._epochs.time.due_in_s()):
                with self._failing():
                    self._epochs.run(self._query.empty_input(), ended=ended)

    def _redrive(self) -> None:
        """Feed dead letters back that were given to the job, a batch in an epoch."""
        while not self._wake.is_set() and (feed := self._redriver.next(self._epochs.redriven)):
            with self._turn() as is_mine:
                if is_mine:
                    with self._failing():
                        self._epochs.run(self._query.empty_input(), feed=feed)

    def _on_input(self, input: EpochInput) -> None:
        with self._turn() as is_mine:
            if is_mine:
                try:
                    with self._failing():
                        self._epochs.run(input)
                except Exception as e:
                    if self._failure is e:
                        raise
                    # Stopped; an exception now makes Spark print a page.
                    _LOG.debug("stopping the job interrupted an epoch: %s", e)

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Wait until an epoch may run; gives False if none may any more."""
        while not self._gate.acquire(timeout=_WAIT_S):
            if self._wake.is_set():  # an attempt that is paused can fail or be ended, too
                yield False
                return
        try:
            yield not self._wake.is_set()
        finally:
            self._gate.release()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Fail the attempt with an epoch, unless it was stopped meanwhile."""
        try:
            yield
        except Exception as e:
            self.fail(e)
            raise
