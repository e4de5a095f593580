"""How many checkpoints Flink completed, read off its checkpoint directory while it runs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.watcher import Watcher


class CheckpointCount(Watcher):
    """Looks for the highest finished `chk-N`; a job that ends well deletes them all."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.number = 0
        self._directory = directory

    def look(self) -> None:
        for path in self._directory.glob("*/chk-*/_metadata"):
            self.number = max(self.number, int(path.parent.name.removeprefix("chk-")))
