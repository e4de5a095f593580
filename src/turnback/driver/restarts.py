"""How often a job was started again, and whether it runs or only tries to."""

from __future__ import annotations

from turnback.core.clock import Clock
from turnback.job.status import JobState, Status, StatusUpdate

_PROVEN_S = 60.0
"""An attempt without input that has not failed for so long is taken to run."""
_KEPT = 20


class Restarts:
    """Counts restarts, those of drivers that died among them.

    An attempt that follows a failure is RESTARTING until it has processed something, or has lived
    for a while: a job that fails again and again at the same point never looks as if it ran.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.number = 0
        """How many there were since the job was started."""
        self.state = JobState.CREATED
        self._times: tuple[int, ...] = ()
        self._cause: str | None = None
        self._since_s: float | None = None
        """When the attempt that has to prove itself began to run; None if none has to."""

    def take_over(self, before: Status | None, job_id: str) -> None:
        """Go on where a driver that died has left off."""
        if before is None or before.job_id != job_id or before.state.is_terminal:
            return
        self.number = before.restarts
        self._times = before.restarted_ms
        running = before.state is JobState.RUNNING
        self.count("its driver died" if running or before.cause is None else before.cause)

    def count(self, cause: str) -> StatusUpdate:
        """Count a restart; returns what to write of it."""
        self.number += 1
        self._times = (*self._times, self._clock.now_ms())[-_KEPT:]
        self._cause = cause
        return self.update()

    def update(self) -> StatusUpdate:
        """What is to be written of all restarts so far."""
        return StatusUpdate(restarts=self.number, restarted_ms=self._times, cause=self._cause)

    def begin(self) -> JobState:
        """An attempt is prepared; returns the state of the job."""
        self.state = JobState.RESTARTING if self._cause is not None else JobState.CREATED
        return self.state

    def run(self) -> JobState:
        """An attempt begins to run; returns the state of the job."""
        if self._cause is None:
            self.state = JobState.RUNNING
        else:
            self._since_s = self._clock.monotonic()
        return self.state

    def end(self) -> None:
        """The attempt is over, whether it has proved itself or not."""
        self._since_s = None

    def prove(self, *, has_epoch: bool) -> bool:
        """Whether it is only now clear that the attempt runs: it has an epoch, or goes on well."""
        since = self._since_s
        if since is None or not (has_epoch or self._clock.monotonic() - since >= _PROVEN_S):
            return False
        self._since_s = None
        self._cause = None
        self.state = JobState.RUNNING
        return True
