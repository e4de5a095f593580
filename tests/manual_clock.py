from __future__ import annotations

import threading


class ManualClock:
    """A clock for tests: it stands still until told to move. Safe to share between threads.

    Args:
        now_ms: Where the wall clock starts.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms

    def monotonic(self) -> float:
        with self._lock:
            return self._elapsed_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(round(seconds * 1000))

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError(f"time cannot go back by {-ms} ms; set_now_ms moves the wall clock")
        with self._lock:
            self._now_ms += ms
            self._elapsed_ms += ms

    def set_now_ms(self, now_ms: int) -> None:
        """Make the wall clock jump, in either direction; monotonic time stays."""
        with self._lock:
            self._now_ms = now_ms
