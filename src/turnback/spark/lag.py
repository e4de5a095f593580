"""How far sources are behind, asked from time to time beside the epochs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from statistics import linear_regression

from turnback.checkpoint.manifest import SourcePosition
from turnback.core.clock import Clock
from turnback.job.status import Lag
from turnback.program.plan import Plan
from turnback.program.source_lag import LagReader, OpenLagReader

_LOG = logging.getLogger(__name__)
_PAUSE_S = 5.0
_FRESH_S = 30.0
"""Longer than a reader takes to answer; what is older is not shown as if it held still."""
_TREND_S = 60.0
_SHORTEST_TREND_S = 10.0
_ENDLESS_S = 30 * 86_400.0

Positions = Mapping[str, SourcePosition]


class LagMonitor:
    """Knows how far each source of a job is behind its newest confirmed epoch.

    Every source that can be asked has a thread of its own, so that a system that does not answer
    holds up nothing else. Nothing here fails the job.

    Args:
        positions: Those of the newest confirmed epoch; None while no attempt runs.
    """

    def __init__(self, plan: Plan, positions: Callable[[], Positions | None], clock: Clock) -> None:
        self._sources = {
            source.uid: _SourceMonitor(source.uid, source.lag, positions, clock)
            for source in plan.sources
            if source.lag is not None
        }

    @contextmanager
    def watching(self) -> Iterator[None]:
        done = threading.Event()
        for uid, source in self._sources.items():
            name = f"turnback-lag-{uid}"
            threading.Thread(target=source.run, args=(done,), name=name, daemon=True).start()
        try:
            yield
        finally:
            done.set()  # nobody waits for a question that is open

    def lags(self) -> dict[str, Lag]:
        """The lag of every source that can tell, by uid."""
        lags = {uid: source.lag() for uid, source in self._sources.items()}
        return {uid: lag for uid, lag in lags.items() if lag is not None}


class _SourceMonitor:
    def __init__(
        self,
        uid: str,
        open_reader: OpenLagReader,
        positions: Callable[[], Positions | None],
        clock: Clock,
    ) -> None:
        self._uid = uid
        self._open = open_reader
        self._positions = positions
        self._clock = clock
        self._reader: LagReader | None = None
        self._trend = LagTrend()
        self._newest: tuple[float, Lag] | None = None
        self._failing = False

    def lag(self) -> Lag | None:
        if self._newest is None:
            return None
        measured, lag = self._newest
        if self._clock.monotonic() - measured > _FRESH_S:
            return Lag(records=None, seconds=None, measured_ms=lag.measured_ms)
        return lag

    def run(self, done: threading.Event) -> None:
        pause = min(1.0, _PAUSE_S)
        while not done.wait(pause):
            pause = _PAUSE_S
            self._measure()
        if self._reader is not None:
            with suppress(Exception):
                self._reader.close()

    def _measure(self) -> None:
        positions = self._positions()
        if positions is None:
            self._newest, self._trend = None, LagTrend()
            return
        at, now_ms = self._clock.monotonic(), self._clock.now_ms()
        position = positions.get(self._uid)
        try:
            self._reader = self._reader or self._open()
            read = self._reader.read(position.offset if position is not None else None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            if not self._failing:
                _LOG.warning("source %r: its lag is not known: %s", self._uid, error)
            self._failing, self._trend = True, LagTrend()
            self._newest = at, Lag(records=None, seconds=None, measured_ms=now_ms)
            return
        self._failing = False
        if read is None:
            self._newest = None
            return
        change = self._trend.add(at, read.records)
        self._newest = (
            at,
            Lag(
                records=read.records,
                seconds=read.seconds,
                change_per_s=change,
                catch_up_s=catch_up_s(read.records, change),
                measured_ms=now_ms,
            ),
        )


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
