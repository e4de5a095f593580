"""How the coordinator words what happened to a checkpoint."""

from turnback.coordinator.completed import CompletedCheckpoint
from turnback.coordinator.config import CheckpointSettings
from turnback.coordinator.event import CheckpointDone, CheckpointFailed
from turnback.coordinator.pending import PendingCheckpoint, Phase
from turnback.core.duration import format_duration
from turnback.core.errors import CheckpointError, CheckpointTimeoutError


def done_event(done: CompletedCheckpoint) -> CheckpointDone:
    """Return the history event of a complete checkpoint."""
    return CheckpointDone(
        number=done.number,
        epoch=done.epoch,
        trigger=done.manifest.trigger,
        waited_ms=done.waited_ms,
        manifest_ms=done.manifest_ms,
        commit_ms=done.commit_ms,
        bytes_written=done.bytes_written,
        files_written=done.files_written,
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
