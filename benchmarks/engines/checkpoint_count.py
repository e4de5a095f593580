"""How many checkpoints Flink completed, read off its checkpoint directory while it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType


class CheckpointCount:
    """Looks for the highest finished `chk-N`; a job that ends well deletes them all."""

    def __init__(self, directory: Path) -> None:
        self.number = 0
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CheckpointCount:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for path in self._directory.glob("*/chk-*/_metadata"):
                self.number = max(self.number, int(path.parent.name.removeprefix("chk-")))
