"""Does the driver of a job still run, and what does that make of what it last said?"""

from __future__ import annotations

from dataclasses import dataclass

from turnback.coordinator.process import ProcessId
from turnback.coordinator.status import JobState, Status
from turnback.ops.model import Process

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
        """Whether a driver may be running right now."""
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
        lives = supervisor is not None and supervisor.alive
        return Liveness(JobState.RESTARTING.value if lives else LOST, driver, supervisor)
    silent = now_ms - status.updated_ms
    problem = f"no word from its driver for {_span(silent)}" if silent > _SILENT_MS else None
    return Liveness(said, driver, supervisor, problem)


def look(process: ProcessId | None) -> Process | None:
    """Return a process and whether it lives, as far as that can be told from here."""
    if process is None:
        return None
    alive = process.is_alive() if process.is_local() else None
    return Process(host=process.host, pid=process.pid, alive=alive)


def _span(ms: int) -> str:
    minutes = ms // 60_000
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"
