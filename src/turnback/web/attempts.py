"""Limits how often somebody may be wrong about the token."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

_MOST_CLIENTS = 1_000
_EVERYBODY = object()


class WrongTokens:
    """Counts the wrong tokens of each client, and of all clients, within the last minute.

    Args:
        now_ms: Tells the time.
        most: So many of a client may be wrong; then it has to wait, even with the right one.
        most_of_all: The same for all clients together: one may appear as many.
        window_ms: For how long each counts.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        most: int = 10,
        most_of_all: int = 200,
        window_ms: int = 60_000,
    ) -> None:
        self._now_ms = now_ms
        self._most = most
        self._most_of_all = most_of_all
        self._window_ms = window_ms
        self._times: dict[Hashable, deque[int]] = {}

    def wait_s(self, client: str) -> int | None:
        """In how many seconds the client may try again; None if it need not wait."""
        waits = (self._wait_ms(client, self._most), self._wait_ms(_EVERYBODY, self._most_of_all))
        longest = max(waits)
        return -(-longest // 1000) if longest > 0 else None

    def count(self, client: str) -> None:
        """Take note of a wrong token."""
        if len(self._times) > _MOST_CLIENTS:
            self._times = {_EVERYBODY: self._times[_EVERYBODY]}  # which still limits them
        for who in (client, _EVERYBODY):
            self._times.setdefault(who, deque()).append(self._now_ms())

    def _wait_ms(self, who: Hashable, most: int) -> int:
        times = self._times.get(who, deque())
        now = self._now_ms()
        while times and times[0] + self._window_ms <= now:
            times.popleft()
        return times[0] + self._window_ms - now if len(times) >= most else 0
