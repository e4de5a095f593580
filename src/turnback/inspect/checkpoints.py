"""The checkpoints of a job, as its history remembers them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import CheckpointNotFoundError, CorruptFileError, FormatVersionError
from turnback.inspect.model import CheckpointHistory, CheckpointRow, CheckpointStatus, Distribution
from turnback.job.history import AttemptStarted, CheckpointFailed, CheckpointStats, Record
from turnback.job.status import Status, UnderWay


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
    rows = [*under_way, *(_unrecorded(manifest, directory) for manifest in unrecorded)]
    for record in reversed(records):
        if isinstance(record.event, CheckpointStats):
            rows.append(
                _done(record, record.event, _path(record.event.number, retained, directory))
            )
        elif isinstance(record.event, CheckpointFailed):
            path = _path(record.event.number, retained, directory)
            rows.append(_failed(record, record.event, path))
    by_status = [row.status for row in rows]
    done = [row for row in rows if row.status is CheckpointStatus.COMPLETED]
    return CheckpointHistory(
        completed=len(done),
        failed=by_status.count(CheckpointStatus.FAILED),
        in_progress=by_status.count(CheckpointStatus.IN_PROGRESS),
        restored=sum(_is_restore(record) for record in records),
        duration_ms=distribution([row.duration_ms for row in done]),
        sync_ms=distribution([row.sync_ms for row in done]),
        async_ms=distribution([row.async_ms for row in done]),
        delta_bytes=distribution([row.delta_bytes for row in done]),
        full_bytes=distribution([row.full_bytes for row in done]),
        rows=tuple(rows),
    )


def unrecorded(log: CheckpointLog, records: Sequence[Record]) -> list[Manifest]:
    """Return the checkpoints that are newer than the history, which is written now and then."""
    known = max(
        (r.event.number for r in records if isinstance(r.event, CheckpointStats)), default=0
    )
    found = []
    for number in reversed(log.numbers()):
        if number <= known:
            break
        try:
            slot = log.get(number)
        except (CheckpointNotFoundError, CorruptFileError, FormatVersionError):
            continue  # dropped meanwhile; or `verify` is what tells
        if isinstance(slot, Manifest):
            found.append(slot)
    return found


def under_way_rows(status: Status) -> list[CheckpointRow]:
    """Return the checkpoints that a live driver is taking, newest first."""
    pending = sorted(status.metrics.under_way, key=lambda one: one.epoch, reverse=True)
    return [_pending(one, status.attempt or 0) for one in pending]


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


def _path(number: int | None, retained: Collection[int], directory: str) -> str | None:
    return f"{directory}/checkpoints/chk-{number}.json" if number in retained else None


def _done(record: Record, event: CheckpointStats, path: str | None) -> CheckpointRow:
    beside = event.manifest_ms + event.commit_ms
    since_trigger = event.waited_ms + beside
    return CheckpointRow(
        number=event.number,
        status=CheckpointStatus.COMPLETED,
        attempt=record.attempt,
        epoch=event.epoch,
        trigger=event.trigger,
        triggered_ms=record.at_ms - since_trigger,
        duration_ms=event.sync_ms + since_trigger,
        sync_ms=event.sync_ms,
        async_ms=beside,
        delta_bytes=event.delta_bytes,
        full_bytes=event.full_bytes,
        files=event.files,
        acknowledged=event.tasks or None,
        tasks=event.tasks or None,
        path=path,
    )


def _unrecorded(manifest: Manifest, directory: str) -> CheckpointRow:
    return CheckpointRow(
        number=manifest.number,
        status=CheckpointStatus.COMPLETED,
        attempt=manifest.attempt,
        epoch=manifest.epoch,
        trigger=manifest.trigger,
        triggered_ms=manifest.created_ms,
        path=_path(manifest.number, {manifest.number}, directory),
    )


def _failed(record: Record, event: CheckpointFailed, path: str | None) -> CheckpointRow:
    return CheckpointRow(
        number=event.number,
        status=CheckpointStatus.FAILED,
        attempt=record.attempt,
        epoch=event.epoch,
        trigger=event.trigger,
        triggered_ms=record.at_ms - event.after_ms,
        duration_ms=event.after_ms,
        path=path,
        reason=event.reason,
    )


def _pending(one: UnderWay, attempt: int) -> CheckpointRow:
    return CheckpointRow(
        number=None,
        status=CheckpointStatus.IN_PROGRESS,
        attempt=attempt,
        epoch=one.epoch,
        trigger=one.trigger,
        triggered_ms=one.triggered_ms,
    )
