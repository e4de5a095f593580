"""The greatest resident memory of the Python workers below this process, sampled from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

PAGE = os.sysconf("SC_PAGE_SIZE")


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
            for pid in _descendants(os.getpid()):
                if "pyspark.daemon" in _command(pid):
                    self.peak_bytes = max(self.peak_bytes, _resident_bytes(pid))


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _read(int(entry.name), "stat")
            # The command, in brackets, may itself hold spaces and brackets.
            fields = stat.rpartition(")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(root, []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def _resident_bytes(pid: int) -> int:
    fields = _read(pid, "statm").split()
    return int(fields[1]) * PAGE if len(fields) > 1 else 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # the process has ended meanwhile
        return ""
