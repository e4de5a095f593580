"""The supervisor: a process that starts a driver, and starts it again when it dies.

Attempts that fail are restarted by the driver itself. The supervisor is about the process: killed,
out of memory, gone. The next driver goes on from the latest checkpoint, as every start does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from turnback.config.restart import RestartStrategy, restart_from_configuration
from turnback.config.watchdog import AlertSettings
from turnback.core.units import describe_exit, format_duration
from turnback.errors import (
    FINAL,
    REPLACED,
    UNDECODABLE,
    CorruptFileError,
    FormatVersionError,
    StorageError,
    TurnbackError,
)
from turnback.job.alerts import Hooks, JobWatch
from turnback.job.catalog import SavepointCatalog
from turnback.job.request import RequestKind
from turnback.job.requests import Requests
from turnback.job.run import (
    LAUNCH,
    LAUNCH_VARIABLE,
    Launch,
    ProcessId,
    RunDirectory,
    RunEnd,
    RunError,
    RunningJob,
)
from turnback.job.status import JobState, Status, StatusUpdate
from turnback.launch.class_archive import start_writing
from turnback.launch.program import driver_command
from turnback.launch.runs import job_directory

T = TypeVar("T")
_TICK_S = 0.5
_RETRY_S = 600.0
_KEPT = ("attempt", "epoch", "checkpoint", "restarts", "metrics", "log")
"""What of the driver's last status stays when the supervisor writes the final one."""


