"""How far an attempt is with restoring state, and when it will be done."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from turnback.core.clock import Clock
from turnback.core.errors import StorageError
from turnback.core.units import format_age
from turnback.job.status import RestoreProgress
from turnback.storage.base import Storage
from turnback.worker.restoring import DIRECTORY, REPORT_S, WHOLE

_LOG = logging.getLogger(__name__)
_LOG_S = 10.0


@dataclass
class _Restoring:
    """One thing that is being restored by many tasks; the weight of a task is its entries."""

    what: str
    attempt: int
    weights: Mapping[str, float]
    since_ms: int
    since_s: float
    newest: RestoreProgress | None = None
    logged_s: float = 0.0


class RestoreMeter:
    """Adds up what tasks report while they restore, see `turnback.worker.restoring`. Thread-safe.

    What is restored within moments is never shown.
    """

    def __init__(self, job: str, storage: Storage, clock: Clock) -> None:
        self._job = job
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._current: _Restoring | None = None

    def begin(self, what: str, attempt: int, weights: Mapping[str, float]) -> None:
        """Tasks of these names begin to restore something."""
        with self._lock:
            now_ms = self._clock.now_ms()
            now_s = self._clock.monotonic()
            self._current = _Restoring(what, attempt, dict(weights), now_ms, now_s)

    def end(self) -> None:
        """All is restored, or given up."""
        with self._lock:
            current = self._current
            self._current = None
            if current is None or self._clock.monotonic() - current.since_s < REPORT_S:
                return  # too quick for any report
            try:
                for path in self._storage.list(DIRECTORY):
                    self._storage.delete(path)
            except StorageError as error:
                _LOG.warning("%s is not cleared, which does no harm: %s", DIRECTORY, error)

    def progress(self) -> RestoreProgress | None:
        """How far it is; None if nothing is restored, or nothing is known of it yet."""
        with self._lock:
            current = self._current
            if current is None or self._clock.monotonic() - current.since_s < REPORT_S:
                return None
            try:
                sizes = self._storage.sizes(f"{DIRECTORY}/{current.attempt}")
            except StorageError:
                return current.newest
            reported = {path.rpartition("/")[2]: size for path, size in sizes.items()}
            if reported.keys() & current.weights.keys():
                current.newest = self._progress(current, reported)
                self._log(current, current.newest)
            return current.newest

    def _progress(self, current: _Restoring, reported: Mapping[str, int]) -> RestoreProgress:
        total = sum(current.weights.values())
        entries = sum(
            weight * min(reported.get(task, 0), WHOLE) / WHOLE
            for task, weight in current.weights.items()
        )
        done = entries / total if total else 0.0
        now_ms = self._clock.now_ms()
        elapsed_s = self._clock.monotonic() - current.since_s
        before = current.newest
        moved = before is None or done > before.done
        return RestoreProgress(
            what=current.what,
            done=done,
            entries=round(total),
            since_ms=current.since_ms,
            moved_ms=now_ms if moved or before is None else before.moved_ms,
            left_s=elapsed_s * (1 - done) / done if done else None,
        )

    def _log(self, current: _Restoring, progress: RestoreProgress) -> None:
        now_s = self._clock.monotonic()
        if current.logged_s and now_s - current.logged_s < _LOG_S:
            return
        current.logged_s = now_s
        left = ""
        if progress.left_s is not None:
            left = f", about {format_age(round(progress.left_s * 1000))} left"
        _LOG.info("job %r: %s: %.0f %%%s", self._job, progress.what, 100 * progress.done, left)
