from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from turnback.checkpoint import pipeline as report
from turnback.checkpoint.commits import EpochCommitter, Lane, ThreadLane
from turnback.checkpoint.ledger import Ledger, PendingCheckpoint, Phase, Trigger, Wait, decide
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import CompletedCheckpoint, EpochCut, Fence
from turnback.checkpoint.pipeline import Pipeline, Steps
from turnback.checkpoint.retention import HeldCheckpoint, Holds, Retention
from turnback.config.checkpointing import CheckpointSettings, ExternalizedCheckpointRetention
from turnback.core.clock import Clock, SystemClock
from turnback.core.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    SinkError,
    TurnbackError,
)
from turnback.job.history import Event, History
from turnback.job.status import UnderWay
from turnback.storage.base import Storage

_LOG = logging.getLogger(__name__)
_FATAL = (FencedError, CorruptFileError, ConfigurationError)


class CheckpointCoordinator:
    """Takes the checkpoints of one attempt beside its epochs.

    The driver calls `start`, `epoch_confirmed` after every epoch, `final` if the job ends well,
    and `close`. A thread decides when a checkpoint is due; a `Pipeline` takes it from there. A
    checkpoint that fails or takes too long is discarded and leaves its sink transactions to the
    next one.

    Args:
        fence: The attempt, from `CheckpointLog.fence`.
        log: The log that gave the fence.
        storage: The job directory.
        settings: When and how.
        committers: By sink uid; already recovered.
        max_parallelism: Number of key groups.
        parent: Number of the checkpoint the attempt started from.
        config: What manifests record of the configuration.
        history: Gets an event per checkpoint.
        clock: Where time comes from.
        executor: Makes a lane of a name.
        on_failure: Called once, from any thread, when the job has to fail; it must not block.
        holds: What `hold` keeps; a driver gives the same to all its attempts.
        inherited: The files that the attempt starts from, of whichever checkpoint they are.
    """

    def __init__(
        self,
        fence: Fence,
        log: CheckpointLog,
        storage: Storage,
        settings: CheckpointSettings,
        committers: Mapping[str, EpochCommitter],
        *,
        max_parallelism: int,
        parent: int | None = None,
        config: Mapping[str, Any] | None = None,
        history: History | None = None,
        clock: Clock | None = None,
        executor: Callable[[str], Lane] = ThreadLane,
        on_failure: Callable[[BaseException], None] | None = None,
        holds: Holds | None = None,
        inherited: Collection[str] = (),
    ) -> None:
        self._job = fence.job
        self._fence = fence
        self._settings = settings
        self._committers = committers
        self._history = history
        self._clock = clock or SystemClock()
        self._on_failure = on_failure
        self._condition = threading.Condition(threading.RLock())
        self._failure: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._ledger = Ledger(settings, self._now(), inherited)
        self._holds = holds or Holds()
        self._retention = Retention(log, storage, settings.num_retained, self._holds)
        self._steps = Steps(
            fence, log, committers, self._clock, parent, max_parallelism, config or {}
        )
        self._pipeline = Pipeline(
            self._steps,
            self._ledger,
            self._retention,
            self._condition,
            self._now,
            executor,
            self,
        )

    # -- for the driver

    @property
    def failure(self) -> BaseException | None:
        """Why the job has to fail, if it has to."""
        return self._failure

    @property
    def last(self) -> CompletedCheckpoint | None:
        """The newest complete checkpoint of this attempt."""
        return self._ledger.last

    @property
    def completed(self) -> int:
        """How many checkpoints of this attempt are complete."""
        return self._ledger.completed

    @property
    def failed(self) -> int:
        """How many checkpoints of this attempt failed or took too long."""
        return self._ledger.failed

    def under_way(self) -> tuple[UnderWay, ...]:
        """Return the checkpoints that are being taken."""
        with self._condition:
            now, wall = self._now(), self._clock.now_ms()
            return tuple(
                UnderWay(pending.epoch, pending.kind, wall - (now - pending.triggered))
                for pending in self._ledger.in_flight
            )

    def start(self, *, thread: bool = True) -> CheckpointCoordinator:
        """Look at the checkpoints there are, clear up after older attempts, start the thread.

        Args:
            thread: False leaves it to the caller to call `tick`.
        """
        self._holds.watch(self._released)
        self._retention.load()
        self._pipeline.submit_chore(partial(self._pipeline.sweep, self._fence.attempt))
        if thread:
            self._thread = threading.Thread(target=self._run, name="turnback-decider", daemon=True)
            self._thread.start()
        return self

    def epoch_confirmed(self, cut: EpochCut) -> None:
        """Take over a confirmed epoch: all its acknowledgements are in (step 2).

        Raises:
            CheckpointError: Too many checkpoints failed, or a newer attempt has taken over
                (`FencedError`); the job has to fail.
            SinkError: A sink that commits at the end of each epoch could not.
        """
        unknown = sorted(set(cut.transactions) - set(self._committers))
        if unknown:
            raise SinkError(f"job {self._job!r}: there is no committer for the sinks {unknown}")
        with self._condition:
            self.raise_failure()
            self._retention.retire(self._ledger.confirm(cut))
            self._condition.notify_all()
        if self._settings.commits_every_epoch:
            timeout_s = self._settings.timeout_ms / 1000
            try:
                self._pipeline.commit_epoch(cut.epoch, timeout_s, clean=not self._settings.enabled)
            except TimeoutError:
                raise report.commit_timeout(self._job, cut.epoch, self._settings) from None

    def discard_others(self) -> bool:
        """Roll back what tasks have prepared and nobody will commit; only between two epochs.

        Returns:
            Whether it was done; False if it has to be tried again after the next epoch.

        Raises:
            FencedError: A newer attempt has taken over.
            SinkError: A sink did not come to an end with it.
        """
        return self._pipeline.discard_others(self._settings.timeout_ms / 1000)

    def offer(self, cut: EpochCut) -> None:
        """Take what the attempt starts from for its newest epoch, as long as there is none.

        So that a checkpoint can be taken of a job that has had no input yet.
        """
        with self._condition:
            if self._ledger.newest is None:
                self._ledger.confirm(cut)
                self._condition.notify_all()

    def retire(self, paths: Collection[str]) -> None:
        """Delete files that were replaced, once no checkpoint and no running epoch needs them.

        Files that a cut no longer lists are retired without being asked.
        """
        self._retention.retire(paths)

    def trigger(self, kind: str = "manual") -> Future[CompletedCheckpoint]:
        """Ask for a checkpoint of the newest epoch, without waiting for the interval.

        If the newest epoch has one already, that is the answer; before the first epoch, it waits.
        """
        future: Future[CompletedCheckpoint] = Future()
        future.set_running_or_notify_cancel()
        with self._condition:
            if self._failure is not None or self._closed:
                future.set_exception(self._failure or self._ended())
            else:
                self._ledger.requests.append((kind, future))
                self._condition.notify_all()
        return future

    def hold(self, kind: str = "savepoint") -> Future[HeldCheckpoint]:
        """Ask for a checkpoint as `trigger` does, and keep its files until it is released.

        Not even with one retained checkpoint can a file go between completion and hold. Callbacks
        of the future run with the coordinator's lock held and must not block. Whoever stops
        waiting has to release the checkpoint when it comes.
        """
        held: Future[HeldCheckpoint] = Future()
        held.set_running_or_notify_cancel()

        def settle(done: Future[CompletedCheckpoint]) -> None:
            try:
                held.set_result(HeldCheckpoint(done.result(), self._holds))
            except Exception as error:  # noqa: BLE001 (raised by whoever waits)
                held.set_exception(error)

        # Futures are settled with the lock held, while the files are still in use.
        with self._condition:
            self.trigger(kind).add_done_callback(settle)
        return held

    def final(self) -> CompletedCheckpoint | None:
        """Take a last checkpoint of the newest epoch and wait for it; `None` if there is none.

        Failures are tolerated as at any other time, and it is tried again.

        Raises:
            CheckpointError: More failed in a row than is tolerated.
        """
        if not self._settings.enabled:
            return None
        while True:
            with self._condition:
                self.raise_failure()
                if self._ledger.newest is None:
                    return None
                future = self.trigger("final")
                while not future.done():
                    self.tick()
                    if not future.done():
                        self._condition.wait(0.05)
            if future.exception() is None:
                return future.result()
            self.raise_failure()
            self._clock.sleep(0.2)

    def abort_pending(self) -> None:
        """Discard the checkpoints that are not durable yet; that does not count as failure."""
        self._abort(Phase.QUEUED, Phase.WRITING)

    def raise_failure(self) -> None:
        """Raise what makes the job fail, if anything does."""
        if self._failure is not None:
            raise self._failure

    def close(self, *, cancelled: bool = False, timeout_s: float = 30.0) -> None:
        """Stop. What is durable gets time to be committed; what is in no manifest is rolled back.

        Args:
            cancelled: The user cancelled the job, so retention on cancellation applies.
            timeout_s: How long to wait for each lane.
        """
        with self._condition:
            if self._closed:
                return
            self._closed = True
            self._abort(Phase.QUEUED)
            self._refuse_requests()
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        idle = self._pipeline.close(timeout_s)
        if idle and not isinstance(self._failure, FencedError):
            self._steps.roll_back(self._ledger.open.after(self._ledger.manifested_epoch))
            if cancelled:
                self._apply_cancellation()
        if self._history is not None:
            self._history.flush()

    # -- step 1, deciding

    def tick(self) -> float | None:
        """Discard what is overdue and trigger what is due.

        The coordinator's thread does this by itself; tests with a manual clock call it.

        Returns:
            After how many seconds it has to be called again; `None`: when something happens.
        """
        with self._condition:
            now = self._now()
            for pending in self._ledger.overdue(now):
                error = report.timeout_error(self._job, pending, self._settings)
                self.checkpoint_failed(pending, error)
            if self._failure is not None or self._closed:
                return None
            self._ledger.answer_requests()
            decision = decide(now, self._settings, self._ledger.situation())
            if isinstance(decision, Trigger):
                self._pipeline.submit(self._ledger.begin(decision.kind, now))
            waits = [decision.ms] if isinstance(decision, Wait) else []
            deadline = self._ledger.next_deadline()
            if deadline is not None:
                waits.append(deadline - now)
            return max(min(waits), 0) / 1000 if waits else None

    def _run(self) -> None:
        with self._condition:
            while not self._closed:
                try:
                    wait = self.tick()
                except Exception as error:  # noqa: BLE001 (a dead thread would go unnoticed)
                    self._set_failure(error)
                    return
                self._condition.wait(wait)

    # -- how checkpoints end (see `Listener`)

    def checkpoint_completed(self, pending: PendingCheckpoint, done: CompletedCheckpoint) -> None:
        """A checkpoint is durable and committed; called by the pipeline."""
        if not pending.discarded:
            self._record(report.done_event(done))
            self._settle(pending, done)

    def checkpoint_failed(self, pending: PendingCheckpoint, error: BaseException) -> None:
        """A checkpoint failed or took too long; called by the pipeline."""
        if isinstance(error, _FATAL):
            self._set_failure(error)
        if pending.discarded:
            return
        failures = self._ledger.fail(pending, self._now())
        _LOG.warning("checkpoint of epoch %d failed: %s", pending.epoch, error)
        self._record(report.failed_event(pending, error, self._now()))
        if failures > self._settings.tolerable_failures:
            self._set_failure(report.too_many_failures(self._job, failures, self._settings, error))
        self._settle(pending, error)

    def fenced(self, error: FencedError) -> None:
        """A newer attempt has taken over; called by the pipeline."""
        self._set_failure(error)

    def _abort(self, *phases: Phase) -> None:
        error = CheckpointError(f"job {self._job!r}: the checkpoint was aborted")
        with self._condition:
            for pending in list(self._ledger.in_flight):
                if pending.phase in phases:
                    self._ledger.discard(pending, self._now())
                    self._record(report.failed_event(pending, error, self._now()))
                    self._settle(pending, error)

    def _settle(
        self, pending: PendingCheckpoint, outcome: CompletedCheckpoint | BaseException
    ) -> None:
        for future in pending.waiting:
            if isinstance(outcome, CompletedCheckpoint):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
        self._condition.notify_all()

    def _set_failure(self, error: BaseException) -> None:
        with self._condition:
            if self._failure is not None:
                return
            self._failure = error
            self._refuse_requests()
            self._condition.notify_all()
        if self._on_failure is not None:
            self._on_failure(error)

    def _refuse_requests(self) -> None:
        for _, future in self._ledger.requests:
            future.set_exception(self._failure or self._ended())
        self._ledger.requests.clear()

    def _apply_cancellation(self) -> None:
        if self._settings.retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION:
            return
        try:
            # What a manifest has promised is kept before the promise is deleted.
            promised = max((m.epoch for m in self._retention.end()), default=-1)
            self._pipeline.commit_open(max(promised, self._ledger.durable_epoch))
            self._steps.roll_back(self._ledger.open.upto(self._ledger.manifested_epoch))
            self._retention.delete_all()
        except TurnbackError as error:
            _LOG.warning("job %r: the checkpoints were not deleted: %s", self._job, error)

    def _released(self) -> None:
        if self._closed:
            self._retention.delete_released()
        else:
            self._pipeline.submit_clean()

    def _ended(self) -> CheckpointError:
        return CheckpointError(f"job {self._job!r} has ended")

    def _record(self, event: Event) -> None:
        if self._history is not None:
            self._history.add(event)
            self._pipeline.submit_chore(self._history.flush_if_due)

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1000)
