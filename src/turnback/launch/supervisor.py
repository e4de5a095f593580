"""A program that starts a driver, and starts it again when it dies.

An attempt that fails is the driver's own business. This is about the process: killed, out of
memory, gone. The next one goes on from the latest checkpoint, as every start does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from turnback.config.launch import LAUNCH, LAUNCH_VARIABLE, Launch
from turnback.coordinator.catalog import SavepointCatalog
from turnback.coordinator.jobdir import JobDirectory
from turnback.coordinator.outcomes import answer_ended
from turnback.coordinator.process import ProcessId
from turnback.coordinator.request import RequestKind
from turnback.coordinator.requests import Requests
from turnback.coordinator.restart import RestartStrategy, restart_from_configuration
from turnback.coordinator.rundir import RunDirectory, RunEnd, RunError, RunningJob
from turnback.coordinator.status import JobState
from turnback.core.duration import format_duration
from turnback.core.errors import StorageError, TurnbackError

T = TypeVar("T")
_TICK_S = 0.5
_PATIENCE_S = 600.0


class Supervisor:
    """Keeps one driver alive, as its job's restart strategy says.

    Args:
        run: The launch.
        launch: What was asked for.
    """

    def __init__(self, run: RunDirectory, launch: Launch) -> None:
        self._run = run
        self._launch = launch
        self._child: subprocess.Popen[bytes] | None = None
        self._strategy: RestartStrategy | None = None
        self._deaths = 0

    def supervise(self) -> None:
        """Return when the driver has ended for good."""
        driver = self._adopted() or self._start()
        while True:
            code = self._await(driver)
            end = self._is_over(driver, code) or self._wait_to_restart(code)
            if end is not None:
                self._run.set_end(end)
                return
            self._run.forget_error()
            driver = self._start()

    # -- the driver

    def _adopted(self) -> ProcessId | None:
        """The driver that another supervisor has started; it may have died since."""
        driver = self._run.driver()
        if driver is not None:
            _say(f"supervisor {os.getpid()} takes over, for driver {driver.pid}")
        return driver

    def _start(self) -> ProcessId:
        launch = self._launch
        # Into the file, not through a pipe: a driver must not die of its supervisor's death.
        with self._run.log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, launch.script, *launch.arguments],
                cwd=launch.directory,
                env=os.environ
                | {LAUNCH_VARIABLE: str(self._run.path / LAUNCH), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        driver = ProcessId.of(self._child.pid)
        self._run.set_driver(driver)
        return driver

    def _await(self, driver: ProcessId) -> int | None:
        """Wait for the driver's end; returns its exit status, if it was started here."""
        while True:
            if self._child is not None:
                try:
                    return self._child.wait(_TICK_S)
                except subprocess.TimeoutExpired:
                    pass
            elif driver.is_alive():
                time.sleep(_TICK_S)
            else:
                return None
            rotate(self._run.log, self._launch.log_bytes)

    # -- what follows

    def _is_over(self, driver: ProcessId, code: int | None) -> RunEnd | None:
        """Whether the driver has come to its own end, good or bad."""
        job = self._run.job()
        if self._run.error() is not None:
            return RunEnd(code, "the program failed")
        if job is None:
            if code:
                self._run.set_error(RunError("ProcessDied", f"the program {_told(code)}"))
            return RunEnd(code, "the program ended before it ran a job")
        status = _patiently(_directory(job).status)
        # An older driver's last words are not this one's.
        if status is not None and status.process == driver and status.state.is_terminal:
            _patiently(lambda: _answer(job, status.state))
            return RunEnd(code, f"the job is {status.state.value}")
        if code == 0:
            return RunEnd(code, "the program ended")
        return None

    def _wait_to_restart(self, code: int | None) -> RunEnd | None:
        """Wait as the restart strategy says; returns why there is no restart, if so."""
        job = self._run.job()
        assert job is not None
        self._deaths += 1
        how = f"the driver {_told(code)}"
        if self._strategy is None:
            configured = restart_from_configuration(job.restart)
            self._strategy = configured.create() if configured is not None else None
        now = round(time.monotonic() * 1000)
        delay = self._strategy.on_failure(now) if self._strategy is not None else None
        if delay is None:
            reason = f"{how}, and the restart strategy allows no other start"
            _say(reason)
            _conclude(job, JobState.FAILED, reason)
            _patiently(lambda: _answer(job, JobState.FAILED))
            self._run.set_error(RunError("JobFailedError", f"job {job.name!r} failed: {reason}"))
            return RunEnd(code, reason)
        _say(f"{how}; it is started again in {format_duration(delay)} (time {self._deaths})")
        until = time.monotonic() + delay / 1000
        while True:
            if _patiently(lambda: _cancelled(job)):
                _conclude(job, JobState.CANCELED, None)
                _patiently(lambda: _answer(job, JobState.CANCELED))
                return RunEnd(code, "the job is CANCELED")
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(left, _TICK_S))


def _directory(job: RunningJob) -> JobDirectory:
    return JobDirectory.locate(job.root, job.name, job.storage_options)


def _conclude(job: RunningJob, state: JobState, cause: str | None) -> None:
    """Say in the driver's place that the job has ended."""
    directory = _directory(job)
    last = directory.status()
    kept = {}
    if last is not None:
        kept = {
            "attempt": last.attempt,
            "epoch": last.epoch,
            "checkpoint": last.checkpoint,
            "restarts": last.restarts,
            "metrics": last.metrics,
            "log": last.log,
        }
    directory.say(state, job.job_id, cause=cause, **kept)


def _cancelled(job: RunningJob) -> bool:
    """Whether the job is to be cancelled, while no driver is there to do so."""
    return any(
        request.kind is RequestKind.CANCEL and not request.savepoint
        for request in Requests(_directory(job).storage).open()
    )


def _answer(job: RunningJob, state: JobState) -> None:
    """Answer what the driver has left open, after the job has ended."""
    storage = _directory(job).storage
    answer_ended(Requests(storage), SavepointCatalog(storage), state)


def _patiently(ask: Callable[[], T]) -> T:
    """Ask a storage that may not answer at once: giving up would leave the job without a driver."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except StorageError as error:
            if time.monotonic() > until:
                raise
            _say(f"asking again: {error}")
            time.sleep(10 * _TICK_S)


def _told(code: int | None) -> str:
    if code is None:
        return "died"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"


def _say(what: str) -> None:
    print(f"turnback: {what}", flush=True)


def rotate(log: Path, most: int) -> None:
    """Keep the newest and the part before it; the driver goes on appending to the same file."""
    if log.stat().st_size > most:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


@contextmanager
def _only_one(path: Path) -> Iterator[bool]:
    """Hold the lock of a launch; it ends with this process, however that ends."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def main(path: str) -> int:
    """Supervise the launch in a directory, unless somebody does already."""
    run = RunDirectory(path)
    with _only_one(run.path / "supervisor.lock") as mine:
        if not mine or run.end() is not None:
            return 0
        run.set_supervisor(ProcessId.current())
        launch = run.read(LAUNCH, Launch)
        if launch is None:
            _say(f"{run.path / LAUNCH} is gone")
            return 1
        try:
            Supervisor(run, launch).supervise()
        except TurnbackError as error:
            _say(f"the supervisor gives up: {error}")
            run.set_end(RunEnd(None, str(error)))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
