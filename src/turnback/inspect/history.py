"""What became of a job: its checkpoints, its attempts and what went wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import CheckpointNotFoundError, CorruptFileError, FormatVersionError
from turnback.inspect.model import (
    CheckpointHistory,
    CheckpointRow,
    CheckpointStatus,
    Distribution,
    FailureRow,
)
from turnback.inspect.summary import LOST, Liveness, is_terminal
from turnback.job.directory import AttemptInfo, JobDirectory
from turnback.job.history import (
    AttemptStarted,
    CheckpointFailed,
    CheckpointStats,
    JobEnded,
    Record,
    Restarting,
    read_history,
)
from turnback.job.status import JobState, Status, UnderWay

RESTARTED = "RESTARTED"
_MEASURED = ("duration_ms", "sync_ms", "async_ms", "delta_bytes", "full_bytes")

# -- checkpoints


def checkpoint_history(
    records: Sequence[Record],
    *,
    under_way: Iterable[CheckpointRow] = (),
    unrecorded: Iterable[Manifest] = (),
    retained: Collection[int] = (),
    directory: str,
) -> CheckpointHistory:
    """Sum up the checkpoints of a job.

    Args:
        records: Its history, oldest first.
        under_way: Those that are being taken.
        unrecorded: Those that are complete and not in the history yet, newest first.
        retained: Numbers of those that can be restored.
        directory: Where their files are.
    """

    def path(number: int | None) -> str | None:
        return f"{directory}/{slot_path(number)}" if number and number in retained else None

    rows = [*under_way]
    for manifest in unrecorded:
        row = _row(manifest, CheckpointStatus.COMPLETED, manifest.attempt, manifest.created_ms)
        rows.append(replace(row, path=f"{directory}/{slot_path(manifest.number)}"))
    for record in reversed(records):
        event, attempt = record.event, record.attempt
        if isinstance(event, CheckpointStats):
            triggered_ms = record.at_ms - event.since_trigger_ms
            row = _row(event, CheckpointStatus.COMPLETED, attempt, triggered_ms)
            measured = {name: getattr(event, name) for name in (*_MEASURED, "files")}
            tasks = event.tasks or None
            rows.append(
                replace(row, path=path(event.number), acknowledged=tasks, tasks=tasks, **measured)
            )
        elif isinstance(event, CheckpointFailed):
            row = _row(event, CheckpointStatus.FAILED, attempt, record.at_ms - event.after_ms)
            rows.append(
                replace(
                    row, path=path(event.number), duration_ms=event.after_ms, reason=event.reason
                )
            )
    by_status = [row.status for row in rows]
    done = [row for row in rows if row.status is CheckpointStatus.COMPLETED]
    return CheckpointHistory(
        completed=len(done),
        failed=by_status.count(CheckpointStatus.FAILED),
        in_progress=by_status.count(CheckpointStatus.IN_PROGRESS),
        restored=sum(_is_restore(record) for record in records),
        rows=tuple(rows),
        **{name: distribution([getattr(row, name) for row in done]) for name in _MEASURED},
    )


def under_way_rows(status: Status) -> list[CheckpointRow]:
    """Return the checkpoints that a live driver is taking, newest first."""
    pending = sorted(status.metrics.under_way, key=lambda one: one.epoch, reverse=True)
    attempt = status.attempt or 0
    return [_row(p, CheckpointStatus.IN_PROGRESS, attempt, p.triggered_ms) for p in pending]


def _row(
    checkpoint: Manifest | CheckpointStats | CheckpointFailed | UnderWay,
    status: CheckpointStatus,
    attempt: int,
    triggered_ms: int,
) -> CheckpointRow:
    return CheckpointRow(
        number=None if isinstance(checkpoint, UnderWay) else checkpoint.number,
        status=status,
        attempt=attempt,
        epoch=checkpoint.epoch,
        trigger=checkpoint.trigger,
        triggered_ms=triggered_ms,
    )


def unrecorded(log: CheckpointLog, records: Sequence[Record]) -> list[Manifest]:
    """Return the checkpoints that are newer than the history, which is written now and then."""
    events = (record.event for record in records)
    known = max((e.number for e in events if isinstance(e, CheckpointStats)), default=0)
    newer = []
    for number in reversed(log.numbers()):
        if number <= known:
            break
        try:
            slot = log.get(number)
        except (CheckpointNotFoundError, CorruptFileError, FormatVersionError):
            continue  # dropped meanwhile; or damaged, which `verify` reports
        if isinstance(slot, Manifest):
            newer.append(slot)
    return newer


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Sum up numbers, with percentiles interpolated between them; None for no numbers."""
    numbers = sorted(value for value in values if value is not None)
    if not numbers:
        return None
    return Distribution(
        min=numbers[0],
        p50=_percentile(numbers, 0.5),
        p90=_percentile(numbers, 0.9),
        p95=_percentile(numbers, 0.95),
        p99=_percentile(numbers, 0.99),
        max=numbers[-1],
        mean=sum(numbers) / len(numbers),
    )


