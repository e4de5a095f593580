"""What went wrong with a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnback.core.errors import CorruptFileError, FormatVersionError
from turnback.inspect.model import FailureRow
from turnback.inspect.summary import Liveness, is_terminal
from turnback.job.directory import AttemptInfo, JobDirectory
from turnback.job.history import AttemptStarted, JobEnded, Record, Restarting, read_history
from turnback.job.status import JobState, Status


def failure_rows(attempts: Sequence[AttemptLife], alive: Liveness) -> list[FailureRow]:
    """Return the failures of a job, newest first.

    Args:
        attempts: Its attempts, oldest first.
        alive: How it is.
    """
    rows = (_row(attempt, alive) for attempt in reversed(attempts))
    return [row for row in rows if row is not None]


def _row(attempt: AttemptLife, alive: Liveness) -> FailureRow | None:
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


def _death(attempt: AttemptLife) -> FailureRow:
    process = attempt.info.process if attempt.info is not None else None
    who = f"the driver (pid {process.pid} on {process.host})" if process else "the driver"
    return FailureRow(
        attempt=attempt.number,
        at_ms=attempt.last_ms,
        kind="driver died",
        cause=f"{who} died without a word: it was killed, ran out of memory, or its machine "
        "went down",
    )


RESTARTED = "RESTARTED"
LOST = "LOST"


@dataclass(frozen=True)
class AttemptLife:
    """A life of a job.

    Attributes:
        number: Which.
        started_ms: When it began; None if nobody wrote that down.
        ended: The record of its end: `JobEnded` or `Restarting`.
        last_ms: The last that was heard of it.
        info: What it started from, from the job directory.
        snapshot: The same, as the history tells it.
        is_last: Whether no attempt followed.
        in_history: Whether the history reaches back to it.
        concluded: Why the job failed with it, if it was the supervisor who said so: the driver
            was dead by then and could write no history.
    """

    number: int
    started_ms: int | None
    ended: Record | None
    last_ms: int
    info: AttemptInfo | None
    snapshot: str | None
    is_last: bool
    in_history: bool
    concluded: str | None = None

    def died(self, alive: Liveness) -> bool:
        """Return whether its driver died without a word.

        Args:
            alive: How the job is.
        """
        if self.ended is not None or not self.in_history:
            return False
        if not self.is_last:
            return True
        return not is_terminal(alive.state) and not alive.is_driven

    def state(self, alive: Liveness) -> str:
        """Return how it is, or how it ended."""
        if self.ended is not None and isinstance(self.ended.event, JobEnded):
            return self.ended.event.state
        if self.ended is not None:
            return RESTARTED
        return alive.state if self.is_last and not self.died(alive) else LOST

    @property
    def cause(self) -> str | None:
        """Why it ended, if somebody said so."""
        if self.ended is not None and isinstance(self.ended.event, JobEnded | Restarting):
            return self.ended.event.cause
        return self.concluded


def read_attempts(
    directory: JobDirectory, status: Status | None, records: list[Record] | None = None
) -> list[AttemptLife]:
    """Return the attempts of a job that are remembered, oldest first.

    Args:
        directory: The job directory.
        status: What its driver last said.
        records: Its history, if that was read already.
    """
    records = read_history(directory.storage) if records is None else records
    by_attempt: dict[int, list[Record]] = {}
    for record in records:
        by_attempt.setdefault(record.attempt, []).append(record)
    infos = {number: _info(directory, number) for number in directory.attempts()}
    current = [status.attempt] if status is not None and status.attempt is not None else []
    numbers = sorted({*by_attempt, *infos, *current})
    oldest = min(by_attempt, default=0)
    found = []
    for number in numbers:
        is_last = number == numbers[-1]
        found.append(
            _attempt(
                number,
                by_attempt.get(number, []),
                infos.get(number),
                status if is_last else None,
                is_last=is_last,
                in_history=number >= oldest,
            )
        )
    return found


def _attempt(
    number: int,
    records: list[Record],
    info: AttemptInfo | None,
    status: Status | None,
    *,
    is_last: bool,
    in_history: bool,
) -> AttemptLife:
    start = next((r for r in records if isinstance(r.event, AttemptStarted)), None)
    ends = [r for r in records if isinstance(r.event, JobEnded | Restarting)]
    started_ms = info.started_ms if info is not None else start.at_ms if start is not None else None
    heard_ms = status.updated_ms if status is not None else 0
    said = [heard_ms, started_ms or 0, *(r.at_ms for r in records)]
    failed = status is not None and status.state is JobState.FAILED and not ends
    return AttemptLife(
        number=number,
        started_ms=started_ms,
        ended=ends[-1] if ends else None,
        last_ms=max(said),
        info=info,
        snapshot=_snapshot(start),
        is_last=is_last,
        in_history=in_history,
        concluded=status.cause if status is not None and failed else None,
    )


def _snapshot(start: Record | None) -> str | None:
    return start.event.snapshot if start and isinstance(start.event, AttemptStarted) else None


def _info(directory: JobDirectory, number: int) -> AttemptInfo | None:
    try:
        return directory.attempt(number)
    except (CorruptFileError, FormatVersionError):
        return None  # the history has the same, in fewer words
