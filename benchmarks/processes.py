"""Processes as /proc shows them: who started whom, and what they have used."""

from __future__ import annotations

import os
import time
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[int]:
    """All processes that this one has started, or that those have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(root, []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def resident_bytes(pid: int) -> int:
    fields = _read(pid, "statm").split()
    return int(fields[1]) * PAGE if len(fields) > 1 else 0


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, without those it has started."""
    return sum(map(int, _stat(pid)[11:13])) / TICKS


def started_at(pid: int) -> float:
    """The wall clock's time at which it started, to a hundredth of a second."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + int(_stat(pid)[19]) / TICKS


def _stat(pid: int) -> list[str]:
    """The fields from the state on; the command before it may hold spaces and brackets."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # the process has ended meanwhile
        return ""
