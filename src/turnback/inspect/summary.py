"""Whether the driver of a job still runs, and what that makes of the status it last wrote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import CheckpointError, StorageError, TurnbackError
from turnback.core.units import format_age
from turnback.inspect.locations import display_path
from turnback.inspect.model import JobSummary, OperatorNode, Process
from turnback.job.directory import JobDirectory, JobInfo
from turnback.job.run import ProcessId, RunDirectory
from turnback.job.status import JobProgram, JobState, Lag, Metrics, Status

LOST = "LOST"
UNREADABLE = "UNREADABLE"
_RECENT_MS, _MANY_RESTARTS = 600_000, 3
"""So many restarts in so long are a problem, also of a job that runs in between."""
_SILENT_MS = 60_000
_TERMINAL = frozenset(state.value for state in JobState if state.is_terminal)


@dataclass(frozen=True)
class Liveness:
    """Where a job is in its life, given which of its processes run.

    It is LOST if its driver died and nobody starts it again. `problem` is what people should know
    besides.
    """

    state: str
    driver: Process | None = None
    supervisor: Process | None = None
    problem: str | None = None

    @property
    def takes_requests(self) -> bool:
        """Whether a driver is there, or will be, to do what is requested."""
        return self.driver is not None and self.state != LOST and not is_terminal(self.state)

    @property
    def has_live_driver(self) -> bool:
        """Whether its driver lives, as far as that can be told from here."""
        return self.takes_requests and self.driver is not None and self.driver.alive is not False


def is_terminal(state: str) -> bool:
    """Return whether a job in this state goes on by itself no more."""
    return state in _TERMINAL


def liveness_of(status: Status | None, now_ms: int) -> Liveness:
    """Check the processes of a job, without waiting for anything."""
    if status is None:
        return Liveness(JobState.CREATED.value)
    driver, supervisor = _process(status.process), _process(status.supervisor)
    if status.state.is_terminal or driver is None or driver.alive:
        return Liveness(status.state.value, driver, supervisor)
    if driver.alive is False:
        if not _is_alive(supervisor):
            supervisor = _process(_new_supervisor(status)) or supervisor
        if _is_alive(supervisor):
            return Liveness(JobState.RESTARTING.value, driver, supervisor)
        return Liveness(LOST, driver, supervisor, _why_lost(driver, supervisor))
    silent = now_ms - status.updated_ms
    problem = (
        f"its driver has not reported for {format_age(silent)}" if silent > _SILENT_MS else None
    )
    return Liveness(status.state.value, driver, supervisor, problem)


def _why_lost(driver: Process, supervisor: Process | None) -> str:
    """Say what happened to a job that nobody runs any more, and what to do."""
    who = f"its driver (pid {driver.pid} on {driver.host})"
    if supervisor is None:
        how = (
            "ended without a word, and it was not started by `turnback run`, which would restart it"
        )
    else:
        how = f"and its supervisor (pid {supervisor.pid}) were killed, or the machine went down"
    return f"{who} {how}. Start it again: it goes on from its latest checkpoint"


def _process(process: ProcessId | None) -> Process | None:
    if process is None:
        return None
    alive = process.is_alive() if process.is_local() else None
    return Process(host=process.host, pid=process.pid, alive=alive)


def _is_alive(process: Process | None) -> bool:
    return process is not None and process.alive is True


def _new_supervisor(status: Status) -> ProcessId | None:
    """Return the supervisor in the run directory, which may be newer than that in the status.

    A driver whose supervisor was killed starts another one. That writes itself into the run
    directory at once; the status follows with the driver's next heartbeat, if it lives that long.
    """
    if status.log is None:
        return None
    try:
        return RunDirectory(Path(status.log).parent).supervisor()
    except (TurnbackError, msgspec.MsgspecError):
        return None  # removed or damaged: it tells no more than the status


def summarise(directory: JobDirectory, info: JobInfo, now_ms: int) -> JobSummary:
    """Return the summary of a job; `StorageError` if its status cannot be read."""
    status = directory.status()
    alive = liveness_of(status, now_ms)
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
    recent = _recent_restarts(status)
    if recent >= _MANY_RESTARTS and alive.state == JobState.RUNNING.value and not alive.problem:
        why = (status.cause or "").partition("\n")[0]
        problem = f"restarted {recent} times in the last ten minutes: {why}"
        summary = msgspec.structs.replace(summary, problem=problem)
    return msgspec.structs.replace(
        summary,
        updated_ms=status.updated_ms,
        started_ms=_started(directory, status),
        attempt=status.attempt,
        epoch=status.epoch,
        checkpoint=status.checkpoint,
        restarts=status.restarts,
        recent_restarts=recent,
        cause=None if alive.state == JobState.RUNNING.value else status.cause,
        log=status.log,
        records_in=status.metrics.read,
        records_per_s=status.metrics.per_s if alive.has_live_driver else None,
        lag=_total_lag(current_lag(status, alive).values()),
    )


def _recent_restarts(status: Status) -> int:
    """How many restarts there were shortly before the driver's last sign, by its own clock."""
    return sum(time > status.updated_ms - _RECENT_MS for time in status.restarted_ms)


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


def current_lag(status: Status, alive: Liveness) -> Mapping[str, Lag]:
    """The lag of sources by uid, as long as a driver runs them and reports."""
    running = alive.has_live_driver and alive.state == JobState.RUNNING.value
    return status.metrics.lag if running and alive.problem is None else {}


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
