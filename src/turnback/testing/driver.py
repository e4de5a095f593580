"""One driver of a job under test, which can be killed without ending the process of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from turnback.api.client import JobClient
from turnback.checkpoint.retention import PinnedCheckpoint
from turnback.core.errors import CheckpointError
from turnback.testing.engine import LocalEngine
from turnback.testing.points import POINTS, Countdown, changes, wrapping

_PATIENCE_S = 60.0
_DURABLE = (
    *(f"storage.local:LocalStorage.{name}" for name in ("put", "put_if_absent", "get", "delete")),
    "storage.local:LocalStorage.list",
    "sinks.memory:InlineCommitter.commit",
)
"""What a driver that was killed cannot do any more."""


class LocalDriver:
    """A running job, and the engine it runs on.

    To kill it is to let every thread of it fail whatever it does next that would outlive the
    process: nothing it had prepared becomes visible, nothing is rolled back or cleaned up.

    Args:
        engine: The engine.
        start: Starts the job.
        points: What kills it: named points and how often they have to be reached.
    """

    def __init__(
        self,
        engine: LocalEngine,
        start: Callable[[], JobClient],
        points: dict[str, int],
    ) -> None:
        self.engine = engine
        self.killed_at: str | None = None
        self._owner = threading.get_ident()
        self._before = set(threading.enumerate())
        self._wrapped = ExitStack()
        try:
            for method in _DURABLE:
                self._wrap(*wrapping(method, self._unless_killed))
            for name, count in points.items():
                self.kill_at(name, count)
            self.client = start()
        except BaseException:
            self._wrapped.close()
            raise

    def kill_at(self, name: str, count: int) -> None:
        """Kill it when it reaches a point for the given time."""
        reached = Countdown(count, lambda: self._kill(name))
        for point in POINTS[name]:
            for module, change in changes(point, reached):
                self._wrap(module, change)

    def kill(self) -> None:
        """Kill it now, and wait until nothing of it is left."""
        self.killed_at = "a moment of the test's choice"
        self.engine.is_killed = True
        self.wait_for_threads()

    def wait_for_threads(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        for thread in set(threading.enumerate()) - self._before:
            if thread.name.startswith("turnback"):
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    raise TimeoutError(f"{thread.name} of a driver that was killed does not end")

    def close(self) -> None:
        """End it, and leave the methods of Turnback as they were."""
        try:
            if not self.client.done():
                self.client.cancel()
            self.wait_for_threads()
        finally:
            self._wrapped.close()

    def is_running(self) -> bool:
        attempt = self.client._runner.attempt
        return attempt is not None and attempt.is_running and attempt.coordinator.failure is None

    def hold(self) -> Future[PinnedCheckpoint]:
        """Take a checkpoint of the newest epoch of the attempt that runs."""
        attempt = self.client._runner.attempt
        if attempt is None:
            failed: Future[PinnedCheckpoint] = Future()
            failed.set_exception(CheckpointError("the job restarts"))
            return failed
        return attempt.hold("harness")

    def _wrap(self, module: str, change: Any) -> None:
        self._wrapped.callback(change(import_module(module)))

    def _kill(self, name: str) -> None:
        self.killed_at = name
        self.engine.is_killed = True
        self.engine.check_alive()

    def _unless_killed(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        # The test itself goes on looking.
        if threading.get_ident() != self._owner:
            self.engine.check_alive()
        return method(*args, **named)
