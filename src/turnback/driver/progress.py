"""How a running attempt gets on, for those who watch it from outside."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from turnback.core.clock import Clock
from turnback.driver.job import JobSpec
from turnback.job.status import AttemptProgress, WatchLimits

_GRAIN_MS = 1_000
"""Epochs that end within so long are kept as one."""


def watch_limits(spec: JobSpec) -> WatchLimits:
    """When a job counts as stalled, given how often it has epochs and checkpoints anyway."""
    settings = spec.settings
    watchdog = spec.watchdog
    epoch_ms = watchdog.no_epoch_ms
    checkpoint_ms = watchdog.no_checkpoint_ms
    if epoch_ms is not None:
        epoch_ms += spec.epoch_interval_ms
    if settings.interval_ms is None:
        checkpoint_ms = None
    elif checkpoint_ms is not None:
        checkpoint_ms += max(settings.interval_ms, settings.min_pause_ms)
    return WatchLimits(
        heartbeat_ms=watchdog.no_heartbeat_ms, epoch_ms=epoch_ms, checkpoint_ms=checkpoint_ms
    )


class ProgressMeter:
    """Notes when epochs begin and end, and what they wait for. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._since_ms = clock.now_ms()
        self._begun_s = 0.0
        self._asked_ms: int | None = None
        self._uncovered: deque[tuple[int, int]] = deque()
        """Confirmed epochs without a checkpoint, the last of a group and when its first ended."""

    def run(self) -> None:
        """The attempt begins to run."""
        with self._lock:
            self._since_ms = self._clock.now_ms()

    def begin(self, epoch: int) -> None:
        with self._lock:
            self._epoch, self._since_ms = epoch, self._clock.now_ms()
            self._begun_s = self._clock.monotonic()

    def end(self, epoch: int) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            self._epoch = None
            self._since_ms = now_ms
            first_ms = now_ms
            if self._uncovered and now_ms - self._uncovered[-1][1] < _GRAIN_MS:
                _, first_ms = self._uncovered.pop()
            self._uncovered.append((epoch, first_ms))

    def running_s(self) -> float:
        """For how long an epoch has been running; 0 between two of them."""
        with self._lock:
            return 0.0 if self._epoch is None else self._clock.monotonic() - self._begun_s

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While Spark is asked something that it answers in a moment."""
        self._asked_ms = self._clock.now_ms()
        try:
            yield
        finally:
            self._asked_ms = None

    def progress(self, covered: int | None) -> AttemptProgress:
        """How it gets on, given the epoch of the newest complete checkpoint."""
        with self._lock:
            while self._uncovered and covered is not None and self._uncovered[0][0] <= covered:
                self._uncovered.popleft()
            return AttemptProgress(
                epoch=self._epoch,
                since_ms=self._since_ms,
                asked_ms=self._asked_ms,
                uncovered_ms=self._uncovered[0][1] if self._uncovered else None,
            )
