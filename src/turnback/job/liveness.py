"""Where a job is in its life: what its driver wrote last, and whether that driver still runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from turnback.core.units import format_age
from turnback.errors import UNDECODABLE, TurnbackError
from turnback.job.run import ProcessId, RunDirectory
from turnback.job.status import AttemptProgress, JobState, Lag, RestoreProgress, Status

LOST = "LOST"
STALLED = "STALLED"
ACTIVE = frozenset((JobState.RUNNING.value, STALLED))
"""The states of a job that processes its input, or should."""
_RECENT_MS = 600_000
_MANY_RESTARTS = 3
"""So many restarts in so long are a problem, also of a job that runs in between."""
_SILENT_MS = 60_000
_TERMINAL = frozenset(state.value for state in JobState if state.is_terminal)


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a job; `alive` is None if that cannot be told from this machine."""

    host: str
    pid: int
    alive: bool | None


@dataclass(frozen=True)
class Liveness:
    """Where a job is in its life, given which of its processes run.

    It is LOST if its driver died and nobody starts it again, and STALLED if it should get on and
    does not. `problem` is what people should know besides; the report of a driver that is `silent`
    is too old to be true.
    """

    state: str
    driver: Process | None = None
    supervisor: Process | None = None
    problem: str | None = None
    silent: bool = False

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
    driver = _process(status.process)
    supervisor = _process(status.supervisor)
    if status.state.is_terminal:
        return Liveness(status.state.value, driver, supervisor)
    if driver is not None and driver.alive is False:
        if not _is_alive(supervisor):
            supervisor = _process(_new_supervisor(status)) or supervisor
        if _is_alive(supervisor):
            return Liveness(JobState.RESTARTING.value, driver, supervisor)
        return Liveness(LOST, driver, supervisor, _why_lost(driver, supervisor))
    stall = stall_of(status, now_ms)
    if stall is not None:
        return Liveness(STALLED, driver, supervisor, stall.reason, stall.silent)
    silence = None
    if driver is None or driver.alive is None:
        silence = _silence(now_ms - status.updated_ms)
    problem = silence or _restart_loop(status) or "; ".join(status.notices) or None
    return Liveness(status.state.value, driver, supervisor, problem, silence is not None)


def _silence(silent_ms: int) -> str | None:
    """What is to be said of a driver elsewhere that has no limit of its own."""
    if silent_ms <= _SILENT_MS:
        return None
    return f"its driver has not reported for {format_age(silent_ms)}"


def recent_restarts(status: Status) -> int:
    """How many restarts there were shortly before the driver's last sign, by its own clock."""
    return sum(time > status.updated_ms - _RECENT_MS for time in status.restarted_ms)


def is_restart_loop(status: Status) -> bool:
    """Return whether a job is started again and again."""
    return recent_restarts(status) >= _MANY_RESTARTS


def _restart_loop(status: Status) -> str | None:
    if status.state is not JobState.RUNNING or not is_restart_loop(status):
        return None
    why = (status.cause or "").partition("\n")[0]
    return f"restarted {recent_restarts(status)} times in the last ten minutes: {why}"


def _why_lost(driver: Process, supervisor: Process | None) -> str:
    """Say what happened to a job that nobody runs any more, and what to do."""
    who = f"its driver (pid {driver.pid} on {driver.host})"
    if supervisor is None:
        how = "died, and the job was not started with `turnback run`, which would restart it"
    else:
        how = f"and its supervisor (pid {supervisor.pid}) were killed, or the machine failed"
    return f"{who} {how}. Start the job again: it resumes from its latest checkpoint"


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
    except (TurnbackError, *UNDECODABLE):
        return None  # removed or damaged: it tells no more than the status


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
    how_far = f"has been stuck at {int(100 * restore.done)} % for {format_age(stuck_ms)}"
    return Stall(f"{restore.what} {how_far}")


def _epochs(status: Status, progress: AttemptProgress) -> Iterator[str]:
    limits = status.limits
    now_ms = status.updated_ms
    if progress.asked_ms is not None and progress.epoch is None:
        asked_ms = now_ms - progress.asked_ms
        if limits.heartbeat_ms is not None and asked_ms > limits.heartbeat_ms:
            yield f"Spark has not responded for {format_age(asked_ms)}"
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
        yield f"no epoch for {format_age(since_ms)} although records are waiting: {sources}"


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
        text += f" (the checkpoint of epoch {oldest.epoch} has been in progress for {took})"
    yield text


def _growing(uid: str, lag: Lag) -> str:
    now = "" if lag.records is None else f" and is {lag.records:,} records"
    return f"the lag of source {uid!r} has grown for {format_age(lag.growing_ms or 0)}{now}"
