from __future__ import annotations

from turnback.ops.model.view import View


class SavepointRow(View, frozen=True, kw_only=True):
    """A savepoint that a job has taken.

    Attributes:
        id: Its identity.
        job: The job.
        path: Its directory.
        created_ms: When it was taken.
        checkpoint: The checkpoint it was written from.
        epoch: The last epoch in it.
        label: A short name.
        note: Why it was taken.
        scheduled: Whether the schedule asked for it.
        bytes: Its size.
        exists: Whether it is still there; None if its storage does not answer.
        restore: The command that starts the job from it.
    """

    id: str
    job: str
    path: str
    created_ms: int
    checkpoint: int
    epoch: int
    label: str | None
    note: str | None
    scheduled: bool
    bytes: int
    exists: bool | None
    restore: str
