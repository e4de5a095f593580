"""What an engine reports about its savepoints, as JSON between processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CANONICAL = "canonical"
NATIVE = "native"
EMPTY = "empty"
"""Not a savepoint: a start without one, to see what a start costs by itself."""

FORMATS = (CANONICAL, NATIVE)


@dataclass(frozen=True)
class Saved:
    """One savepoint, taken while the stream went on.

    Attributes:
        seconds: From the request to the answer.
        bytes: Of all its files.
        rate_before: Records a second before it.
        rate_during: Records a second while it was taken.
    """

    format: str
    seconds: float
    bytes: int
    rate_before: float
    rate_during: float

    @property
    def ratio(self) -> float:
        return self.rate_during / self.rate_before


@dataclass(frozen=True)
class Span:
    """Records that were processed between two moments of the wall clock."""

    start: float
    end: float
    records: int

    def overlaps(self, start: float, end: float) -> bool:
        return self.start < end and self.end > start


def rate(spans: Iterable[Span]) -> float:
    """Records a second from the start of the first to the end of the last, gaps included."""
    found = list(spans)
    return sum(s.records for s in found) / (max(s.end for s in found) - found[0].start)


def directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
