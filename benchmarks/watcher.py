"""Something that is looked after again and again, in a thread, while a block runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TypeVar

W = TypeVar("W", bound="Watcher")


class Watcher(ABC):
    """Calls `look` while the block runs; what that raises is raised where the block ends."""

    every_s = 0.2

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @abstractmethod
    def look(self) -> None:
        """Look once; called from the thread, first of all when the block begins."""

    def __enter__(self: W) -> W:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while True:
                self.look()
                if self._stop.wait(self.every_s):
                    return
        except Exception as e:  # noqa: BLE001 - raised again where the block ends
            self._failure = e
