"""How the coordinator words what happened to a checkpoint."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any, Protocol

from turnback.checkpoint.commits import DiscardsOthers, EpochCommitter, Lane
from turnback.checkpoint.ledger import Ledger, PendingCheckpoint, Phase
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import CompletedCheckpoint, Fence, Manifest
from turnback.checkpoint.retention import Retention
from turnback.config.checkpointing import CheckpointSettings
from turnback.core.clock import Clock
from turnback.core.duration import format_duration
from turnback.core.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    ConfigurationError,
    FencedError,
    SinkError,
    StorageError,
)
from turnback.job.history import CheckpointFailed, CheckpointStats


def done_event(done: CompletedCheckpoint) -> CheckpointStats:
    """Return the history event of a complete checkpoint."""
    return CheckpointStats(
        number=done.number,
        epoch=done.epoch,
        trigger=done.manifest.trigger,
        waited_ms=done.waited_ms,
        manifest_ms=done.manifest_ms,
        commit_ms=done.commit_ms,
        delta_bytes=done.bytes_written,
        delta_files=done.files_written,
        full_bytes=done.full_bytes,
        files=done.files,
        sync_ms=done.sync_ms,
        tasks=done.tasks,
    )


def failed_event(pending: PendingCheckpoint, error: BaseException, now: int) -> CheckpointFailed:
    """Return the history event of a discarded checkpoint."""
    return CheckpointFailed(
        epoch=pending.epoch,
        trigger=pending.kind,
        reason=f"{type(error).__name__}: {error}",
        timed_out=isinstance(error, CheckpointTimeoutError),
        number=pending.number,
        after_ms=now - pending.triggered,
    )


def timeout_error(
    job: str, pending: PendingCheckpoint, settings: CheckpointSettings
) -> CheckpointTimeoutError:
    """Return why a checkpoint that took too long was discarded."""
    limit = format_duration(settings.timeout_ms)
    doing = {
        Phase.QUEUED: "it was still waiting for the one before",
        Phase.WRITING: "its manifest was still being written",
    }.get(pending.phase, f"chk-{pending.number} is durable but the sinks were still committing")
    return CheckpointTimeoutError(
        f"job {job!r}: the checkpoint of epoch {pending.epoch} was discarded after {limit} "
        f"(execution.checkpointing.timeout): {doing}. The next one carries its sink transactions"
    )


def commit_timeout(job: str, epoch: int, settings: CheckpointSettings) -> CheckpointTimeoutError:
    """Return why an epoch that commits by itself failed."""
    limit = format_duration(settings.timeout_ms)
    return CheckpointTimeoutError(
        f"job {job!r}: the sinks did not commit epoch {epoch} within {limit} "
        "(execution.checkpointing.timeout)"
    )


def too_many_failures(
    job: str, failures: int, settings: CheckpointSettings, last: BaseException
) -> CheckpointError:
    """Return why the job has to fail."""
    error = CheckpointError(
        f"job {job!r}: {failures} checkpoint(s) failed in a row, {settings.tolerable_failures} "
        "are tolerated (execution.checkpointing.tolerable-failed-checkpoints). The last one: "
        f"{last}"
    )
    error.__cause__ = last
    return error


_LOG = logging.getLogger(__name__)


class Steps:
    """The work of one attempt's checkpoints; when it is done is the coordinator's business.

    Args:
        fence: The attempt.
        log: Where manifests go.
        committers: By sink uid.
        clock: For the time of creation.
        parent: The checkpoint the attempt started from.
        max_parallelism: Number of key groups.
        config: What manifests record of the configuration.
    """

    def __init__(
        self,
        fence: Fence,
        log: CheckpointLog,
        committers: Mapping[str, EpochCommitter],
        clock: Clock,
        parent: int | None,
        max_parallelism: int,
        config: Mapping[str, Any],
    ) -> None:
        self._fence = fence
        self._log = log
        self._committers = committers
        self._clock = clock
        self._parent = parent
        self._max_parallelism = max_parallelism
        self._config = config

    def write_manifest(self, pending: PendingCheckpoint) -> tuple[Manifest, ...]:
        """Step 3. From here on the checkpoint exists; see `CheckpointLog.append`."""
        manifest = pending.manifest(
            self._fence,
            number=self._log.next_number,
            parent=self._parent,
            created_ms=self._clock.now_ms(),
            max_parallelism=self._max_parallelism,
            config=self._config,
        )
        durable = self._log.append(manifest)
        self._parent = durable[-1].number
        return durable

    def commit_sinks(
        self, transactions: Mapping[str, tuple[bytes, ...]], committed: Callable[[str], None]
    ) -> None:
        """Step 4. Tell each sink to commit, and tell `committed` which have.

        Every sink gets its turn, also when one before it failed.

        Raises:
            SinkError: At least one sink did not commit.
            ConfigurationError: A sink cannot commit, and no later try mends it.
        """
        failed: list[tuple[str, BaseException]] = []
        for uid, handles in transactions.items():
            try:
                self._committers[uid].commit(handles)
            except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
                failed.append((uid, error))
            else:
                committed(uid)
        if failed:
            for _, hopeless in failed:
                if isinstance(hopeless, ConfigurationError):
                    raise hopeless
            uid, cause = failed[0]
            raise SinkError(
                f"job {self._fence.job!r}: sink {uid!r} could not commit "
                f"{len(transactions[uid])} transactions: {cause}. They stay prepared and will be "
                "committed with the next checkpoint or after a restart"
            ) from cause

    def record_commit(self, number: int, left: Collection[str] = ()) -> None:
        """Step 5. Record which sinks have no work left to do for a checkpoint.

        Args:
            number: The checkpoint.
            left: Uids of the sinks that could not commit; all others have.
        """
        done = [uid for uid in self._committers if uid not in left] if left else None
        try:
            self._log.record_commit(number, done)
        except StorageError as error:
            # Only a shortcut is lost: without the record the same commits are repeated at start.
            _LOG.warning("the commit of chk-%d could not be recorded: %s", number, error)

    def check_fence(self) -> None:
        """Raise `FencedError` if a newer attempt has taken over."""
        self._log.check_fence()

    def roll_back(self, transactions: Mapping[str, tuple[bytes, ...]]) -> None:
        """At the end, roll back what no manifest holds. What fails is left to the next start."""
        for uid, handles in transactions.items():
            try:
                self._committers[uid].abort(handles)
            except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
                _LOG.warning("sink %r could not roll back: %s", uid, error)

    @property
    def can_discard(self) -> bool:
        """Whether `discard_others` does anything."""
        return any(isinstance(one, DiscardsOthers) for one in self._committers.values())

    def discard_others(self, known: Mapping[str, tuple[bytes, ...]]) -> None:
        """Between epochs, roll back what nobody will commit. What fails is left to the next start.

        Args:
            known: What waits for its commit, by sink uid.
        """
        for uid, committer in self._committers.items():
            if isinstance(committer, DiscardsOthers):
                try:
                    committer.discard_others(known.get(uid, ()))
                except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
                    _LOG.warning("sink %r could not roll back what tasks left: %s", uid, error)


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
