from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Protocol

from turnback.coordinator.completed import CompletedCheckpoint
from turnback.coordinator.lane import Lane
from turnback.coordinator.ledger import Ledger
from turnback.coordinator.manifest import Manifest
from turnback.coordinator.pending import PendingCheckpoint
from turnback.coordinator.retention import Retention
from turnback.coordinator.steps import Steps
from turnback.core.errors import FencedError, SinkError, StorageError

_LOG = logging.getLogger(__name__)


class Listener(Protocol):
    """Hears how checkpoints end. Called with the lock held; must not block."""

    def checkpoint_completed(self, pending: PendingCheckpoint, done: CompletedCheckpoint) -> None:
        """A checkpoint is durable and committed, in time or late."""

    def checkpoint_failed(self, pending: PendingCheckpoint, error: BaseException) -> None:
        """A checkpoint failed, in time or late."""

    def fenced(self, error: FencedError) -> None:
        """A newer attempt has taken over."""


class Pipeline:
    """Carries checkpoints through steps 3 to 5, beside the epochs.

    Manifests are written in one lane and sinks commit in another, so that a slow sink does not
    hold up the next manifest. Within a lane everything happens in order: a sink never sees two
    commits at once, nor a newer one before an older.

    Args:
        steps: What is done.
        ledger: What is known.
        retention: Cleans up.
        lock: Guards the ledger; never held during a step.
        now: Milliseconds of the monotonic clock.
        executor: Makes a lane of a name.
        listener: Hears how checkpoints end.
    """

    def __init__(
        self,
        steps: Steps,
        ledger: Ledger,
        retention: Retention,
        lock: threading.Condition,
        now: Callable[[], int],
        executor: Callable[[str], Lane],
        listener: Listener,
    ) -> None:
        self._steps = steps
        self._ledger = ledger
        self._retention = retention
        self._lock = lock
        self._now = now
        self._listener = listener
        self._manifest_lane = executor("manifest")
        self._commit_lane = executor("commit")

    def submit(self, pending: PendingCheckpoint) -> None:
        """Start a checkpoint on its way."""
        self._manifest_lane.submit(partial(self._persist, pending))

    def submit_chore(self, chore: Callable[[], None]) -> None:
        """Run something after the commits so far; no checkpoint depends on it."""
        self._commit_lane.submit(partial(self._run_chore, chore))

    def commit_epoch(self, epoch: int, timeout_s: float, *, clean: bool) -> None:
        """Commit everything up to an epoch, without a manifest, and wait for it.

        Args:
            epoch: The epoch.
            timeout_s: How long to wait; then `TimeoutError`.
            clean: Also delete what is not needed any more.
        """
        done: Future[None] = Future()

        def job() -> None:
            try:
                # With no manifest in between, this is what keeps a zombie from committing.
                self._steps.check_fence()
                self.commit_open(epoch)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 (raised by the caller)
                done.set_exception(error)
                return
            if clean:
                self._run_chore(self._clean)

        self._commit_lane.submit(job)
        done.result(timeout_s)

    def commit_open(self, epoch: int) -> None:
        """Commit all open transactions up to an epoch; only within the commit lane."""
        with self._lock:
            transactions = self._ledger.open.upto(epoch)

        def committed(uid: str) -> None:
            with self._lock:
                self._ledger.open.committed(uid, epoch)

        self._steps.commit_sinks(transactions, committed)

    def _commit_and_record(self, epoch: int, number: int) -> None:
        """Commit what a durable manifest holds; one sink's failure says nothing about another's."""
        try:
            self.commit_open(epoch)
        finally:
            with self._lock:
                left = self._ledger.open.upto(epoch)
            self._steps.record_commit(number, left)

    def discard_others(self, timeout_s: float) -> bool:
        """Roll back what no open transaction is of, after the commits so far, and wait for it.

        No epoch may be running: what its tasks prepare is not open yet.

        Args:
            timeout_s: How long to wait, first for the commits and then for the sinks.

        Returns:
            Whether it was done; False if the commits or the storage took too long.

        Raises:
            FencedError: A newer attempt has taken over.
            SinkError: A sink took too long.
        """
        if not self._steps.can_discard:
            return True
        done: Future[None] = Future()

        def job() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits any more, and an epoch may be running
            try:
                # A replaced driver would roll back what its successor has prepared.
                self._steps.check_fence()
                with self._lock:
                    known = self._ledger.open.upto(sys.maxsize)
                self._steps.discard_others(known)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 (raised by the caller)
                done.set_exception(error)

        self._commit_lane.submit(job)
        try:
            if not wait((done,), timeout_s).done and not done.cancel():
                wait((done,), timeout_s)
            if not done.done():
                raise SinkError(f"a sink has not rolled back what tasks left in {timeout_s:g} s")
            done.result()
        except (CancelledError, StorageError) as error:
            _LOG.warning("what tasks left prepared is rolled back later: %s", error or "busy")
            return False
        return True

    def submit_clean(self) -> None:
        """Delete what is not needed any more, after the commits so far."""
        self.submit_chore(self._clean)

    def sweep(self, attempt: int) -> None:
        """Delete what attempts before this one left behind."""
        self._retention.sweep(attempt, self._in_use)

    def close(self, timeout_s: float) -> bool:
        """Take no more work; return whether all of it ended within the time.

        What a durable manifest holds and no sink has committed yet gets a last chance, so that it
        need not wait for the next start of the job.
        """
        if not self._manifest_lane.close(timeout_s):
            return False
        self._commit_lane.submit(self._commit_leftovers)
        return self._commit_lane.close(timeout_s)

    def _persist(self, pending: PendingCheckpoint) -> None:
        with self._lock:
            if not self._ledger.start_writing(pending, self._now()):
                return
        try:
            durable = self._steps.write_manifest(pending)
        except BaseException as error:  # noqa: BLE001 (the listener decides)
            with self._lock:
                self._ledger.write_failed(pending)
                self._listener.checkpoint_failed(pending, error)
            return
        with self._lock:
            for manifest in durable:
                self._retention.add(manifest)
            wanted = self._ledger.written(pending, durable[-1], self._now())
        if wanted:
            self._commit_lane.submit(partial(self._conclude, pending, durable[-1]))

    def _conclude(self, pending: PendingCheckpoint, manifest: Manifest) -> None:
        try:
            self._commit_and_record(manifest.epoch, manifest.number)
        except BaseException as error:  # noqa: BLE001 (the listener decides)
            with self._lock:
                self._listener.checkpoint_failed(pending, error)
            return
        with self._lock:
            done = self._ledger.complete(pending, manifest, self._now())
            self._listener.checkpoint_completed(pending, done)
        self._run_chore(self._clean)

    def _commit_leftovers(self) -> None:
        try:
            ledger = self._ledger
            if ledger.open.upto(ledger.durable_epoch):
                self._steps.check_fence()
                self._commit_and_record(ledger.durable_epoch, ledger.durable_number)
        except Exception as error:  # noqa: BLE001 (the next start commits them)
            _LOG.warning("sink work is left to the next start of the job: %s", error)

    def _clean(self) -> None:
        self._retention.clean(self._in_use)

    def _run_chore(self, chore: Callable[[], None]) -> None:
        try:
            chore()
        except FencedError as error:
            with self._lock:
                self._listener.fenced(error)
        except Exception as error:  # noqa: BLE001 (no checkpoint depends on it)
            _LOG.warning("clean-up failed, trying again later: %s", error)

    def _in_use(self) -> set[str]:
        with self._lock:
            return self._ledger.in_use()
