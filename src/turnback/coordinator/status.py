from enum import Enum
from typing import Any

import msgspec

from turnback.coordinator.process import ProcessId

FORMAT = 1


class JobState(Enum):
    """Where a job is in its life, in Flink's words."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def is_terminal(self) -> bool:
        """Whether no driver runs the job any more."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELED)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is doing, as its driver last said.

    Attributes:
        format: Version of this document.
        job: Name of the job.
        job_id: Its identity.
        state: Where it is in its life.
        process: The driver.
        owner: Tells two drivers in one process apart.
        heartbeat: Moves as long as the driver lives.
        updated_ms: When the driver said so, by its own clock.
        attempt: The attempt.
        epoch: The newest confirmed epoch.
        checkpoint: The newest complete checkpoint.
        restarts: How often the job was restarted by this driver.
        cause: Why it failed or is restarting.
        detail: Whatever else the driver wants to show.
    """

    format: int = FORMAT
    job: str
    job_id: str
    state: JobState
    process: ProcessId
    owner: str
    heartbeat: int
    updated_ms: int
    attempt: int | None = None
    epoch: int | None = None
    checkpoint: int | None = None
    restarts: int = 0
    cause: str | None = None
    detail: dict[str, Any] = {}
