"""What a clean-up finds."""

from __future__ import annotations

from enum import StrEnum

from turnback.ops.model import View


class GarbageKind(StrEnum):
    """Why something is there that nothing needs."""

    FILES = "unused files"
    """State or offsets of an attempt, which no checkpoint references."""
    HALF_WRITTEN = "half-written files"
    """Files whose writers were killed."""
    SAVEPOINT = "partial savepoint"
    """A savepoint that was begun and will never be complete."""
    RECORD = "savepoint record"
    """The job's record of a savepoint that is gone."""
    STORES = "local stores"
    """Caches of state on this machine, of a job that does not use them any more."""
    RUN = "run directory"
    """What a launch that is over has left on this machine."""


class Garbage(View, frozen=True, kw_only=True):
    """Something that nothing needs any more.

    Attributes:
        kind: What it is.
        path: Where it is.
        bytes: Its size.
        reason: Why nothing needs it.
        job: The job it belongs to.
        root: The directory of all jobs, to look again before it is removed.
    """

    kind: GarbageKind
    path: str
    bytes: int
    reason: str
    job: str | None
    root: str


class Skipped(View, frozen=True, kw_only=True):
    """Something that was left alone.

    Attributes:
        path: Where it is.
        reason: Why it may still be needed.
        job: The job it belongs to.
    """

    path: str
    reason: str
    job: str | None = None
