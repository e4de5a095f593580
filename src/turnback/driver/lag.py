"""How a lag changes, and when it will be gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from statistics import linear_regression

from turnback.job.status import Lag

_TREND_S = 60.0
_SHORTEST_TREND_S = 10.0
_ENDLESS_S = 30 * 86_400.0
_PARTS = 20


class LagTrend:
    """How a lag has changed in the last minute."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, at: float, records: int | None) -> float | None:
        """Add a lag; return by how many records it grows in a second, None if it is too early."""
        if records is None:
            self._points.clear()
            return None
        self._points.append((at, records))
        while at - self._points[0][0] > _TREND_S:
            self._points.popleft()
        if at - self._points[0][0] < _SHORTEST_TREND_S:
            return None
        return linear_regression(*zip(*self._points, strict=True)).slope


class SteadyGrowth:
    """Whether a lag has grown all the time for so long, seen through what single epochs do to it.

    The time is cut into thirds: in each of the last two, the lag was never as low as in the third
    before it on average. A lag that only goes up and down, has grown once, or shrinks does not
    grow steadily.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grain = seconds / (3 * _PARTS)
        self._parts: deque[tuple[float, list[float]]] = deque()
        """When a part of the time began; lowest lag, sum and number of its lags."""

    def add(self, at: float, lag: float | None) -> bool:
        """Add a lag; return whether it has grown for the whole time."""
        if lag is None:
            self._parts.clear()
            return False
        if not self._parts or at - self._parts[-1][0] >= self._grain:
            self._parts.append((at, [lag, lag, 1]))
        else:
            numbers = self._parts[-1][1]
            numbers[:] = [min(numbers[0], lag), numbers[1] + lag, numbers[2] + 1]
        start = at - self._seconds
        while len(self._parts) > 1 and self._parts[1][0] <= start:
            self._parts.popleft()
        if self._parts[0][0] > start:
            return False  # it is too early to tell
        thirds: list[list[list[float]]] = [[], [], []]
        for began, numbers in self._parts:
            thirds[min(2, max(0, int(3 * (began - start) / self._seconds)))].append(numbers)
        return all(
            before and after and min(n[0] for n in after) > _mean(before)
            for before, after in pairwise(thirds)
        )


def _mean(parts: list[list[float]]) -> float:
    return sum(part[1] for part in parts) / sum(part[2] for part in parts)


def catch_up_s(records: int | None, change_per_s: float | None) -> float | None:
    """After how long a lag is gone if it goes on to change like this; None if that is never."""
    if records == 0:
        return 0.0
    if records is None or change_per_s is None or change_per_s >= 0:
        return None
    seconds = records / -change_per_s
    return seconds if seconds < _ENDLESS_S else None


def total_lag(lags: Mapping[str, Lag]) -> int | None:
    """Records that all sources together have not processed; None if one of them cannot tell."""
    records = [lag.records for lag in lags.values()]
    known = [number for number in records if number is not None]
    return sum(known) if known and len(known) == len(records) else None
