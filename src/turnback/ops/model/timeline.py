"""The lives of jobs, as a picture shows them."""

from __future__ import annotations

from turnback.ops.model.savepoint import SavepointRow
from turnback.ops.model.view import View


class StartedFrom(View, frozen=True, kw_only=True):
    """What an attempt started from.

    Attributes:
        kind: "checkpoint" or "savepoint".
        job: The job that took it, if it is known.
        checkpoint: Number of the checkpoint; of a savepoint, the one it was written from.
        savepoint: Id of the savepoint.
        path: Where it is or was.
    """

    kind: str
    job: str | None = None
    checkpoint: int | None = None
    savepoint: str | None = None
    path: str | None = None


class TimelineAttempt(View, frozen=True, kw_only=True):
    """A life of a job.

    Attributes:
        attempt: Its number.
        started_ms: When it began.
        ended_ms: When it ended, as far as is known; None while it runs.
        state: How it is or ended: RUNNING, RESTARTED, FINISHED, FAILED, CANCELED, LOST.
        started_from: What it started from; None for nothing.
        cause: Why it ended.
    """

    attempt: int
    started_ms: int
    ended_ms: int | None
    state: str
    started_from: StartedFrom | None = None
    cause: str | None = None


class TimelineJob(View, frozen=True, kw_only=True):
    """A job in a timeline."""

    name: str
    state: str
    attempts: tuple[TimelineAttempt, ...]
    savepoints: tuple[SavepointRow, ...]


class Timeline(View, frozen=True, kw_only=True):
    """A job, the jobs it descends from and those that descend from it.

    Attributes:
        job: The job.
        now_ms: The end of the picture.
        jobs: Ancestors first.
    """

    job: str
    now_ms: int
    jobs: tuple[TimelineJob, ...]
