"""An event loop beside whatever the calling thread does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class EventLoop:
    """An event loop in a thread of its own.

    Work goes on while the caller does something else. And the caller may be inside an event loop
    itself, as code in a notebook always is, where Python refuses to run a second one.

    Args:
        on_error: Is told what goes wrong where nobody waits for it; asyncio logs it by default.
    """

    def __init__(
        self, thread: str, on_error: Callable[[dict[str, Any]], object] | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        if on_error is not None:
            self._loop.set_exception_handler(lambda _, what: on_error(what))
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do some work and wait for it; it is cancelled if the wait is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """End the thread; nothing is waited for."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
