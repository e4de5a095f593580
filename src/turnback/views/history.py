"""What became of a job: its checkpoints, its attempts and what went wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.checkpoint.manifest import Manifest
from turnback.errors import CheckpointNotFoundError, CorruptFileError, FormatVersionError
from turnback.job.directory import AttemptInfo, JobDirectory
from turnback.job.history import (
    AttemptStarted,
    CheckpointFailed,
    CheckpointStats,
    FilesChanged,
    JobEnded,
    Record,
    Restarting,
    read_history,
    recorded_history,
)
from turnback.job.liveness import LOST, Liveness, is_terminal
from turnback.job.status import CheckpointInProgress, JobState, Status
from turnback.plan.sources import changed_files_text
from turnback.storage.base import Storage
from turnback.storage.locations import display_path
from turnback.views import model
from turnback.views.model import CheckpointRow, CheckpointStatus

RESTARTED = "RESTARTED"
_NUMBER = re.compile(r"\d+")
_OWN = re.compile(r"chk-([0-9]+)")
_MEASURED = ("duration_ms", "sync_ms", "async_ms", "delta_bytes", "full_bytes")

# -- checkpoints


def checkpoint_history(storage: Storage, status: Status | None) -> model.CheckpointHistory:
    """Sum up the checkpoints of a job; `status` is that of its driver, if that lives."""
    records, forgotten = recorded_history(storage)
    rows = list(_checkpoint_rows(storage, status, records))
    by_status = [row.status for row in rows]
    done = [row for row in rows if row.status is CheckpointStatus.COMPLETED]
    started = [record.event for record in records if isinstance(record.event, AttemptStarted)]
    return model.CheckpointHistory(
        completed=len(done) + sum(each.completed for each in forgotten.values()),
        failed=by_status.count(CheckpointStatus.FAILED)
        + sum(each.failed for each in forgotten.values()),
        in_progress=by_status.count(CheckpointStatus.IN_PROGRESS),
        restored=sum(event.snapshot is not None for event in started),
        rows=tuple(rows),
        forgotten=sum(each.completed + each.failed for each in forgotten.values()),
        **{name: distribution([getattr(row, name) for row in done]) for name in _MEASURED},
    )


def _checkpoint_rows(
    storage: Storage, status: Status | None, records: Sequence[Record]
) -> Iterator[CheckpointRow]:
    """The checkpoints of a job, newest first."""
    log = CheckpointLog(storage)
    numbers = log.numbers()
    directory = display_path(storage.uri)
    retained = set(numbers)

    def path(number: int | None) -> str | None:
        return f"{directory}/{slot_path(number)}" if number and number in retained else None

    under_way = status.metrics.under_way if status is not None else ()
    attempt = (status.attempt if status is not None else None) or 0
    for one in sorted(under_way, key=lambda one: one.epoch, reverse=True):
        yield _row(one, CheckpointStatus.IN_PROGRESS, attempt, one.triggered_ms)
    for m in _unrecorded(log, numbers, records):
        where = f"{directory}/{slot_path(m.number)}"
        yield _row(m, CheckpointStatus.COMPLETED, m.attempt, m.created_ms, path=where)
    for record in reversed(records):
        event = record.event
        attempt = record.attempt
        if isinstance(event, CheckpointStats):
            triggered_ms = record.at_ms - event.since_trigger_ms
            tasks = event.tasks or None
            measured = {name: getattr(event, name) for name in (*_MEASURED, "files")}
            measured |= {"acknowledged": tasks, "tasks": tasks, "path": path(event.number)}
            yield _row(event, CheckpointStatus.COMPLETED, attempt, triggered_ms, **measured)
        elif isinstance(event, CheckpointFailed):
            yield _row(
                event,
                CheckpointStatus.FAILED,
                attempt,
                record.at_ms - event.after_ms,
                path=path(event.number),
                duration_ms=event.after_ms,
                reason=event.reason,
            )


def _row(
    checkpoint: Manifest | CheckpointStats | CheckpointFailed | CheckpointInProgress,
    status: CheckpointStatus,
    attempt: int,
    triggered_ms: int,
    **measured: Any,
) -> CheckpointRow:
    return CheckpointRow(
        number=None if isinstance(checkpoint, CheckpointInProgress) else checkpoint.number,
        status=status,
        attempt=attempt,
        epoch=checkpoint.epoch,
        trigger=checkpoint.trigger,
        triggered_ms=triggered_ms,
        **measured,
    )


def _unrecorded(
    log: CheckpointLog, numbers: Sequence[int], records: Sequence[Record]
) -> list[Manifest]:
    """Return the checkpoints that are newer than the history, which is written now and then."""
    events = (record.event for record in records)
    known = max((e.number for e in events if isinstance(e, CheckpointStats)), default=0)
    newer = []
    for number in reversed(numbers):
        if number <= known:
            break
        try:
            slot = log.get(number)
        except (CheckpointNotFoundError, CorruptFileError, FormatVersionError):
            continue  # dropped meanwhile; or damaged, which `verify` reports
        if isinstance(slot, Manifest):
            newer.append(slot)
    return newer


def distribution(values: Iterable[float | None]) -> model.Distribution | None:
    """Sum up numbers, with percentiles interpolated between them; None for no numbers."""
    from statistics import fmean, quantiles

    numbers = sorted(value for value in values if value is not None)
    if not numbers:
        return None
    # Quantiles need two numbers.
    cuts = quantiles(numbers if len(numbers) > 1 else numbers * 2, n=100, method="inclusive")
    return model.Distribution(
        min=numbers[0],
        p50=cuts[49],
        p90=cuts[89],
        p95=cuts[94],
        p99=cuts[98],
        max=numbers[-1],
        mean=fmean(numbers),
    )


# -- attempts


class AttemptOrigin(NamedTuple):
    """What an attempt started from: the job's own checkpoint of this number, or a snapshot."""

    checkpoint: int | None
    snapshot: str | None


