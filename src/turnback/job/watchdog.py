"""Whether a job that runs gets on. Nothing else decides that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from turnback.core.units import format_age
from turnback.job.status import AttemptProgress, JobState, Lag, RestoreProgress, Status


class Stall(NamedTuple):
    """Why a job does not get on, for people; `silent` if its driver does not even report."""

    reason: str
    silent: bool = False


def stall_of(status: Status, now_ms: int) -> Stall | None:
    """Judge from a driver's last report whether its job has stalled; None if it gets on.

    Only how old the report is goes by the clock of who asks. A job that has nothing to do never
    stalls: it counts what is under way, and what waits to be processed.
    """
    if status.state.is_terminal:
        return None
    limit = status.limits.heartbeat_ms
    silent_ms = now_ms - status.updated_ms
    if limit is not None and silent_ms > limit:
        return Stall(f"its driver has not reported for {format_age(silent_ms)}", silent=True)
    if status.restore is not None:
        return _restore(status, status.restore)
    progress = status.metrics.progress
    if status.state is not JobState.RUNNING or progress is None:
        return None
    reasons = [
        *_epochs(status, progress),
        *_checkpoints(status, progress),
        *(_growing(uid, lag) for uid, lag in status.metrics.lag.items() if lag.growing_ms),
    ]
    return Stall("; ".join(reasons)) if reasons else None


def _restore(status: Status, restore: RestoreProgress) -> Stall | None:
    """A long restore is no stall, in the first epoch neither, as long as it gets on."""
    limit = status.limits.epoch_ms
    stuck_ms = status.updated_ms - restore.moved_ms
    if limit is None or stuck_ms <= limit:
        return None
    how_far = f"has stood at {int(100 * restore.done)} % for {format_age(stuck_ms)}"
    return Stall(f"{restore.what} {how_far}")


def _epochs(status: Status, progress: AttemptProgress) -> Iterator[str]:
    limits = status.limits
    now_ms = status.updated_ms
    if progress.asked_ms is not None and progress.epoch is None:
        asked_ms = now_ms - progress.asked_ms
        if limits.heartbeat_ms is not None and asked_ms > limits.heartbeat_ms:
            yield f"Spark has not answered for {format_age(asked_ms)}"
            return
    since_ms = now_ms - progress.since_ms
    if limits.epoch_ms is None or since_ms <= limits.epoch_ms:
        return
    if progress.epoch is not None:
        yield f"epoch {progress.epoch} has been running for {format_age(since_ms)}"
        return
    waiting = {uid: lag.records for uid, lag in status.metrics.lag.items() if lag.records}
    if waiting:
        sources = ", ".join(f"{records:,} of source {uid!r}" for uid, records in waiting.items())
        yield f"no epoch for {format_age(since_ms)} although records wait: {sources}"


def _checkpoints(status: Status, progress: AttemptProgress) -> Iterator[str]:
    limit = status.limits.checkpoint_ms
    since_ms = progress.uncovered_ms
    if limit is None or since_ms is None or status.updated_ms - since_ms <= limit:
        return
    text = f"no checkpoint for {format_age(status.updated_ms - since_ms)}"
    under_way = status.metrics.under_way
    if under_way:
        oldest = min(under_way, key=lambda one: one.triggered_ms)
        took = format_age(max(0, status.updated_ms - oldest.triggered_ms))
        text += f" (that of epoch {oldest.epoch} has been under way for {took})"
    yield text


def _growing(uid: str, lag: Lag) -> str:
    now = "" if lag.records is None else f" and is {lag.records:,} records"
    return f"the lag of source {uid!r} has grown for {format_age(lag.growing_ms or 0)}{now}"
