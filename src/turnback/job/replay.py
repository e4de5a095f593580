"""Whether what comes after a savepoint can still be read, as a driver last found out."""

from __future__ import annotations

import msgspec


class SavepointReplay(msgspec.Struct, frozen=True, kw_only=True):
    """How long all records that come after a savepoint can be read again.

    Attributes:
        gone: Whether some of them cannot be any more.
        until_ms: About when the first of them will be deleted; None if nothing says so.
        as_of_ms: When that was found out, by the driver's clock.
    """

    gone: bool
    until_ms: int | None
    as_of_ms: int


class Replays(msgspec.Struct, frozen=True):
    """The savepoints of a job whose sources could be asked, by id."""

    savepoints: dict[str, SavepointReplay] = {}
