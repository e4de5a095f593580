"""Drivers of the crash job as processes: started, paused, killed and cleared away by their ids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import faults

_JOB = Path(__file__).with_name("job.py")
_SOURCES = Path(__file__).parents[2] / "src"
PATIENCE_S = float(os.environ.get("TURNBACK_TEST_PATIENCE", "300"))
"""How long a single step may take; generous, as other work may keep the machine busy."""


class Driver:
    """One driver process, with its Java process and Python workers in a session of its own.

    Args:
        arguments: Of `job.py`.
        directory: For its output and temporary files; must be new.
        gate: The file the job waits for.
        environment: Added to this process's environment.
        job: Another program than `job.py`.
    """

    def __init__(
        self,
        arguments: list[str],
        directory: Path,
        gate: Path,
        environment: Mapping[str, str] | None = None,
        job: Path = _JOB,
    ) -> None:
        directory.mkdir(parents=True)
        self._gate = gate
        self._directory = directory
        scratch = directory / "tmp"
        scratch.mkdir()
        ours = {
            "PYTHONPATH": os.pathsep.join((faults.DIRECTORY, str(_SOURCES))),
            "SPARK_LOCAL_DIRS": str(scratch),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(scratch),
        }
        with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(job), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **ours, **(environment or {})},
                start_new_session=True,
            )
        self.pid = self.process.pid

    def go(self) -> None:
        """Start the job."""
        self._gate.touch()

    def until_ready(self) -> None:
        """Wait until nothing but `go` is missing."""
        ready = self._gate.with_suffix(".ready")
        self.until_running(ready.exists, "come to the gate")

    def wait(self) -> int:
        """Wait for the end of the process and of all it started; return the exit status."""
        self.until(lambda: self.process.poll() is not None, "end")
        self.clear()
        return self.process.returncode

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; fail with the driver's output when it does not come."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"the driver did not {what} in {PATIENCE_S:g} s\n{self.errors}")
            time.sleep(0.02)

    def until_running(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the driver does before it ends."""
        self.until(lambda: condition() or self.process.poll() is not None, what)
        if not condition():
            raise AssertionError(
                f"the driver ended with {self.process.returncode} and did not {what}\n{self.errors}"
            )

    @property
    def report(self) -> dict[str, Any]:
        """What the driver says it has done."""
        lines = (self._directory / "out").read_text().splitlines()
        if not lines:
            raise AssertionError(f"the driver has reported nothing\n{self.errors}")
        report: dict[str, Any] = json.loads(lines[-1])
        return report

    @property
    def errors(self) -> str:
        """The end of its standard error."""
        return self.log[-4000:]

    @property
    def log(self) -> str:
        """Its standard error."""
        return (self._directory / "err").read_text(errors="replace")

    def is_stopped(self) -> bool:
        """Whether the process is paused."""
        return _stat(self.pid)[:1] == ["T"]

    def pause(self) -> None:
        """Pause the process, not its workers."""
        self.process.send_signal(signal.SIGSTOP)
        self.until(self.is_stopped, "stop")

    def resume(self) -> None:
        """Let a paused process go on."""
        self.process.send_signal(signal.SIGCONT)

    def members(self) -> list[int]:
        """The processes of the driver's session that are alive."""
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208
            if (stat := _stat(pid)) and stat[0] != "Z" and int(stat[3]) == self.pid
        ]

    def clear(self) -> None:
        """See that everything the driver started is gone.

        Java and the workers notice by themselves that the driver is dead; those that take too
        long are ended.
        """
        end = time.monotonic() + 20
        while self.members() and time.monotonic() < end:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """End the driver and everything it started, at once."""
        while members := self.members():
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.process.wait()


def _stat(pid: int) -> list[str]:
    """State, parent, group, session and so on of a process; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parent(pid: int) -> int:
    """The process that started another."""
    return int(_stat(pid)[1])