class Supervisor:
    """Keeps the driver of one launch alive, as its job's restart strategy says."""

    def __init__(self, run: RunDirectory, launch: Launch) -> None:
        self._run = run
        self._launch = launch
        self._child: subprocess.Popen[bytes] | None = None
        self._job: RunningJob | None = None
        self._attempt: int | None = None
        self._start_error: RunError | None = None
        self._strategy: RestartStrategy | None = None
        self._deaths = 0
        self._warned = False
        self._archiver: subprocess.Popen[bytes] | None = None
        self._is_watching = False
        self._watching = ExitStack()

    def supervise(self) -> None:
        with self._watching:  # somebody is told how the job has ended before the launch ends
            end = self._supervise()
        self._run.set_end(end)

    def _supervise(self) -> RunEnd:
        """Start drivers until there is no other start; returns why."""
        driver = self._run.driver()  # of another supervisor; it may have died since
        if driver is not None:
            _print(f"supervisor {os.getpid()} takes over, for driver {driver.pid}")
        else:
            driver = self._start()
        while True:
            code = None if driver is None else self._wait_for(driver)
            end = self._end_of_driver(driver, code) or self._wait_to_restart(code)
            if end is not None:
                return end
            self._prepare_restart()
            driver = self._start()

    # -- the driver

    def _start(self) -> ProcessId | None:
        """Start a driver; None if the system does not allow it."""
        launch = self._launch
        self._start_error = None
        try:
            # Into the file, not through a pipe: a driver must not die of its supervisor's death.
            with self._run.log.open("ab") as log:
                self._child = subprocess.Popen(
                    driver_command(launch, self._run),
                    cwd=launch.directory,
                    env=os.environ
                    | {LAUNCH_VARIABLE: str(self._run.path / LAUNCH), "PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        except OSError as error:  # no memory for a process, or the working directory is gone
            no_start = self._start_error = RunError.of(error)
            _write_or_warn(lambda: self._run.set_error(no_start))
            return None
        driver = ProcessId.of(self._child.pid)
        _write_or_warn(lambda: self._run.set_driver(driver))
        return driver

    def _wait_for(self, driver: ProcessId) -> int | None:
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
            if self._attempt is None:
                self._remember()
                if self._attempt is not None and self._launch.class_archive:
                    self._write_class_archive()
            if self._archiver is not None:
                self._archiver.poll()  # or it stays a zombie
            self._rotate()

    def _rotate(self) -> None:
        try:
            rotate(self._run.log, self._launch.log_bytes)
        except OSError as error:  # it is gone, or the disk is full
            if not self._warned:
                _print(f"cannot rotate the log, retrying: {error}")
            self._warned = True

    def _write_class_archive(self) -> None:
        """Make the next start quicker; the job runs by now, and nothing waits for this."""
        try:
            self._archiver = start_writing()
        except OSError as error:
            _print(f"cannot write the archive of Spark's classes: {error}")

    def _remember(self) -> None:
        """Remember what the driver has reported: its files may be gone when they are needed."""
        job = _read_or_none(self._run.job)
        attempt = _read_or_none(self._run.running)
        self._job = self._job if job is None else job
        self._attempt = self._attempt if attempt is None else attempt
        if self._job is not None and not self._is_watching:
            self._is_watching = True
            self._watch(self._job)

    def _watch(self, job: RunningJob) -> None:
        """Tell whoever is to be told when something is wrong with the job."""
        try:
            alerts = AlertSettings.from_configuration(job.alerts)
            if alerts.enabled:
                watch = JobWatch(job_directory(job), Hooks(alerts))
                self._watching.enter_context(watch.watching())
        except TurnbackError as error:
            _print(f"cannot watch job {job.name!r}: {error}")

    def _prepare_restart(self) -> None:
        """Write again what the next driver reads, whatever has become of the files."""
        attempt = self._attempt
        _write_or_warn(lambda: self._run.write(LAUNCH, self._launch))
        if attempt is not None:
            _write_or_warn(lambda: self._run.set_running(attempt))
        _write_or_warn(self._run.forget_error)

    # -- what follows

    def _end_of_driver(self, driver: ProcessId | None, code: int | None) -> RunEnd | None:
        """Return how the driver has ended for good, if it has."""
        self._remember()
        job = self._job
        error = self._error()
        if error is not None and (job is None or self._attempt is None):
            return RunEnd(code, "the program failed")
        if job is None:
            if code:
                self._run.set_error(RunError("ProcessDied", f"the program {_exit_text(code)}"))
            return RunEnd(code, "the program ended before it ran a job")
        status = _status(job)
        # The status may still be that of an older driver.
        if status is not None and status.process == driver and status.state.is_terminal:
            _answer_requests(job, status.state)
            return RunEnd(code, f"the job is {status.state.value}")
        if error is not None:
            return self._end_without_restart(job, error, code)
        return RunEnd(code, "the program ended") if code == 0 else None

    def _end_without_restart(
        self, job: RunningJob, error: RunError, code: int | None
    ) -> RunEnd | None:
        """Return why a job that has run before is not restarted, if its driver's error says so."""
        rebuilt = error.rebuilt()
        if isinstance(rebuilt, REPLACED):
            if self._launch.standby:
                return None
            return RunEnd(code, f"another driver has taken over the job: {error.message}")
        if not isinstance(rebuilt, FINAL):
            return None
        reason = f"a restart would not help: {error.message}"
        _print(reason)
        _write_final_status(job, JobState.FAILED, reason)
        return RunEnd(code, reason)

    def _error(self) -> RunError | None:
        """Return what the driver ended with, if it could report that."""
        try:
            return self._start_error or self._run.error()
        except (*UNDECODABLE, StorageError) as error:
            return RunError("StorageError", f"cannot read the error of the driver: {error}")

    def _wait_to_restart(self, code: int | None) -> RunEnd | None:
        """Wait as the restart strategy says; returns why there is no restart, if so."""
        job = self._job
        error = self._error()
        assert job is not None
        if self._launch.standby and error is not None and isinstance(error.rebuilt(), REPLACED):
            _print(f"another driver has taken over, and this one stands by: {error.message}")
            time.sleep(_TICK_S)
            return None
        self._deaths += 1
        how = f"the driver {'could not be started' if self._start_error else _exit_text(code)}"
        if error is not None:
            how += f": {error.message.rstrip('.')}"
        delay = self._delay(job)
        if delay is None:
            reason = f"{how}, and the restart strategy does not allow another restart"
            _print(reason)
            _write_final_status(job, JobState.FAILED, reason)
            _answer_requests(job, JobState.FAILED)
            self._run.set_error(RunError("JobFailedError", f"job {job.name!r} failed: {reason}"))
            return RunEnd(code, reason)
        _print(f"{how}; restarting it in {format_duration(delay)} (restart {self._deaths})")
        until = time.monotonic() + delay / 1000
        while True:
            if _cancelled(job):
                _write_final_status(job, JobState.CANCELED, None)
                _answer_requests(job, JobState.CANCELED)
                return RunEnd(code, "the job is CANCELED")
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(left, _TICK_S))

    def _delay(self, job: RunningJob) -> int | None:
        if self._strategy is None:
            configured = restart_from_configuration(job.restart)
            self._strategy = configured.create() if configured is not None else None
        now = round(time.monotonic() * 1000)
        return self._strategy(now) if self._strategy is not None else None


def _status(job: RunningJob) -> Status | None:
    """Return the job's status; None also if it cannot be read, which is no reason to give up."""
    try:
        return _retrying(job_directory(job).status)
    except TurnbackError as error:
        _print(f"cannot read the status of job {job.name!r}: {error}")
        return None


def _write_final_status(job: RunningJob, state: JobState, cause: str | None) -> None:
    """Write in the driver's place that the job has ended."""
    last = _status(job)
    if last is not None and last.state.is_terminal:
        return  # another driver has had the job since
    try:
        directory = job_directory(job)
        other = None if last is None else _retrying(directory.in_use)
        if other is not None:
            _print(f"job {job.name!r} is run by pid {other.process.pid} and stays untouched")
            return
        kept = {name: getattr(last, name) for name in _KEPT} if last is not None else {}
        update = StatusUpdate(cause=cause, **kept)
        _retrying(lambda: directory.write_status(state, job.job_id, update))
    except TurnbackError as error:
        _print(f"cannot write the status {state.value} of job {job.name!r}: {error}")


def _cancelled(job: RunningJob) -> bool:
    """Return whether the job is to be cancelled, while no driver is there to do so."""
    try:
        requests = Requests(job_directory(job).storage).open()
    except TurnbackError as error:  # the next driver reads them as well
        _print(f"cannot read requests to job {job.name!r}: {error}")
        return False
    return any(r.kind is RequestKind.CANCEL and not r.savepoint for r in requests)


def _answer_requests(job: RunningJob, state: JobState) -> None:
    """Answer what the driver has left open, after the job has ended."""
    storage = job_directory(job).storage
    try:
        _retrying(lambda: Requests(storage).answer_ended(SavepointCatalog(storage), state))
    except TurnbackError as error:  # whoever waits sees that the job has ended
        _print(f"cannot answer requests to job {job.name!r}: {error}")


def _read_or_none(read: Callable[[], T | None]) -> T | None:
    """Read a file of the launch; one that is damaged counts as missing."""
    try:
        return read()
    except (*UNDECODABLE, StorageError) as error:
        _print(f"cannot read a file of this launch: {error}")
        return None


def _write_or_warn(write: Callable[[], None]) -> None:
    """Write a file of the launch; a full disk is no reason to leave a job without a driver."""
    try:
        write()
    except StorageError as error:
        _print(f"cannot write a file of this launch: {error}")


def _retrying(call: Callable[[], T]) -> T:
    """Try again while the storage does not answer: giving up would leave the job without driver."""
    until = time.monotonic() + _RETRY_S
    while True:
        try:
            return call()
        except StorageError as error:
            if isinstance(error, CorruptFileError | FormatVersionError) or time.monotonic() > until:
                raise
            _print(f"retrying: {error}")
            time.sleep(10 * _TICK_S)


def _exit_text(code: int | None) -> str:
    return "died" if code is None else describe_exit(code)


def _print(message: str) -> None:
    with suppress(OSError):  # the disk that holds the log may be full
        print(f"turnback: {message}", flush=True)


def rotate(log: Path, most: int) -> None:
    """Keep the newest and the part before it; the driver goes on appending to the same file."""
    if log.stat().st_size > most:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


@contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
    """Hold the lock of a launch; it ends with this process, however that ends."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _default_signals() -> None:
    """Handle signals as if started from a terminal: the program inherits what is ignored here.

    Whoever started this may ignore signals, as `nohup` and many CI runners do.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main(path: str) -> int:
    """Supervise the launch in a directory, unless somebody does already."""
    _default_signals()
    run = RunDirectory(path)
    with _exclusive(run.path / "supervisor.lock") as mine:
        if not mine or _read_or_none(run.end) is not None:
            return 0
        run.set_supervisor(ProcessId.current())
        launch = _read_or_none(lambda: run.read(LAUNCH, Launch))
        if launch is None:
            _print(f"{run.path / LAUNCH} is missing or damaged")
            return 1
        try:
            Supervisor(run, launch).supervise()
        except TurnbackError as error:
            _print(f"the supervisor gives up: {error}")
            run.set_end(RunEnd(None, str(error)))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