@dataclass(frozen=True)
class AttemptLife:
    """An attempt of a job, from its start to its end.

    `status` is only of the last one; `in_history`: whether the history reaches back to it.
    """

    number: int
    records: Sequence[Record]
    info: AttemptInfo | None
    status: Status | None
    is_last: bool
    in_history: bool

    @property
    def origin(self) -> AttemptOrigin:
        if self.info is not None:
            return AttemptOrigin(self.info.checkpoint, self.info.snapshot)
        starts = (r.event for r in self.records if isinstance(r.event, AttemptStarted))
        named = next((event.snapshot for event in starts), None)
        own = _OWN.fullmatch(named or "")
        return AttemptOrigin(int(own[1]), None) if own else AttemptOrigin(None, named)

    @property
    def started_ms(self) -> int | None:
        """When it began; None if nobody wrote that down."""
        if self.info is not None:
            return self.info.started_ms
        starts = (r.at_ms for r in self.records if isinstance(r.event, AttemptStarted))
        return next(starts, None)

    @property
    def last_ms(self) -> int:
        """When it last gave a sign of life."""
        updated_ms = self.status.updated_ms if self.status is not None else 0
        return max(updated_ms, self.started_ms or 0, *(record.at_ms for record in self.records))

    @property
    def ended(self) -> Record | None:
        ends = (r for r in reversed(self.records) if isinstance(r.event, JobEnded | Restarting))
        return next(ends, None)

    @property
    def cause(self) -> str | None:
        """Why it ended; if its driver was dead by then, what the supervisor wrote."""
        if self.ended is not None and isinstance(self.ended.event, JobEnded | Restarting):
            return self.ended.event.cause
        failed = self.status is not None and self.status.state is JobState.FAILED
        return self.status.cause if self.status is not None and failed else None

    def died(self, alive: Liveness) -> bool:
        """Return whether its driver died without reporting its end, given how the job is."""
        if self.ended is not None or not self.in_history:
            return False
        if not self.is_last:
            return True
        return not is_terminal(alive.state) and not alive.has_live_driver

    def state(self, alive: Liveness) -> str:
        if self.ended is not None and isinstance(self.ended.event, JobEnded):
            return self.ended.event.state
        if self.ended is not None:
            return RESTARTED
        return alive.state if self.is_last and not self.died(alive) else LOST

    def failure(self, alive: Liveness) -> model.FailureRow | None:
        """Return what went wrong with it; None if nothing did."""
        at_ms = self.last_ms if self.ended is None else self.ended.at_ms
        event = self.ended.event if self.ended is not None else None
        delay_ms = None
        if isinstance(event, Restarting):
            kind = "restarting"
            cause = event.cause
            delay_ms = event.delay_ms
        elif isinstance(event, JobEnded) and event.state == JobState.FAILED.value:
            kind = "failed"
            cause = event.cause or "no cause was recorded"
        elif event is None and self.cause is not None:
            kind = "failed"
            cause = self.cause
        elif event is None and self.died(alive):
            process = self.info.process if self.info is not None else None
            who = f"the driver (pid {process.pid} on {process.host})" if process else "the driver"
            kind = "driver died"
            cause = f"{who} was killed, ran out of memory, or its machine failed"
        else:
            return None
        return model.FailureRow(
            attempt=self.number, at_ms=at_ms, kind=kind, cause=cause, delay_ms=delay_ms
        )