def _percentile(numbers: Sequence[float], fraction: float) -> float:
    place = (len(numbers) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(numbers) - 1)
    return numbers[low] + (numbers[high] - numbers[low]) * (place - low)


def _is_restore(record: Record) -> bool:
    return isinstance(record.event, AttemptStarted) and record.event.snapshot is not None


# -- attempts


@dataclass(frozen=True)
class AttemptLife:
    """An attempt of a job, from its start to its end.

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
        """Return whether its driver died without reporting its end, given how the job is."""
        if self.ended is not None or not self.in_history:
            return False
        if not self.is_last:
            return True
        return not is_terminal(alive.state) and not alive.is_driven

    def state(self, alive: Liveness) -> str:
        if self.ended is not None and isinstance(self.ended.event, JobEnded):
            return self.ended.event.state
        if self.ended is not None:
            return RESTARTED
        return alive.state if self.is_last and not self.died(alive) else LOST

    @property
    def cause(self) -> str | None:
        if self.ended is not None and isinstance(self.ended.event, JobEnded | Restarting):
            return self.ended.event.cause
        return self.concluded

    def failure(self, alive: Liveness) -> FailureRow | None:
        """Return what went wrong with it; None if nothing did."""
        at_ms = self.last_ms if self.ended is None else self.ended.at_ms
        event = self.ended.event if self.ended is not None else None
        delay_ms = None
        if isinstance(event, Restarting):
            kind, cause, delay_ms = "restarting", event.cause, event.delay_ms
        elif isinstance(event, JobEnded) and event.state == JobState.FAILED.value:
            kind, cause = "failed", event.cause or "no cause was recorded"
        elif event is None and self.concluded is not None:
            kind, cause = "failed", self.concluded
        elif event is None and self.died(alive):
            process = self.info.process if self.info is not None else None
            who = f"the driver (pid {process.pid} on {process.host})" if process else "the driver"
            kind = "driver died"
            cause = f"{who} was killed, ran out of memory, or its machine went down"
        else:
            return None
        return FailureRow(
            attempt=self.number, at_ms=at_ms, kind=kind, cause=cause, delay_ms=delay_ms
        )


def failure_rows(attempts: Sequence[AttemptLife], alive: Liveness) -> list[FailureRow]:
    """Return the failures of a job, newest first."""
    failures = (attempt.failure(alive) for attempt in reversed(attempts))
    return [failure for failure in failures if failure is not None]


def read_attempts(directory: JobDirectory, status: Status | None) -> list[AttemptLife]:
    """Return the attempts of a job that are remembered, oldest first."""
    by_attempt: dict[int, list[Record]] = {}
    for record in read_history(directory.storage):
        by_attempt.setdefault(record.attempt, []).append(record)
    infos = {number: _info(directory, number) for number in directory.attempts()}
    current = [status.attempt] if status is not None and status.attempt is not None else []
    numbers = sorted({*by_attempt, *infos, *current})
    oldest = min(by_attempt, default=0)
    attempts = []
    for number in numbers:
        is_last = number == numbers[-1]
        attempts.append(
            _attempt(
                number,
                by_attempt.get(number, []),
                infos.get(number),
                status if is_last else None,
                is_last=is_last,
                in_history=number >= oldest,
            )
        )
    return attempts


def _attempt(
    number: int,
    records: list[Record],
    info: AttemptInfo | None,
    status: Status | None,
    *,
    is_last: bool,
    in_history: bool,
) -> AttemptLife:
    starts = [(r.at_ms, r.event) for r in records if isinstance(r.event, AttemptStarted)]
    ends = [r for r in records if isinstance(r.event, JobEnded | Restarting)]
    started_ms = info.started_ms if info is not None else starts[0][0] if starts else None
    heard_ms = status.updated_ms if status is not None else 0
    failed = status is not None and status.state is JobState.FAILED and not ends
    return AttemptLife(
        number=number,
        started_ms=started_ms,
        ended=ends[-1] if ends else None,
        last_ms=max(heard_ms, started_ms or 0, *(r.at_ms for r in records)),
        info=info,
        snapshot=starts[0][1].snapshot if starts else None,
        is_last=is_last,
        in_history=in_history,
        concluded=status.cause if status is not None and failed else None,
    )


def _info(directory: JobDirectory, number: int) -> AttemptInfo | None:
    try:
        return directory.attempt(number)
    except (CorruptFileError, FormatVersionError):
        return None  # the history has the same, in fewer words
