"""The bookkeeping of an attempt's checkpoints, without clock, storage or threads."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto

from turnback.checkpoint.commits import OpenTransactions
from turnback.checkpoint.manifest import EpochCut, Fence, Manifest
from turnback.config.checkpointing import CheckpointSettings
from turnback.core.errors import CheckpointError, CheckpointTimeoutError
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

    Not thread-safe; the coordinator guards it. Times are milliseconds of the monotonic clock.

    Attributes:
        trigger: Why it is taken: "periodic", "manual", "savepoint" or "final".
        transactions: All open sink transactions up to the cut, by sink uid.
        waiting: The futures of those who requested it.
        number: The slot of its manifest, once that is durable.
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
            return "it was still waiting for the one before"
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
