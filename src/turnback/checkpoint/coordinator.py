"""When checkpoints are taken, and what follows from how they end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future

from turnback.checkpoint.commits import Committers, EpochCommitter
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import EpochCut, Manifest
from turnback.checkpoint.protocol import (
    CommitProtocol,
    Ledger,
    PendingCheckpoint,
    Phase,
    SerialExecutor,
    SerialThread,
)
from turnback.checkpoint.retention import PinnedCheckpoint, PinnedFiles, Retention
from turnback.config.checkpointing import CheckpointSettings
from turnback.config.checkpointing import ExternalizedCheckpointRetention as Retain
from turnback.core.clock import Clock, SystemClock
from turnback.core.units import format_duration
from turnback.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    SinkError,
)
from turnback.job.history import CheckpointStats, Event, History
from turnback.job.status import CheckpointInProgress

_LOG = logging.getLogger(__name__)
_NEVER_TOLERATED = (FencedError, CorruptFileError, ConfigurationError)


class CheckpointCoordinator:
    """Takes the checkpoints of one attempt beside its epochs.

    The driver calls `start`, `epoch_confirmed` after every epoch, `final` if the job ends well, and
    `close`. A thread decides when a checkpoint is due and hands it to the `CommitProtocol`. A
    checkpoint that fails or takes too long is discarded and leaves its sink transactions to the
    next one. When the job has to fail, `failure` is set.

    Args:
        log: The checkpoint log, in which the attempt has taken its fence.
        committers: By sink uid; already recovered.
        parent: Number of the checkpoint the attempt started from.
        on_failure: Called once, from any thread, when the job has to fail; it must not block.
        pins: The pinned files; a driver shares one object between its attempts.
        inherited: The files that the attempt starts from, of whichever checkpoint they are.
    """

    def __init__(
        self,
        log: CheckpointLog,
        settings: CheckpointSettings,
        committers: Mapping[str, EpochCommitter],
        *,
        max_parallelism: int,
        parent: int | None = None,
        history: History | None = None,
        clock: Clock | None = None,
        executor: Callable[[str], SerialExecutor] = SerialThread,
        on_failure: Callable[[BaseException], None] | None = None,
        pins: PinnedFiles | None = None,
        inherited: Collection[str] = (),
    ) -> None:
        self._job = log.own_fence.job
        self._settings = settings
        self._committers = Committers(self._job, committers)
        self._history = history
        self._clock = clock or SystemClock()
        self._on_failure = on_failure
        self._condition = threading.Condition(threading.RLock())
        self.failure: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._ledger = Ledger(settings, self._now(), inherited)
        self._pins = pins or PinnedFiles()
        self._retention = Retention(log, settings.num_retained, self._pins)
        self._protocol = CommitProtocol(
            log,
            self._committers,
            self._ledger,
            self._retention,
            self._condition,
            self._clock,
            executor,
            on_end=self._checkpoint_ended,
            on_failure=self._set_failure,
            parent=parent,
            max_parallelism=max_parallelism,
        )

    # -- for the driver

    @property
    def last(self) -> Manifest | None:
        """The newest complete checkpoint of this attempt."""
        return self._ledger.last

    @property
    def completed(self) -> int:
        return self._ledger.completed

    @property
    def failed(self) -> int:
        return self._ledger.failed

    def under_way(self) -> tuple[CheckpointInProgress, ...]:
        with self._condition:
            now = self._now()
            wall = self._clock.now_ms()
            return tuple(
                CheckpointInProgress(
                    pending.epoch, pending.trigger, wall - (now - pending.triggered)
                )
                for pending in self._ledger.in_flight
            )

    def start(self, *, thread: bool = True) -> CheckpointCoordinator:
        """Load the retained checkpoints, clean up after older attempts, start the thread.

        Without the thread, the caller has to call `tick`.
        """
        self._pins.on_unpin(self._unpinned)
        self._retention.load()
        self._protocol.submit_chore(self._protocol.sweep)
        if thread:
            self._thread = threading.Thread(
                target=self._run, name="turnback-coordinator", daemon=True
            )
            self._thread.start()
        return self

    def epoch_confirmed(self, cut: EpochCut) -> None:
        """Note that an epoch is confirmed: all its acknowledgements are in.

        Raises:
            CheckpointError: Too many checkpoints failed, or a newer attempt has taken over
                (`FencedError`); the job has to fail.
            SinkError: A sink that commits at the end of each epoch could not.
        """
        unknown = sorted(set(cut.transactions) - self._committers.uids)
        if unknown:
            raise SinkError(f"job {self._job!r}: there is no committer for the sinks {unknown}")
        with self._condition:
            self.raise_failure()
            self._retention.retire(self._ledger.confirm(cut))
            self._condition.notify_all()
        # What a drain brings out early becomes visible with the checkpoint that ends the job.
        if self._settings.commits_every_epoch and not cut.drained_by:
            timeout_s = self._settings.timeout_ms / 1000
            try:
                self._protocol.commit_epoch(cut.epoch, timeout_s, clean=not self._settings.enabled)
            except TimeoutError:
                raise CheckpointTimeoutError(
                    f"job {self._job!r}: the sinks did not commit epoch {cut.epoch} within "
                    f"{self._timeout()}"
                ) from None

    def abort_orphans(self) -> bool:
        """Roll back what nobody will commit, between two epochs; see `CommitProtocol`."""
        return self._protocol.abort_orphans(self._settings.timeout_ms / 1000)

    def offer(self, cut: EpochCut) -> None:
        """Make what the attempt starts from its newest epoch, if it has had no input yet."""
        with self._condition:
            if self._ledger.newest is None:
                self._ledger.confirm(cut)
                self._condition.notify_all()

    def retire(self, paths: Collection[str]) -> None:
        """Delete files that were replaced, once no checkpoint and no running epoch needs them."""
        self._retention.retire(paths)

    def trigger(self, kind: str = "manual") -> Future[Manifest]:
        """Request a checkpoint of the newest epoch, without waiting for the interval.

        If the newest epoch has one already, that is the answer; before the first epoch, it waits.
        """
        future: Future[Manifest] = Future()
        future.set_running_or_notify_cancel()
        with self._condition:
            if self.failure is not None or self._closed:
                future.set_exception(self._refusal())
            else:
                self._ledger.requests.append((kind, future))
                self._condition.notify_all()
        return future

    def pin(self, kind: str = "savepoint") -> Future[PinnedCheckpoint]:
        """Trigger a checkpoint and pin its files until it is released, waited for or not.

        Callbacks of the future run with the coordinator's lock held and must not block.
        """
        pinned: Future[PinnedCheckpoint] = Future()
        pinned.set_running_or_notify_cancel()

        def settle(done: Future[Manifest]) -> None:
            try:
                pinned.set_result(PinnedCheckpoint(done.result(), self._pins))
            except Exception as error:  # noqa: BLE001 (raised by whoever waits)
                pinned.set_exception(error)

        # Futures are settled with the lock held, while the files are still in use.
        with self._condition:
            self.trigger(kind).add_done_callback(settle)
        return pinned

    def final(self) -> Manifest | None:
        """Take a last checkpoint of the newest epoch and wait for it; `None` if there is none.

        It is tried again until more have failed in a row than is tolerated.
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

    def raise_failure(self) -> None:
        """Raise the error that makes the job fail, if there is one."""
        if self.failure is not None:
            raise self.failure

    def close(self, *, cancelled: bool = False, timeout_s: float = 30.0) -> None:
        """Stop. What is durable gets time to be committed; what is in no manifest is rolled back.

        If the user `cancelled` the job, retention on cancellation applies.
        """
        with self._condition:
            if self._closed:
                return
            self._closed = True
            self._discard_queued()
            self._refuse_requests()
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        idle = self._protocol.close(timeout_s)
        if idle and not isinstance(self.failure, FencedError):
            self._committers.roll_back(self._ledger.open.after(self._ledger.manifested_epoch))
            if cancelled and self._settings.retention is Retain.DELETE_ON_CANCELLATION:
                self._protocol.delete_all()
        if self._history is not None:
            self._history.flush()

    # -- deciding

    def tick(self) -> float | None:
        """Discard what is overdue and trigger what is due; the coordinator's thread calls it.

        Returns after how many seconds it has to be called again; `None`: when something happens.
        """
        with self._condition:
            now = self._now()
            for pending in self._ledger.overdue(now):
                error = CheckpointTimeoutError(
                    f"job {self._job!r}: the checkpoint of epoch {pending.epoch} was discarded "
                    f"after {self._timeout()}: {pending.progress()}. The next checkpoint "
                    "includes its sink transactions"
                )
                self._checkpoint_ended(pending, error)
            if self.failure is not None or self._closed:
                return None
            self._ledger.answer_requests()
            decision = self._ledger.decide(now)
            if decision.trigger is not None:
                self._protocol.take(self._ledger.begin(decision.trigger, now))
            elif decision.commits_waiting:
                self._ledger.ask_again(now)
                self._protocol.commit_waiting()
            due = [decision.wait_ms, self._ledger.until_timeout(now)]
            wait_ms = min((wait for wait in due if wait is not None), default=None)
            return None if wait_ms is None else max(wait_ms, 0) / 1000

    def _run(self) -> None:
        with self._condition:
            while not self._closed:
                try:
                    wait = self.tick()
                except Exception as error:  # noqa: BLE001 (a dead thread would go unnoticed)
                    self._set_failure(error)
                    return
                self._condition.wait(wait)

    # -- how checkpoints end

    def _checkpoint_ended(
        self, pending: PendingCheckpoint, result: CheckpointStats | BaseException
    ) -> None:
        if isinstance(result, _NEVER_TOLERATED):
            self._set_failure(result)
        if pending.is_discarded:
            return
        if isinstance(result, CheckpointStats):
            self._record(result)
            assert self._ledger.last is not None
            self._answer(pending, self._ledger.last)
            return
        failures = self._ledger.fail(pending, self._now())
        _LOG.warning("checkpoint of epoch %d failed: %s", pending.epoch, result)
        self._record(pending.failed(result, self._now()))
        if failures > self._settings.tolerable_failures:
            error = CheckpointError(
                f"job {self._job!r}: {failures} checkpoint(s) failed in a row, but only "
                f"{self._settings.tolerable_failures} are tolerated "
                "(execution.checkpointing.tolerable-failed-checkpoints). The last failure: "
                f"{result}"
            )
            error.__cause__ = result
            self._set_failure(error)
        self._answer(pending, result)

    def _discard_queued(self) -> None:
        error = CheckpointError(f"job {self._job!r}: the checkpoint was aborted")
        for pending in list(self._ledger.in_flight):
            if pending.phase is Phase.QUEUED:
                self._ledger.discard(pending, self._now())
                self._record(pending.failed(error, self._now()))
                self._answer(pending, error)

    def _answer(self, pending: PendingCheckpoint, result: Manifest | BaseException) -> None:
        for future in pending.waiting:
            if isinstance(result, Manifest):
                future.set_result(result)
            else:
                future.set_exception(result)
        self._condition.notify_all()

    def _set_failure(self, error: BaseException) -> None:
        with self._condition:
            if self.failure is not None:
                return
            self.failure = error
            self._refuse_requests()
            self._condition.notify_all()
        if self._on_failure is not None:
            self._on_failure(error)

    def _refuse_requests(self) -> None:
        for _, future in self._ledger.requests:
            future.set_exception(self._refusal())
        self._ledger.requests.clear()

    def _refusal(self) -> BaseException:
        return self.failure or CheckpointError(f"job {self._job!r} has ended")

    def _unpinned(self) -> None:
        if self._closed:
            self._retention.delete_released()
        else:
            self._protocol.submit_chore(self._protocol.clean_up)

    def _timeout(self) -> str:
        return f"{format_duration(self._settings.timeout_ms)} (execution.checkpointing.timeout)"

    def _record(self, event: Event) -> None:
        if self._history is not None:
            self._history.add(event)
            self._protocol.submit_chore(self._history.flush_if_due)

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1000)
