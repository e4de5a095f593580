"""Where the slow steps of a checkpoint run, one after the other."""

import queue
import threading
from collections.abc import Callable
from typing import Protocol


class Lane(Protocol):
    """Runs jobs one at a time, in the order given."""

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after all given before. Jobs do not raise."""

    def close(self, timeout_s: float) -> bool:
        """Take no more jobs; return whether all given ones ended within the time."""


class ThreadLane:
    """A lane with one thread, started when there is something to do.

    The thread is a daemon: storage that never answers must not keep a finished driver alive.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """See `Lane.submit`."""
        self._jobs.put(job)
        with self._lock:
            if self._thread is None:
                name = f"turnback-{self._name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """See `Lane.close`."""
        with self._lock:
            thread = self._thread
        if thread is None:
            return True
        self._jobs.put(None)
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it may hold a whole cut while the lane waits for the next one


class InlineLane:
    """A lane without a thread: `submit` returns when the job is done. For tests and tools.

    Args:
        name: Ignored.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name

    def submit(self, job: Callable[[], None]) -> None:
        """See `Lane.submit`."""
        job()

    def close(self, timeout_s: float) -> bool:
        """See `Lane.close`."""
        return True
