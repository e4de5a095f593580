"""How a lag changes, and when it will be gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import linear_regression

from turnback.job.status import Lag

_TREND_S = 60.0
_SHORTEST_TREND_S = 10.0
_ENDLESS_S = 30 * 86_400.0


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
