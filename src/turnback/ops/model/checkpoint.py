"""Checkpoints, as people see them."""

from __future__ import annotations

from enum import StrEnum

from turnback.ops.model.view import View


class CheckpointStatus(StrEnum):
    """How a checkpoint is doing."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    IN_PROGRESS = "IN_PROGRESS"


class CheckpointRow(View, frozen=True, kw_only=True):
    """A checkpoint in the history of a job.

    Attributes:
        number: Its number; None if it failed before it got one.
        status: How it ended.
        attempt: The attempt that took it.
        epoch: The last epoch in it.
        trigger: Why it was taken: periodic, manual, savepoint, final.
        triggered_ms: When it was begun.
        duration_ms: How long it took: sync, waiting for the checkpoint before it, async.
        sync_ms: Within the epoch, how long the slowest task took to snapshot its state.
        async_ms: How long it took beside the stream: manifest and commits.
        delta_bytes: Bytes of new files.
        full_bytes: Bytes of all files it needs.
        files: Number of those files.
        acknowledged: Tasks that acknowledged it.
        tasks: Tasks that had to.
        path: Its file, while it is retained.
        reason: Why it failed.
    """

    number: int | None
    status: CheckpointStatus
    attempt: int
    epoch: int
    trigger: str
    triggered_ms: int
    duration_ms: int | None = None
    sync_ms: int | None = None
    async_ms: int | None = None
    delta_bytes: int | None = None
    full_bytes: int | None = None
    files: int | None = None
    acknowledged: int | None = None
    tasks: int | None = None
    path: str | None = None
    reason: str | None = None


class Distribution(View, frozen=True, kw_only=True):
    """Numbers, summed up."""

    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    mean: float


class CheckpointHistory(View, frozen=True, kw_only=True):
    """The checkpoints of a job, as far as its history remembers.

    Attributes:
        completed: How many have completed.
        failed: How many have failed.
        in_progress: How many are under way.
        restored: How often an attempt started from a snapshot.
        duration_ms: Of the completed ones.
        sync_ms: Of the completed ones.
        async_ms: Of the completed ones.
        delta_bytes: Of the completed ones.
        full_bytes: Of the completed ones.
        rows: The checkpoints, newest first.
    """

    completed: int
    failed: int
    in_progress: int
    restored: int
    duration_ms: Distribution | None = None
    sync_ms: Distribution | None = None
    async_ms: Distribution | None = None
    delta_bytes: Distribution | None = None
    full_bytes: Distribution | None = None
    rows: tuple[CheckpointRow, ...] = ()
