from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from enum import Enum, auto
from typing import Any

from turnback.coordinator.completed import CompletedCheckpoint
from turnback.coordinator.cut import EpochCut
from turnback.coordinator.manifest import Fence, Manifest


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
