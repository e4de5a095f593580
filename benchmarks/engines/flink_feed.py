"""The stream that Flink reads: files that appear in a directory, some ahead of the reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from benchmarks.savepoint_dataset import SavepointDataset

POLL_S = 0.1


class FlinkFeed:
    """Keeps a number of unread records in the directory while the block runs.

    Files are links, so that a batch can come round again under another name.

    Args:
        ahead: Least number of unread records.
        read: How many records have been read since the job was started.
    """

    def __init__(
        self, dataset: SavepointDataset, directory: Path, ahead: int, read: Callable[[], int]
    ) -> None:
        self.records = 0
        self.batches = 0
        self._dataset = dataset
        self._directory = directory
        self._ahead = ahead
        self._read = read
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def load(self) -> None:
        """Give all keys once."""
        for path in self._dataset.load_csv():
            (self._directory / path.name).symlink_to(path)
        self.records += self._dataset.shape.keys

    def __enter__(self) -> FlinkFeed:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                unread = self.records - self._read()
                while unread < self._ahead:
                    self._add_batch()
                    unread += self._dataset.shape.batch_records
                self._stop.wait(POLL_S)
        except Exception as e:  # noqa: BLE001 - raised again where the block ends
            self._failure = e

    def _add_batch(self) -> None:
        for path in self._dataset.batch_csv(self.batches):
            (self._directory / f"{self.batches:05d}-{path.name}").symlink_to(path)
        self.batches += 1
        self.records += self._dataset.shape.batch_records
