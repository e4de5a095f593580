"""The commit protocol, through which every checkpoint goes.

1. The cut is taken: at the barriers of an epoch each task writes its state and prepares the output
   of its sinks.
2. The acknowledgements are complete: the driver confirms the epoch, and with it the cut.
3. The manifest is persisted, put-if-absent in the next slot of the checkpoint log. This is the only
   commit point: a crash before it leaves no checkpoint, a crash after it a complete one.
4. The sinks commit what the manifest holds, and that is recorded. A sink may let the output of
   some checkpoints wait, to publish it at once: later manifests go on holding it.
5. Clean-up: retention drops old checkpoints and the files nobody references any more.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Protocol

from turnback.checkpoint.commits import Committers, OpenTransactions
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import EpochCut, Fence, Manifest
from turnback.checkpoint.retention import Retention
from turnback.config.checkpointing import CheckpointSettings
from turnback.core.clock import Clock
from turnback.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    ConfigurationError,
    FencedError,
    SinkError,
    StorageError,
    TurnbackError,
)
from turnback.job.history import CheckpointFailed, CheckpointStats

PERIODIC = "periodic"
"""The trigger of checkpoints that nobody has asked for."""


@dataclass(frozen=True)
class Decision:
    """Take a checkpoint now, because of `trigger`, or decide again after `wait_ms`.

    `None` waits until something happens. With `commits_waiting` there is nothing new, but sinks
    let output wait, and are asked again as if there was another checkpoint.
    """

    trigger: str | None = None
    wait_ms: int | None = None
    commits_waiting: bool = False


class Phase(Enum):
    """How far a pending checkpoint has got."""

    QUEUED = auto()
    WRITING = auto()
    COMMITTING = auto()
    COMPLETED = auto()
    DISCARDED = auto()


@dataclass(eq=False)
class PendingCheckpoint:
    """A checkpoint under way: a cut that becomes a manifest, or is discarded without a trace.

    Not thread-safe; the coordinator guards it. Times are milliseconds of the monotonic clock. The
    transactions are all open ones up to the cut, and the number is known once its manifest is
    durable; `waiting` are the futures of those who requested it.
    """

    trigger: str
    cut: EpochCut
    transactions: dict[str, tuple[bytes, ...]]
    triggered: int
    waiting: list[Future[Manifest]]
    phase: Phase = Phase.QUEUED
    number: int | None = None
    write_began: int = 0
    write_ended: int = 0

    @property
    def epoch(self) -> int:
        return self.cut.epoch

    @property
    def is_discarded(self) -> bool:
        return self.phase is Phase.DISCARDED

    def manifest(
        self, fence: Fence, *, parent: int | None, created_ms: int, max_parallelism: int
    ) -> Manifest:
        """Return the manifest of the cut; the log gives it its number."""
        return Manifest(
            job=fence.job,
            job_id=fence.job_id,
            number=0,
            attempt=fence.attempt,
            epoch=self.cut.epoch,
            created_ms=created_ms,
            trigger=self.trigger,
            parent=parent,
            max_parallelism=max_parallelism,
            sources=dict(self.cut.sources),
            state=tuple(self.cut.state),
            schemas=tuple(self.cut.schemas),
            operators=tuple(self.cut.operators),
            transactions=self.transactions,
            watermarks=dict(self.cut.watermarks),
            redriven=self.cut.redriven,
            drained_by=self.cut.drained_by,
        )

    def failed(self, error: BaseException, now: int) -> CheckpointFailed:
        return CheckpointFailed(
            epoch=self.epoch,
            trigger=self.trigger,
            reason=f"{type(error).__name__}: {error}",
            timed_out=isinstance(error, CheckpointTimeoutError),
            number=self.number,
            after_ms=now - self.triggered,
        )

    def progress(self) -> str:
        if self.phase is Phase.QUEUED:
            return "it was still waiting for the previous checkpoint"
        if self.phase is Phase.WRITING:
            return "its manifest was still being written"
        return f"chk-{self.number} is durable but the sinks were still committing"


class Ledger:
    """What the coordinator knows: the newest cut, checkpoints under way, requests, failures.

    The coordinator guards it with its lock. Times are milliseconds of the monotonic clock. The
    `inherited` files are those the attempt started from, needed until a checkpoint of its own is
    durable: the next start may need them again, and retention need not have their checkpoint.
    """

    def __init__(
        self, settings: CheckpointSettings, started: int, inherited: Collection[str] = ()
    ) -> None:
        self._settings = settings
        self._started = started
        self.open = OpenTransactions()
        self.newest: EpochCut | None = None
        self.last: Manifest | None = None
        """The newest checkpoint that is durable and committed."""
        self.in_flight: list[PendingCheckpoint] = []
        self.requests: list[tuple[str, Future[Manifest]]] = []
        self.completed = 0
        self.failed = 0
        self.failures_in_a_row = 0
        self.manifested_epoch = -1
        """No manifest holds transactions of a later epoch, not even one of unknown outcome."""
        self.durable_epoch = -1
        """A durable manifest holds the transactions of all epochs up to this one."""
        self.durable_number = 0
        """The number of that manifest."""
        self._inherited = frozenset(inherited)
        self._live = self._inherited
        # Their manifests may still become durable, even if they are discarded meanwhile.
        self._writing: set[PendingCheckpoint] = set()
        # Files of manifests of which it is not known whether they were written.
        self._uncertain: set[str] = set()
        self._covered_epoch = -1
        self._known_files: dict[str, int] = {}
        self._last_trigger: int | None = None
        self._last_end: int | None = None

    # -- events

    def confirm(self, cut: EpochCut) -> frozenset[str]:
        """Note that an epoch is confirmed; return the files that are not live any more."""
        if self.newest is not None and cut.epoch <= self.newest.epoch:
            raise CheckpointError(
                f"epoch {cut.epoch} was confirmed after epoch {self.newest.epoch}"
            )
        self.open.add(cut.epoch, cut.transactions)
        self.newest = cut
        before = self._live
        self._live = cut.paths
        return before - self._live

    def begin(self, trigger: str, now: int) -> PendingCheckpoint:
        """Make a pending checkpoint of the newest cut; it answers all requests so far."""
        assert self.newest is not None
        waiting = [future for _, future in self.requests]
        self.requests.clear()
        transactions = self.open.upto(self.newest.epoch)
        pending = PendingCheckpoint(trigger, self.newest, transactions, now, waiting)
        self.in_flight.append(pending)
        self._last_trigger = now
        return pending

    def start_writing(self, pending: PendingCheckpoint, now: int) -> bool:
        """Return whether the manifest is still wanted; from now on it may become durable."""
        if pending.is_discarded:
            return False
        pending.phase = Phase.WRITING
        pending.write_began = now
        self._writing.add(pending)
        self.manifested_epoch = max(self.manifested_epoch, pending.epoch)
        return True

    def written(self, pending: PendingCheckpoint, manifest: Manifest, now: int) -> bool:
        """Note that the manifest is durable; return whether the checkpoint is still wanted."""
        pending.write_ended = now
        pending.number = manifest.number
        self.durable_epoch = max(self.durable_epoch, manifest.epoch)
        self.durable_number = max(self.durable_number, manifest.number)
        self._writing.remove(pending)
        self._uncertain.clear()
        if not pending.is_discarded:
            pending.phase = Phase.COMMITTING
        return not pending.is_discarded

    def write_failed(self, pending: PendingCheckpoint) -> None:
        """Note that the manifest may or may not be durable; the next write will tell."""
        self._uncertain |= pending.cut.paths
        self._writing.remove(pending)

    def complete(self, pending: PendingCheckpoint, manifest: Manifest, now: int) -> CheckpointStats:
        """Note that everything up to the checkpoint is durable and committed."""
        files = manifest.files()
        new = [length for path, length in files.items() if path not in self._known_files]
        self._known_files = files
        self._covered_epoch = max(self._covered_epoch, manifest.epoch)
        self.last = manifest
        if not pending.is_discarded:
            self.completed += 1
            self.failures_in_a_row = 0
            pending.phase = Phase.COMPLETED
            self._end(pending, now)
        return CheckpointStats(
            number=manifest.number,
            epoch=manifest.epoch,
            trigger=manifest.trigger,
            waited_ms=pending.write_began - pending.triggered,
            manifest_ms=pending.write_ended - pending.write_began,
            commit_ms=now - pending.write_ended,
            delta_bytes=sum(new),
            delta_files=len(new),
            full_bytes=sum(files.values()),
            files=len(files),
            sync_ms=pending.cut.sync_ms,
            tasks=pending.cut.tasks,
        )

    def discard(self, pending: PendingCheckpoint, now: int) -> None:
        """Give a checkpoint up; its transactions stay open."""
        if pending.phase is Phase.QUEUED:
            # It stays in the queue for as long as the write before it takes: keep only its epoch.
            pending.cut = EpochCut(pending.epoch, {})
            pending.transactions = {}
        pending.phase = Phase.DISCARDED
        self._end(pending, now)

    def fail(self, pending: PendingCheckpoint, now: int) -> int:
        """Give a checkpoint up because it failed; return how many have in a row."""
        self.discard(pending, now)
        self.failed += 1
        self.failures_in_a_row += 1
        return self.failures_in_a_row

    def answer_requests(self) -> None:
        """Answer requests with the last checkpoint, if that covers the newest epoch already."""
        if self.last is None or self.in_flight or self._has_changed() or self._has_waiting():
            return
        for _, future in self.requests:
            future.set_result(self.last)
        self.requests.clear()

    # -- decisions

    def decide(self, now: int) -> Decision:
        """Decide whether a checkpoint is due.

        Requests wait for neither the interval nor the pause, only for `max_concurrent`.
        """
        settings = self._settings
        changed = self._has_changed()
        waiting = not changed and not self.in_flight and self._has_waiting()
        if not (changed or waiting) or len(self.in_flight) >= settings.max_concurrent:
            return Decision()
        if self.requests:
            kinds = [kind for kind, _ in self.requests]
            return Decision("final" if "final" in kinds else kinds[0])
        if settings.interval_ms is None:
            return Decision()
        last = self._started if self._last_trigger is None else self._last_trigger
        due = last + settings.interval_ms
        if self._last_end is not None:
            due = max(due, self._last_end + settings.min_pause_ms)
        if now < due:
            return Decision(wait_ms=due - now)
        return Decision(commits_waiting=True) if waiting else Decision(PERIODIC)

    def ask_again(self, now: int) -> None:
        """Note that sinks with waiting output are asked, in place of a checkpoint."""
        self._last_trigger = now

    def overdue(self, now: int) -> list[PendingCheckpoint]:
        """Return the checkpoints that have taken too long."""
        return [p for p in self.in_flight if now - p.triggered >= self._settings.timeout_ms]

    def until_timeout(self, now: int) -> int | None:
        """Return in how many milliseconds the oldest checkpoint under way takes too long."""
        oldest = min((p.triggered for p in self.in_flight), default=None)
        return None if oldest is None else oldest + self._settings.timeout_ms - now

    def in_use(self) -> set[str]:
        """Return the files that the running epoch or a checkpoint under way needs."""
        # One that commits may have lost its manifest to retention, and can still be pinned.
        under_way = (*self.in_flight, *self._writing)
        started_from = self._inherited if self.durable_epoch < 0 else ()
        return self._uncertain.union(self._live, started_from, *(p.cut.paths for p in under_way))

    def _end(self, pending: PendingCheckpoint, now: int) -> None:
        self.in_flight.remove(pending)
        self._last_end = now

    def _has_waiting(self) -> bool:
        """Whether a sink has let output of a complete checkpoint wait."""
        return self.open.has_upto(self._covered_epoch)

    def _has_changed(self) -> bool:
        """Whether there is an epoch that no checkpoint covers."""
        if self.newest is None:
            return False
        under_way = (pending.epoch for pending in self.in_flight)
        return self.newest.epoch > max(under_way, default=self._covered_epoch)


_LOG = logging.getLogger(__name__)


class SerialExecutor(Protocol):
    """Runs tasks one at a time, in the order given."""

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task after all given before. Tasks do not raise."""

    def close(self, timeout_s: float) -> bool:
        """Take no more tasks; return whether all given ones ended within the time."""


