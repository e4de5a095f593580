"""What went wrong with a job."""

from __future__ import annotations

from collections.abc import Sequence

from turnback.coordinator.event import JobEnded, Restarting
from turnback.coordinator.status import JobState
from turnback.ops.attempts import Attempt
from turnback.ops.liveness import Liveness
from turnback.ops.model import FailureRow


def failure_rows(attempts: Sequence[Attempt], alive: Liveness) -> list[FailureRow]:
    """Return the failures of a job, newest first.

    Args:
        attempts: Its attempts, oldest first.
        alive: How it is.
    """
    rows = (_row(attempt, alive) for attempt in reversed(attempts))
    return [row for row in rows if row is not None]


def _row(attempt: Attempt, alive: Liveness) -> FailureRow | None:
    record = attempt.ended
    if record is None and attempt.concluded is not None:
        return FailureRow(
            attempt=attempt.number, at_ms=attempt.last_ms, kind="failed", cause=attempt.concluded
        )
    if record is None:
        return _death(attempt) if attempt.died(alive) else None
    if isinstance(record.event, Restarting):
        return FailureRow(
            attempt=attempt.number,
            at_ms=record.at_ms,
            kind="restarting",
            cause=record.event.cause,
            delay_ms=record.event.delay_ms,
        )
    if isinstance(record.event, JobEnded) and record.event.state == JobState.FAILED.value:
        return FailureRow(
            attempt=attempt.number,
            at_ms=record.at_ms,
            kind="failed",
            cause=record.event.cause or "nobody said why",
        )
    return None


def _death(attempt: Attempt) -> FailureRow:
    process = attempt.info.process if attempt.info is not None else None
    who = f"the driver (pid {process.pid} on {process.host})" if process else "the driver"
    return FailureRow(
        attempt=attempt.number,
        at_ms=attempt.last_ms,
        kind="driver died",
        cause=f"{who} died without a word: it was killed, ran out of memory, or its machine "
        "went down",
    )
