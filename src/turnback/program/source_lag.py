"""How far a source is behind, asked of the system it reads from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class SourceLag:
    """What a source has not processed yet; None for what is not known.

    Attributes:
        records: How many records.
        seconds: Age of the oldest of them; 0 if there is none.
    """

    records: int | None
    seconds: float | None


class LagReader(Protocol):
    """Asks one system how far a source is behind; lives on the driver, in a thread of its own.

    It keeps its connection between two questions. Whatever it raises means that the lag is not
    known now, and never fails the job.
    """

    def read(self, offset: str | None) -> SourceLag | None:
        """The lag behind a confirmed position, None as long as there is no such position.

        Answers or raises within some ten seconds. None if it cannot be told.
        """

    def close(self) -> None:
        """Give up the connection; called once, by the thread that reads."""


@runtime_checkable
class CommitsPositions(Protocol):
    """A `LagReader` that also tells the system how far the source is, for other tools to see."""

    def commit(self, offset: str) -> None:
        """Tell it the position of a complete checkpoint; what it raises fails nothing."""


@dataclass(frozen=True)
class ReplayLimit:
    """How long what comes after a position can be read.

    Attributes:
        gone: Whether some of it cannot be any more.
        until_ms: About when the first of it will be deleted; None if nothing says so.
    """

    gone: bool
    until_ms: int | None


@runtime_checkable
class KnowsReplayLimits(Protocol):
    """A `LagReader` that also knows for how long records can be read again."""

    def replay_limits(self, offsets: Collection[str]) -> dict[str, ReplayLimit]:
        """The limit for each of these positions; without those not known yet."""


OpenLagReader = Callable[[], LagReader]
"""Makes a reader, without waiting for the system to answer."""
