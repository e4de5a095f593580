"""A job in a few words: what its files say, and which of its processes run."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.errors import CheckpointError, StorageError
from turnback.job.directory import JobDirectory, JobInfo
from turnback.job.liveness import ACTIVE, Liveness, liveness_of, recent_restarts
from turnback.job.status import JobProgram, JobState, Lag, Metrics, Status
from turnback.storage.locations import display_path
from turnback.views.model import JobSummary, OperatorNode

UNREADABLE = "UNREADABLE"
_WEB_ADDRESS = re.compile(r"https?://[^\s/@]+(/\S*)?")


@dataclass(frozen=True)
class Observation:
    """What was seen of a job at one moment; without a status it has not run, or is unreadable."""

    summary: JobSummary
    status: Status | None
    alive: Liveness

    @property
    def metrics(self) -> Metrics:
        """Its numbers; lag and load only as long as a driver runs it and reports."""
        return Metrics() if self.status is None else _current_metrics(self.status, self.alive)


def observe(directory: JobDirectory, info: JobInfo, now_ms: int) -> Observation:
    """Read how a job is; `StorageError` if its status cannot be read."""
    status = directory.status()
    alive = liveness_of(status, now_ms)
    return Observation(_summary(directory, info, status, alive), status, alive)


def _summary(
    directory: JobDirectory, info: JobInfo, status: Status | None, alive: Liveness
) -> JobSummary:
    summary = JobSummary(
        name=info.job,
        job_id=info.job_id,
        directory=display_path(directory.storage.uri),
        state=alive.state,
        created_ms=info.created_ms,
        driver=alive.driver,
        supervisor=alive.supervisor,
        problem=alive.problem,
    )
    if status is None:
        return summary
    reports = alive.has_live_driver and not alive.silent
    return msgspec.structs.replace(
        summary,
        updated_ms=status.updated_ms,
        started_ms=_started(directory, status),
        attempt=status.attempt,
        epoch=status.epoch,
        checkpoint=status.checkpoint,
        restarts=status.restarts,
        recent_restarts=recent_restarts(status),
        cause=None if status.state is JobState.RUNNING and alive.state in ACTIVE else status.cause,
        log=status.log,
        spark_ui=_web_address(status.spark_ui) if alive.has_live_driver else None,
        application=status.application,
        records_in=status.metrics.read,
        records_per_s=status.metrics.per_s if reports else None,
        lag=_total_lag(_current_metrics(status, alive).lag.values()),
        restore=status.restore if reports else None,
    )


def _web_address(text: str | None) -> str | None:
    """Return an address that a browser may be sent to; anything else is not shown."""
    return text if text is not None and _WEB_ADDRESS.fullmatch(text) else None


def _total_lag(lags: Collection[Lag]) -> Lag | None:
    """The lag of several sources: it is gone when that of the last of them is."""
    if not lags:
        return None
    return Lag(
        records=_total(sum, [lag.records for lag in lags]),
        seconds=_total(max, [lag.seconds for lag in lags]),
        change_per_s=_total(sum, [lag.change_per_s for lag in lags]),
        catch_up_s=_total(max, [lag.catch_up_s for lag in lags]),
        measured_ms=min(lag.measured_ms for lag in lags),
    )


def _total(how: Callable[[Iterable[float]], float], values: list[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return how(known) if len(known) == len(values) else None


def _current_metrics(status: Status, alive: Liveness) -> Metrics:
    running = status.state is JobState.RUNNING and alive.state in ACTIVE
    if running and not alive.silent:
        return status.metrics
    return msgspec.structs.replace(status.metrics, lag={}, load={}, busy=None)


def _started(directory: JobDirectory, status: Status) -> int | None:
    if status.metrics.started_ms is not None or status.attempt is None:
        return status.metrics.started_ms
    try:
        attempt = directory.attempt(status.attempt)
    except StorageError:
        return None  # not worth hiding the job for
    return attempt.started_ms if attempt is not None else None


def operators(
    program: JobProgram, metrics: Metrics, states: Mapping[str, tuple[str, ...]]
) -> tuple[OperatorNode, ...]:
    """Return the graph of a program, with the numbers and states of its operators."""
    nodes = []
    for op in program.operators:
        records_in, records_out = metrics.records.get(op.uid, (0, 0))
        node = OperatorNode(
            **msgspec.structs.asdict(op),
            states=states.get(op.uid, ()),
            records_in=records_in,
            records_out=records_out,
            left_out=metrics.left_out.get(op.uid, 0),
            malformed=metrics.malformed.get(op.uid, 0),
            state_bytes=metrics.state_bytes.get(op.uid),
            watermark_ms=metrics.watermarks.get(op.uid),
            lag=metrics.lag.get(op.uid),
            load=metrics.load.get(op.uid),
        )
        nodes.append(node)
    return tuple(nodes)


def state_names(directory: JobDirectory, checkpoint: int | None) -> dict[str, tuple[str, ...]]:
    """Return the names of the states in a checkpoint, by operator; none if it cannot be read."""
    if checkpoint is None:
        return {}
    try:
        slot = CheckpointLog(directory.storage).get(checkpoint)
    except (StorageError, CheckpointError):
        return {}  # the checkpoint may be gone by now; the graph is worth showing without
    names: dict[str, tuple[str, ...]] = {}
    for schema in slot.schemas if isinstance(slot, Manifest) else ():
        names[schema.uid] = (*names.get(schema.uid, ()), schema.name)
    return names
