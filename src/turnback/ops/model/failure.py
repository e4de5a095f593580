from __future__ import annotations

from turnback.ops.model.view import View


class FailureRow(View, frozen=True, kw_only=True):
    """Something that went wrong with a job.

    Attributes:
        attempt: The attempt it happened to.
        at_ms: When.
        kind: "restarting" (the attempt failed, the next one followed), "failed" (the job ended)
            or "driver died" (the next attempt was another process's).
        cause: Why.
        delay_ms: After how long the next attempt was to follow.
    """

    attempt: int
    at_ms: int
    kind: str
    cause: str
    delay_ms: int | None = None
