from __future__ import annotations

from turnback.ops.model.view import View


class RequestRow(View, frozen=True, kw_only=True):
    """Something that was asked of a job.

    Attributes:
        id: Of the request.
        kind: savepoint, stop or cancel.
        state: WAITING, RUNNING, COMPLETED or FAILED.
        created_ms: When it was asked.
        savepoint: Whether it takes a savepoint.
        done: Parts of the savepoint that are written.
        total: All parts; 0 while that is not known.
        bytes: Bytes written.
        started_ms: When the driver began with it.
        ended_ms: When it ended.
        path: Where the savepoint is.
        error: Why it failed.
    """

    id: str
    kind: str
    state: str
    created_ms: int
    savepoint: bool = False
    done: int = 0
    total: int = 0
    bytes: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    path: str | None = None
    error: str | None = None
