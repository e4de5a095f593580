from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from turnback.job.run import Launch, ProcessId, RunDirectory
from turnback.launch.runs import Runs

DRIVER = Path(__file__).with_name("driver.py")


class Launches:
    """Starts `driver.py` under a real supervisor."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "jobs"
        self.runs = Runs(directory / "runs")
        self.started: list[RunDirectory] = []

    def start(self, how: str, *more: str) -> RunDirectory:
        run = self.prepare(how, *more)
        run.start_supervisor()
        return run

    def prepare(self, how: str, *more: str, directory: str = ".") -> RunDirectory:
        launch = Launch(
            script=str(DRIVER),
            arguments=(str(self.root), how, *more),
            directory=directory,
            root=str(self.root),
        )
        run = self.runs.create(launch)
        self.started.append(run)
        return run

    def kill(self, process: ProcessId | None) -> None:
        if process is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)

    def close(self) -> None:
        for run in self.started:
            for process in (run.supervisor(), run.driver()):
                self.kill(process)


def until(what: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
