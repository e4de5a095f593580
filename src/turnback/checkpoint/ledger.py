"""Step 1 of a checkpoint: is one due? Pure, so that every case can be tested without waiting."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from turnback.checkpoint.commits import OpenTransactions
from turnback.checkpoint.manifest import CompletedCheckpoint, EpochCut, Fence, Manifest
from turnback.config.checkpointing import CheckpointSettings
from turnback.core.errors import CheckpointError


@dataclass(frozen=True)
class Trigger:
    """Take a checkpoint now."""

    kind: str


@dataclass(frozen=True)
class Wait:
    """Ask again after this time, or earlier if something happens."""

    ms: int


@dataclass(frozen=True)
class Nothing:
    """Ask again when something happens; the passing of time changes nothing."""


Decision = Trigger | Wait | Nothing


@dataclass(frozen=True)
class Situation:
    """What a decision depends on; times are in milliseconds of one monotonic clock.

    Attributes:
        started: When the coordinator started.
        in_flight: Checkpoints under way.
        changed: Whether there is something no checkpoint covers yet.
        requested: The oldest request of a user or of the end of the job ("manual", "final").
        last_trigger: When the last checkpoint was triggered.
        last_end: When the last one ended, well or not.
    """

    started: int
    in_flight: int = 0
    changed: bool = False
    requested: str | None = None
    last_trigger: int | None = None
    last_end: int | None = None


def decide(now: int, settings: CheckpointSettings, situation: Situation) -> Decision:
    """Say whether a checkpoint is due.

    Requests do not wait for the interval nor the pause, only for a free place.
    """
    if not situation.changed or situation.in_flight >= settings.max_concurrent:
        return Nothing()
    if situation.requested is not None:
        return Trigger(situation.requested)
    if settings.interval_ms is None:
        return Nothing()
    last = situation.started if situation.last_trigger is None else situation.last_trigger
    due = last + settings.interval_ms
    if situation.last_end is not None:
        due = max(due, situation.last_end + settings.min_pause_ms)
    return Trigger("periodic") if now >= due else Wait(due - now)


class Phase(Enum):
    """How far a checkpoint has got."""

    QUEUED = auto()
    WRITING = auto()
    COMMITTING = auto()
    ENDED = auto()


class PendingCheckpoint:
    """A checkpoint under way: a cut that becomes a manifest, or is discarded without a trace.

    Not thread-safe; the coordinator guards it.

    Args:
        kind: Why it is taken: "periodic", "manual" or "final".
        cut: What it consists of.
        transactions: All open sink transactions up to the cut, by sink uid.
        triggered: When, in milliseconds of the monotonic clock.
        waiting: Who wants to know how it ends.
    """

    __slots__ = (
        "_cut",
        "_transactions",
        "discarded",
        "epoch",
        "kind",
        "number",
        "paths",
        "phase",
        "sync_ms",
        "tasks",
        "triggered",
        "waiting",
        "write_began",
        "write_ended",
    )

    def __init__(
        self,
        kind: str,
        cut: EpochCut,
        transactions: dict[str, tuple[bytes, ...]],
        triggered: int,
        waiting: list[Future[CompletedCheckpoint]],
    ) -> None:
        self.kind = kind
        self.epoch = cut.epoch
        self.paths = cut.paths()
        self.sync_ms = cut.sync_ms
        self.tasks = cut.tasks
        self.triggered = triggered
        self.waiting = waiting
        self.phase = Phase.QUEUED
        self.discarded = False
        self.number: int | None = None
        self.write_began = self.write_ended = triggered
        self._cut: EpochCut | None = cut
        self._transactions = transactions

    def manifest(
        self,
        fence: Fence,
        *,
        number: int,
        parent: int | None,
        created_ms: int,
        max_parallelism: int,
        config: Mapping[str, Any],
    ) -> Manifest:
        """Return the manifest of the cut."""
        assert self._cut is not None, "the checkpoint was discarded"
        return Manifest(
            job=fence.job,
            job_id=fence.job_id,
            number=number,
            attempt=fence.attempt,
            epoch=self.epoch,
            created_ms=created_ms,
            trigger=self.kind,
            parent=parent,
            max_parallelism=max_parallelism,
            sources=dict(self._cut.sources),
            state=tuple(self._cut.state),
            schemas=tuple(self._cut.schemas),
            operators=tuple(self._cut.operators),
            transactions=self._transactions,
            watermarks=dict(self._cut.watermarks),
            config=dict(config),
        )

    def complete(
        self, manifest: Manifest, committed: int, known: Mapping[str, int]
    ) -> CompletedCheckpoint:
        """Return what it has become.

        Args:
            manifest: The durable manifest.
            committed: When the sinks had committed.
            known: The files of the checkpoint before.
        """
        files = manifest.files()
        new = [length for path, length in files.items() if path not in known]
        return CompletedCheckpoint(
            manifest,
            waited_ms=self.write_began - self.triggered,
            manifest_ms=self.write_ended - self.write_began,
            commit_ms=committed - self.write_ended,
            bytes_written=sum(new),
            files_written=len(new),
            full_bytes=sum(files.values()),
            files=len(files),
            sync_ms=self.sync_ms,
            tasks=self.tasks,
        )

    def release(self) -> None:
        """Let go of what only the manifest needed."""
        self._cut = None
        self._transactions = {}


Waiting = Future[CompletedCheckpoint]


class Ledger:
    """What the coordinator knows: the newest cut, checkpoints under way, requests, failures.

    Pure bookkeeping without clock, storage or threads; the coordinator guards it with its lock.
    Times are milliseconds of the monotonic clock.

    Args:
        settings: When and how checkpoints are taken.
        started: When the attempt started.
        inherited: The files it started from, which it needs until its first epoch is confirmed.
    """

    def __init__(
        self, settings: CheckpointSettings, started: int, inherited: Collection[str] = ()
    ) -> None:
        self._settings = settings
        self._started = started
        self.open = OpenTransactions()
        self.newest: EpochCut | None = None
        self.last: CompletedCheckpoint | None = None
        self.in_flight: list[PendingCheckpoint] = []
        self.requests: list[tuple[str, Waiting]] = []
        self.completed = 0
        self.failed = 0
        self.failures_in_a_row = 0
        self.manifested_epoch = -1
        """No manifest holds transactions of a later epoch, not even one of unknown outcome."""
        self.durable_epoch = -1
        """A durable manifest holds the transactions of all epochs up to this one."""
        self.durable_number = 0
        """The number of that manifest."""
        self._live: frozenset[str] = frozenset(inherited)
        self._held: list[PendingCheckpoint] = []
        self._uncertain: set[str] = set()
        self._covered_epoch = -1
        self._known_files: dict[str, int] = {}
        self._last_trigger: int | None = None
        self._last_end: int | None = None

    def confirm(self, cut: EpochCut) -> frozenset[str]:
        """Take a confirmed epoch; return the files that are not live any more."""
        if self.newest is not None and cut.epoch <= self.newest.epoch:
            raise CheckpointError(
                f"epoch {cut.epoch} was confirmed after epoch {self.newest.epoch}"
            )
        self.open.add(cut.epoch, cut.transactions)
        self.newest = cut
        before, self._live = self._live, cut.paths()
        return before - self._live

    def situation(self) -> Situation:
        """Return what the decision depends on."""
        return Situation(
            started=self._started,
            in_flight=len(self.in_flight),
            changed=self._changed(),
            requested=self._requested(),
            last_trigger=self._last_trigger,
            last_end=self._last_end,
        )

    def begin(self, kind: str, now: int) -> PendingCheckpoint:
        """Make a pending checkpoint of the newest cut; it answers all requests so far."""
        assert self.newest is not None
        waiting = [future for _, future in self.requests]
        self.requests.clear()
        transactions = self.open.upto(self.newest.epoch)
        pending = PendingCheckpoint(kind, self.newest, transactions, now, waiting)
        self.in_flight.append(pending)
        self._held.append(pending)
        self._last_trigger = now
        return pending

    def answer_requests(self) -> None:
        """Answer requests with the last checkpoint, if that covers the newest epoch already."""
        if self.last is None or self.in_flight or self._changed():
            return
        for _, future in self.requests:
            future.set_result(self.last)
        self.requests.clear()

    def overdue(self, now: int) -> list[PendingCheckpoint]:
        """Return the checkpoints that have taken too long."""
        return [p for p in self.in_flight if now - p.triggered >= self._settings.timeout_ms]

    def next_deadline(self) -> int | None:
        """Return when the oldest checkpoint under way will have taken too long."""
        deadlines = (p.triggered + self._settings.timeout_ms for p in self.in_flight)
        return min(deadlines, default=None)

    def start_writing(self, pending: PendingCheckpoint, now: int) -> bool:
        """Return whether the manifest is still wanted; from now on it may become durable."""
        if pending.discarded:
            return False
        pending.phase = Phase.WRITING
        pending.write_began = now
        self.manifested_epoch = max(self.manifested_epoch, pending.epoch)
        return True

    def written(self, pending: PendingCheckpoint, manifest: Manifest, now: int) -> bool:
        """Note that the manifest is durable; return whether the checkpoint is still wanted."""
        pending.phase = Phase.COMMITTING
        pending.write_ended = now
        pending.number = manifest.number
        self.durable_epoch = max(self.durable_epoch, manifest.epoch)
        self.durable_number = max(self.durable_number, manifest.number)
        self._release(pending)
        self._uncertain.clear()
        return not pending.discarded

    def write_failed(self, pending: PendingCheckpoint) -> None:
        """Note that the manifest may or may not be durable; the next append will tell."""
        self._uncertain |= pending.paths
        self._release(pending)

    def complete(
        self, pending: PendingCheckpoint, manifest: Manifest, now: int
    ) -> CompletedCheckpoint:
        """Note that everything up to the checkpoint is durable and committed."""
        completed = pending.complete(manifest, now, self._known_files)
        self._known_files = manifest.files()
        self._covered_epoch = max(self._covered_epoch, manifest.epoch)
        self.last = completed
        if not pending.discarded:
            self.completed += 1
            self.failures_in_a_row = 0
            self._end(pending, now)
        return completed

    def discard(self, pending: PendingCheckpoint, now: int) -> None:
        """Give a checkpoint up; its transactions stay open."""
        pending.discarded = True
        if pending.phase is Phase.QUEUED:
            self._release(pending)
        self._end(pending, now)

    def fail(self, pending: PendingCheckpoint, now: int) -> int:
        """Give a checkpoint up because it failed; return how many have in a row."""
        self.discard(pending, now)
        self.failed += 1
        self.failures_in_a_row += 1
        return self.failures_in_a_row

    def in_use(self) -> set[str]:
        """Return the files that the running epoch or a checkpoint under way needs."""
        # One that commits may have lost its manifest to retention, and can still be held.
        under_way = (*self._held, *self.in_flight)
        return set(self._uncertain).union(self._live, *(p.paths for p in under_way))

    def _end(self, pending: PendingCheckpoint, now: int) -> None:
        self.in_flight.remove(pending)
        self._last_end = now
        self._forget(pending)

    def _release(self, pending: PendingCheckpoint) -> None:
        pending.release()
        self._held.remove(pending)
        self._forget(pending)

    def _forget(self, pending: PendingCheckpoint) -> None:
        if pending not in self._held and pending not in self.in_flight:
            pending.paths = frozenset()

    def _changed(self) -> bool:
        if self.newest is None:
            return False
        under_way = (pending.epoch for pending in self.in_flight)
        return self.newest.epoch > max(under_way, default=self._covered_epoch)

    def _requested(self) -> str | None:
        kinds = [kind for kind, _ in self.requests]
        return "final" if "final" in kinds else next(iter(kinds), None)
