from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import TracebackType

from turnback.coordinator.completed import CompletedCheckpoint


class Holds:
    """Files that must not be deleted yet, whatever retention says. Thread-safe.

    A driver shares one object between its attempts, so that an export goes on while the job
    restarts. Holds do not outlive the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[int, frozenset[str]] = {}
        self._next = 0
        self._on_release: Callable[[], None] = lambda: None

    def watch(self, on_release: Callable[[], None]) -> None:
        """Call this after each release, instead of what was called before."""
        with self._lock:
            self._on_release = on_release

    def add(self, paths: Collection[str]) -> int:
        """Hold files; return the token that releases them."""
        with self._lock:
            self._next += 1
            self._paths[self._next] = frozenset(paths)
            return self._next

    def release(self, token: int) -> None:
        """Let go of files; a second time changes nothing."""
        with self._lock:
            known = self._paths.pop(token, None) is not None
            on_release = self._on_release
        if known:
            on_release()

    def paths(self) -> frozenset[str]:
        """Return all files that are held."""
        with self._lock:
            return frozenset[str]().union(*self._paths.values())


class HeldCheckpoint:
    """A complete checkpoint whose files stay until it is released; release it in any case.

    Its manifest may be dropped meanwhile as retention says. As a context manager it releases
    itself.

    Args:
        checkpoint: The checkpoint.
        holds: What keeps its files.
    """

    def __init__(self, checkpoint: CompletedCheckpoint, holds: Holds) -> None:
        self.checkpoint = checkpoint
        self._holds = holds
        self._token = holds.add(checkpoint.manifest.files())

    def release(self) -> None:
        """Let go of the files; those that nobody needs are deleted. May be called twice."""
        self._holds.release(self._token)

    def __enter__(self) -> HeldCheckpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