class SerialThread:
    """A serial executor with one thread, started when there is something to do.

    The thread is a daemon: storage that never answers must not keep a finished driver alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)
        with self._lock:
            if self._thread is None:
                name = f"turnback-{self._name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def close(self, timeout_s: float) -> bool:
        with self._lock:
            thread = self._thread
        if thread is None:
            return True
        self._tasks.put(None)
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it may hold a whole cut while the thread waits for the next one


class CommitProtocol:
    """Takes the checkpoints of one attempt, beside its epochs.

    Manifests are persisted in one thread and sinks commit in another, so that a slow sink does not
    hold up the next manifest. Within a thread everything happens in order: a sink never sees two
    commits at once, nor a newer one before an older.

    Args:
        log: Where manifests go; it has taken the attempt's fence.
        lock: Guards the ledger; never held during a step.
        on_end: Called with the lock held when a checkpoint has ended, in time or late: with its
            measurements if it is durable and committed, else with the error. Must not block.
        on_failure: Called with the lock held when the job has to fail beside its checkpoints, such
            as when a newer attempt has taken over.
        parent: The checkpoint the attempt started from.
    """

    def __init__(
        self,
        log: CheckpointLog,
        committers: Committers,
        ledger: Ledger,
        retention: Retention,
        lock: threading.Condition,
        clock: Clock,
        executor: Callable[[str], SerialExecutor],
        *,
        on_end: Callable[[PendingCheckpoint, CheckpointStats | BaseException], None],
        on_failure: Callable[[TurnbackError], None],
        parent: int | None,
        max_parallelism: int,
    ) -> None:
        self._log = log
        self._committers = committers
        self._ledger = ledger
        self._retention = retention
        self._lock = lock
        self._clock = clock
        self._on_end = on_end
        self._on_failure = on_failure
        self._parent = parent
        self._max_parallelism = max_parallelism
        self._manifest_thread = executor("manifest")
        self._commit_thread = executor("commit")

    # -- a checkpoint

    def take(self, pending: PendingCheckpoint) -> None:
        """Take a checkpoint, and call `on_end` at its end."""
        self._advance(pending, self._steps(pending))

    def _steps(self, pending: PendingCheckpoint) -> Iterator[SerialExecutor]:
        """The protocol. Each `yield` says in which thread the next step runs."""
        # 1. The cut is taken: every task has written its state and prepared its sinks' output.
        # 2. The acknowledgements are complete: only then is an epoch confirmed and here.
        yield self._manifest_thread

        # 3. The manifest is persisted: from here on the checkpoint exists.
        manifest = self._persist_manifest(pending)
        if manifest is None:
            return
        yield self._commit_thread

        # 4. The sinks commit what the manifest holds.
        flush = pending.trigger != PERIODIC  # who asks for a checkpoint wants its output as well
        self._commit_manifest(manifest.epoch, manifest.number, flush=flush)
        with self._lock:
            stats = self._ledger.complete(pending, manifest, self._now())
            self._on_end(pending, stats)

        # 5. Clean-up: no checkpoint depends on it.
        self._run_chore(self.clean_up)

    def _advance(self, pending: PendingCheckpoint, steps: Iterator[SerialExecutor]) -> None:
        try:
            thread = next(steps, None)
        except BaseException as error:
            if pending.phase is Phase.COMPLETED:
                raise  # something ends this very thread during clean-up
            with self._lock:
                self._on_end(pending, error)
            return
        if thread is not None:
            thread.submit(partial(self._advance, pending, steps))

    def _persist_manifest(self, pending: PendingCheckpoint) -> Manifest | None:
        """Write the manifest; `None` if the checkpoint was discarded before or meanwhile."""
        with self._lock:
            if not self._ledger.start_writing(pending, self._now()):
                return None
        try:
            durable = self._log.append(
                pending.manifest(
                    self._log.own_fence,
                    parent=self._parent,
                    created_ms=self._clock.now_ms(),
                    max_parallelism=self._max_parallelism,
                )
            )
        except BaseException:
            with self._lock:
                self._ledger.write_failed(pending)
            raise
        manifest = durable[-1]
        self._parent = manifest.number
        with self._lock:
            for one in durable:
                self._retention.add(one)
            return manifest if self._ledger.written(pending, manifest, self._now()) else None

    def commit_up_to(self, epoch: int, *, flush: bool = True) -> None:
        """Commit the open transactions up to an epoch; only in the commit thread."""
        with self._lock:
            transactions = self._ledger.open.upto(epoch)

        def committed(uid: str) -> None:
            with self._lock:
                self._ledger.open.committed(uid, epoch)

        self._committers.commit(transactions, committed, flush=flush)

    def _commit_manifest(self, epoch: int, number: int, *, flush: bool = True) -> None:
        """Commit what a durable manifest holds, and record which sinks have no work left."""
        try:
            self.commit_up_to(epoch, flush=flush)
        finally:
            with self._lock:
                left = self._ledger.open.upto(epoch)
            try:
                done = self._committers.uids - set(left) if left else None
                self._log.record_commit(number, done, self._committers.target_versions())
            except StorageError as error:
                # Without the record the same commits are repeated at the next start.
                _LOG.warning("cannot record the commit of chk-%d: %s", number, error)

    # -- beside checkpoints

    def commit_epoch(self, epoch: int, timeout_s: float, *, clean: bool) -> None:
        """Commit everything up to an epoch, without a manifest, and wait for it."""
        done: Future[None] = Future()

        def commit() -> None:
            try:
                # With no manifest in between, this is what keeps a zombie from committing.
                self._log.check_fence()
                self.commit_up_to(epoch)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 (raised by the caller)
                done.set_exception(error)
                return
            if clean:
                self._run_chore(self.clean_up)

        self._commit_thread.submit(commit)
        done.result(timeout_s)

    def abort_orphans(self, timeout_s: float) -> bool:
        """Roll back what tasks prepared and no open transaction covers, and wait for it.

        No epoch may be running: what its tasks prepare is not open yet. The time is allowed twice,
        first for the commits before it, then for the sinks. If it is exceeded, the commits return
        False, which leaves it to the next call, and the sinks raise `SinkError`.
        """
        if not self._committers.can_discard:
            return True
        done: Future[None] = Future()

        def discard() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits any more, and an epoch may be running
            try:
                # A replaced driver would roll back what its successor has prepared.
                self._log.check_fence()
                with self._lock:
                    known = self._ledger.open.upto(sys.maxsize)
                self._committers.abort_orphans(known)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 (raised by the caller)
                done.set_exception(error)

        self._commit_thread.submit(discard)
        try:
            if not wait((done,), timeout_s).done and not done.cancel():
                wait((done,), timeout_s)
            if not done.done():
                raise SinkError(
                    f"a sink did not roll back orphaned transactions within {timeout_s:g} s"
                )
            done.result()
        except (CancelledError, StorageError) as error:
            _LOG.warning("orphaned transactions will be rolled back later: %s", error or "busy")
            return False
        return True

    def commit_waiting(self) -> None:
        """Ask sinks again that let output wait: if no input comes, no checkpoint does either."""

        def commit() -> None:
            with self._lock:
                epoch = self._ledger.durable_epoch
                number = self._ledger.durable_number
            self._log.check_fence()
            try:
                self._commit_manifest(epoch, number, flush=False)
            except ConfigurationError as error:  # trying again would not help
                with self._lock:
                    self._on_failure(error)

        self.submit_chore(commit)

    def submit_chore(self, chore: Callable[[], None]) -> None:
        """Run something after the commits so far; no checkpoint depends on it."""
        self._commit_thread.submit(partial(self._run_chore, chore))

    def clean_up(self) -> None:
        """Delete what is not needed any more."""
        self._retention.clean(self._in_use)

    def sweep(self) -> None:
        """Delete what attempts before this one left behind."""
        self._retention.sweep(self._log.own_fence.attempt, self._in_use)

    def close(self, timeout_s: float) -> bool:
        """Take no more work; return whether all of it ended within the time.

        The sinks get a last chance to commit what a durable manifest holds.
        """
        if not self._manifest_thread.close(timeout_s):
            self._commit_thread.close(0.0)  # or it would wait for work as long as the process lives
            return False
        self._commit_thread.submit(self._commit_leftovers)
        return self._commit_thread.close(timeout_s)

    def delete_all(self) -> None:
        """After `close`, delete every checkpoint of the job."""
        try:
            # What a manifest has promised is committed before the manifest is deleted.
            promised = max((m.epoch for m in self._retention.end()), default=-1)
            self.commit_up_to(max(promised, self._ledger.durable_epoch))
            self._committers.roll_back(self._ledger.open.upto(self._ledger.manifested_epoch))
            self._retention.delete_all()
        except TurnbackError as error:
            _LOG.warning("cannot delete the checkpoints: %s", error)

    def _commit_leftovers(self) -> None:
        try:
            ledger = self._ledger
            if ledger.open.upto(ledger.durable_epoch):
                self._log.check_fence()
                self._commit_manifest(ledger.durable_epoch, ledger.durable_number)
        except Exception as error:  # noqa: BLE001 (the next start commits them)
            _LOG.warning("the next start of the job commits the sinks' transactions: %s", error)

    def _run_chore(self, chore: Callable[[], None]) -> None:
        try:
            chore()
        except FencedError as error:
            with self._lock:
                self._on_failure(error)
        except Exception as error:  # noqa: BLE001 (no checkpoint depends on it)
            _LOG.warning("cleanup failed, retrying later: %s", error)

    def _in_use(self) -> set[str]:
        with self._lock:
            return self._ledger.in_use()

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1000)
