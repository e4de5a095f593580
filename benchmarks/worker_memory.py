"""The greatest resident memory of the Python workers below this process, sampled from /proc."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from benchmarks.processes import command, descendants, resident_bytes


class WorkerMemory:
    """Watches while the block runs; `peak_bytes` is that of the largest single worker."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
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
            for pid in descendants(os.getpid()):
                if "pyspark.daemon" in command(pid):
                    self.peak_bytes = max(self.peak_bytes, resident_bytes(pid))
