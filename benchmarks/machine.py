"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 3


@dataclass(frozen=True)
class Machine:
    """Facts that belong beside every number."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    java: str
    busy_cores: float

    @staticmethod
    def here() -> Machine:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return Machine(
            cpu=_cpu_model(),
            cores=os.cpu_count() or 1,
            memory_gib=memory,
            system=f"{platform.system()} {platform.release()}",
            java=_java_version(),
            busy_cores=_busy_cores(),
        )

    def describe(self) -> str:
        busy = " **Other work was running: these numbers say little.**" if self.busy else ""
        return (
            f"{self.cores} cores ({self.cpu}), {self.memory_gib:.0f} GiB, {self.system}, "
            f"{self.java}, {self.busy_cores:.1f} cores busy before the start.{busy}"
        )

    @property
    def busy(self) -> bool:
        """Whether other work was running, so that the numbers say little."""
        return self.busy_cores > 0.1 * self.cores


def _busy_cores() -> float:
    """Cores that do something else, or are kept from this machine, over some seconds.

    The load average would still show a benchmark that has just ended.
    """
    before = _processor_time()
    if before is None:
        return os.getloadavg()[0]
    time.sleep(SAMPLE_S)
    after = _processor_time() or before
    return (after - before) / os.sysconf("SC_CLK_TCK") / SAMPLE_S


def _processor_time() -> int | None:
    """Ticks of all cores that were not idle."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, *interrupts_and_steal = map(int, fields)
    return user + nice + system + sum(interrupts_and_steal)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _java_version() -> str:
    try:
        done = subprocess.run(
            ["java", "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "not found"
    return done.stderr.splitlines()[0]