def changed_files(attempt: AttemptLife) -> Iterator[model.FailureRow]:
    """What an attempt has found of files that were changed after they were read, newest first."""
    for record in reversed(attempt.records):
        event = record.event
        if isinstance(event, FilesChanged):
            text = changed_files_text(event.source, event.files, event.count)
            yield model.FailureRow(
                attempt=attempt.number, at_ms=record.at_ms, kind="files changed", cause=text
            )


def grouped_failures(rows: Iterable[model.FailureRow]) -> list[model.FailureRow]:
    """Return what went wrong, newest first, with what differs only in numbers as one row."""
    groups: dict[tuple[str, str], model.FailureRow] = {}
    for row in rows:
        key = row.kind, _NUMBER.sub("#", row.cause)
        newest = groups.get(key)
        if newest is None:
            groups[key] = msgspec.structs.replace(row, first_ms=row.at_ms)
        else:
            groups[key] = msgspec.structs.replace(
                newest, count=newest.count + 1, first_ms=row.at_ms
            )
    return list(groups.values())


def read_origins(directory: JobDirectory) -> list[AttemptOrigin]:
    """Return what attempts have started from, without their history if that is known without it."""
    numbers = directory.attempts()
    infos = [_info(directory, number) for number in numbers]
    known = [AttemptOrigin(info.checkpoint, info.snapshot) for info in infos if info is not None]
    if known and len(known) == numbers[-1]:
        return known
    return [attempt.origin for attempt in read_attempts(directory, None)]


def read_attempts(directory: JobDirectory, status: Status | None) -> list[AttemptLife]:
    """Return the attempts of a job that are remembered, oldest first."""
    records: dict[int, list[Record]] = {}
    for record in read_history(directory.storage):
        records.setdefault(record.attempt, []).append(record)
    infos = {number: _info(directory, number) for number in directory.attempts()}
    current = [status.attempt] if status is not None and status.attempt is not None else []
    numbers = sorted({*records, *infos, *current})
    oldest = min(records, default=0)
    return [
        AttemptLife(
            number,
            records.get(number, ()),
            infos.get(number),
            status if number == numbers[-1] else None,
            is_last=number == numbers[-1],
            in_history=number >= oldest,
        )
        for number in numbers
    ]


def _info(directory: JobDirectory, number: int) -> AttemptInfo | None:
    try:
        return directory.attempt(number)
    except (CorruptFileError, FormatVersionError):
        return None  # the history has the same, in fewer words
