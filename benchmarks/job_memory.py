"""How much memory a job takes, sampled from /proc while it runs below this process."""

from __future__ import annotations

import os

from benchmarks.processes import command, descendants, resident_bytes
from benchmarks.watcher import Watcher


class JobMemory(Watcher):
    """The greatest resident memory of the largest Python worker, of the driver and of its JVM."""

    def __init__(self) -> None:
        super().__init__()
        self.worker_bytes = 0
        self.driver_bytes = 0
        self.jvm_bytes = 0

    def look(self) -> None:
        self.driver_bytes = max(self.driver_bytes, resident_bytes(os.getpid()))
        for pid in descendants(os.getpid()):
            words = command(pid)
            if "pyspark.daemon" in words:
                self.worker_bytes = max(self.worker_bytes, resident_bytes(pid))
            elif "/java " in words:
                self.jvm_bytes = max(self.jvm_bytes, resident_bytes(pid))
