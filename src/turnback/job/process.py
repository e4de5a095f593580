"""Which process is this, and is that one still alive?"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import msgspec


class ProcessId(msgspec.Struct, frozen=True):
    """A process, told apart from every other one that ever had its number.

    Attributes:
        host: Name of the machine.
        machine: This boot of the machine and the space its process numbers belong to; `None` where
            the system does not tell.
        pid: Its number.
        started: When it started, in whatever form the system tells it; `None` where it does not.
    """

    host: str
    machine: str | None
    pid: int
    started: str | None

    @classmethod
    def current(cls) -> ProcessId:
        """Return this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return a process of this machine that runs now."""
        return cls(socket.gethostname(), _machine(), pid, _started(pid))

    def is_local(self) -> bool:
        """Return whether its life can be judged from here."""
        here = _machine()
        return here is not None and self.machine == here and self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Return whether this very process still runs; only for local ones."""
        started = _started(self.pid)
        return started is not None and started == self.started


def _machine() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Containers share the boot but count their processes separately.
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return _darwin_boot()


def _darwin_boot() -> str | None:
    return _output("sysctl", "-n", "kern.boottime")


def _started(pid: int) -> str | None:
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            # The name in parentheses may hold anything; after it, field 3 is the state and field
            # 22 the start in ticks since boot.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    return _output("ps", "-p", str(pid), "-o", "lstart=")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
