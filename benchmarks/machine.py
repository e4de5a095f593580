"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Facts that belong beside every number."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    java: str
    load: float

    @staticmethod
    def here() -> Machine:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return Machine(
            cpu=_cpu_model(),
            cores=os.cpu_count() or 1,
            memory_gib=memory,
            system=f"{platform.system()} {platform.release()}",
            java=_java_version(),
            load=os.getloadavg()[0],
        )

    def describe(self) -> str:
        return (
            f"{self.cores} cores ({self.cpu}), {self.memory_gib:.0f} GiB, {self.system}, "
            f"{self.java}, load {self.load:.1f} at the start."
        )

    @property
    def busy(self) -> bool:
        """Whether other work was running, so that the numbers say little."""
        return self.load > 0.5 * self.cores


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
