"""Does the driver of a job still run, and what does that make of what it last said?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import CheckpointError, StorageError, TurnbackError
from turnback.core.units import format_age
from turnback.inspect.locations import shown
from turnback.inspect.model import JobSummary, OperatorNode, Process
from turnback.job.directory import JobDirectory, JobInfo
from turnback.job.run import ProcessId, RunDirectory
from turnback.job.status import JobProgram, JobState, Metrics, Status

LOST = "LOST"
UNREADABLE = "UNREADABLE"
_SILENT_MS = 60_000
_TERMINAL = frozenset(state.value for state in JobState if state.is_terminal)


@dataclass(frozen=True)
class Liveness:
    """How a job is, by what its driver said and by whether that still runs.

    Attributes:
        state: Where it is in its life; LOST if its driver died and nobody starts it again.
        driver: Its driver.
        supervisor: What starts the driver again.
        problem: What people should know besides.
    """

    state: str
    driver: Process | None = None
    supervisor: Process | None = None
    problem: str | None = None

    @property
    def is_served(self) -> bool:
        """Whether somebody is there, or will be, to do what is asked of the job."""
        return self.driver is not None and self.state != LOST and not is_terminal(self.state)

    @property
    def is_driven(self) -> bool:
        return self.is_served and self.driver is not None and self.driver.alive is not False


def is_terminal(state: str) -> bool:
    """Return whether a job in this state goes on by itself no more."""
    return state in _TERMINAL


def judge(status: Status | None, now_ms: int) -> Liveness:
    """Look at the processes of a job, without waiting for anything.

    Args:
        status: What its driver last said.
        now_ms: The time here; only used to say how long a driver elsewhere has been silent.
    """
    if status is None:
        return Liveness(JobState.CREATED.value)
    said = status.state.value
    driver, supervisor = look(status.process), look(status.supervisor)
    if status.state.is_terminal or driver is None or driver.alive:
        return Liveness(said, driver, supervisor)
    if driver.alive is False:
        if not _lives(supervisor):
            supervisor = look(_new_supervisor(status)) or supervisor
        state = JobState.RESTARTING.value if _lives(supervisor) else LOST
        return Liveness(state, driver, supervisor)
    silent = now_ms - status.updated_ms
    problem = f"no word from its driver for {format_age(silent)}" if silent > _SILENT_MS else None
    return Liveness(said, driver, supervisor, problem)


def look(process: ProcessId | None) -> Process | None:
    """Return a process and whether it lives, as far as that can be told from here."""
    if process is None:
        return None
    alive = process.is_alive() if process.is_local() else None
    return Process(host=process.host, pid=process.pid, alive=alive)


def _lives(process: Process | None) -> bool:
    return process is not None and process.alive is True


def _new_supervisor(status: Status) -> ProcessId | None:
    """The supervisor that the run directory names, which may be newer than the one in the status.

    A driver whose supervisor was killed starts another one. That writes itself into the run
    directory at once; the status follows with the driver's next heartbeat, if it lives that long.
    """
    if status.log is None:
        return None
    try:
        return RunDirectory(Path(status.log).parent).supervisor()
    except (TurnbackError, msgspec.MsgspecError):
        return None  # removed or damaged: it tells no more than the status


def unreadable(name: str, location: str, problem: str, job_id: str | None = None) -> JobSummary:
    """Return the summary of a job of which nothing else can be said."""
    return JobSummary(
        name=name, job_id=job_id, directory=shown(location), state=UNREADABLE, problem=problem
    )


def summarise(directory: JobDirectory, info: JobInfo, now_ms: int) -> JobSummary:
    """Return the summary of a job.

    Raises:
        StorageError: Its status cannot be read.
    """
    status = directory.status()
    alive = judge(status, now_ms)
    summary = JobSummary(
        name=info.job,
        job_id=info.job_id,
        directory=shown(directory.storage.uri),
        state=alive.state,
        created_ms=info.created_ms,
        driver=alive.driver,
        supervisor=alive.supervisor,
        problem=alive.problem,
    )
    if status is None:
        return summary
    return msgspec.structs.replace(
        summary,
        updated_ms=status.updated_ms,
        started_ms=_started(directory, status),
        attempt=status.attempt,
        epoch=status.epoch,
        checkpoint=status.checkpoint,
        restarts=status.restarts,
        cause=status.cause,
        log=status.log,
        records_in=status.metrics.read,
        records_per_s=status.metrics.per_s if alive.is_driven else None,
    )


def operators(
    program: JobProgram, metrics: Metrics, states: Mapping[str, tuple[str, ...]]
) -> tuple[OperatorNode, ...]:
    """Return the graph of a program, with the numbers and states of its operators."""
    nodes = []
    for op in program.operators:
        read, written = metrics.records.get(op.uid, (0, 0))
        node = OperatorNode(
            **msgspec.structs.asdict(op),
            states=states.get(op.uid, ()),
            records_in=read,
            records_out=written,
            state_bytes=metrics.state_bytes.get(op.uid),
            watermark_ms=metrics.watermarks.get(op.uid),
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


def _started(directory: JobDirectory, status: Status) -> int | None:
    if status.metrics.started_ms is not None or status.attempt is None:
        return status.metrics.started_ms
    try:
        attempt = directory.attempt(status.attempt)
    except StorageError:
        return None  # not worth hiding the job for
    return attempt.started_ms if attempt is not None else None
