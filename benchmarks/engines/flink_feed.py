"""The stream that Flink reads: files that appear in a directory, some ahead of the reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.savepoint_dataset import SavepointDataset
from benchmarks.watcher import Watcher


class FlinkFeed(Watcher):
    """Keeps a number of unread records in the directory while the block runs.

    Files are links, so that a batch can come round again under another name.

    Args:
        ahead: Least number of unread records.
        read: How many records have been read since the job was started.
    """

    every_s = 0.1

    def __init__(
        self, dataset: SavepointDataset, directory: Path, ahead: int, read: Callable[[], int]
    ) -> None:
        super().__init__()
        self.records = 0
        self.batches = 0
        self._dataset = dataset
        self._directory = directory
        self._ahead = ahead
        self._read = read

    def load(self) -> None:
        """Give all keys once."""
        for path in self._dataset.load_csv():
            (self._directory / path.name).symlink_to(path)
        self.records += self._dataset.shape.keys

    def look(self) -> None:
        unread = self.records - self._read()
        while unread < self._ahead:
            self._add_batch()
            unread += self._dataset.shape.batch_records

    def _add_batch(self) -> None:
        for path in self._dataset.batch_csv(self.batches):
            (self._directory / f"{self.batches:05d}-{path.name}").symlink_to(path)
        self.batches += 1
        self.records += self._dataset.shape.batch_records
