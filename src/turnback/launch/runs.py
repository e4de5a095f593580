"""The launches of this machine: creating them, following them, and removing what is left."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from turnback.errors import UNDECODABLE, ConfigurationError
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.job.run import (
    LAUNCH,
    Launch,
    ProcessId,
    RunDirectory,
    RunEnd,
    RunError,
    RunningJob,
)
from turnback.job.status import JobState
from turnback.storage.locations import is_below, resolved

# -P: the working directory may hold a file of the same name.
SUPERVISOR = (sys.executable, "-P", "-m", "turnback.launch.supervisor")
"""The command that supervises a launch; its argument is the directory of the launch."""
_ROOT = "state.checkpoints.dir"
_POLL_S = 0.1
_ORPHANED_S = 15.0
_BLOCK = 64 << 10


class FinishedRuns(NamedTuple):
    """Directories of launches whose processes are all gone, oldest first.

    Those in `unclear` may belong to any root: they never came to a job, and name no root.
    """

    paths: list[Path]
    unclear: list[Path]


class Runs:
    """The launches of this machine: what was started here, and what it printed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, launch: Launch) -> RunDirectory:
        """Make the directory of a new launch."""
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = self.root / f"{now}-{secrets.token_hex(4)}"
        try:
            # What a driver prints, and what it was started with, may be secret.
            path.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(
                f"cannot create {path}: {error.strerror}. Set run.dir to a writable directory"
            ) from error
        run = RunDirectory(path)
        run.set_launcher(ProcessId.current())
        run.write(LAUNCH, msgspec.structs.replace(launch, supervisor=SUPERVISOR))
        return run

    def finished(self, root: str) -> FinishedRuns:
        """Return the launches that are over and belong to a root.

        A launch belongs to the root of the job it ran; one that never came to a job, to the root
        that it was started with.
        """
        entries = sorted(self.root.iterdir()) if self.root.is_dir() else []
        finished = [path for path in entries if self._is_finished(path)]
        belongs = {path: _belongs(RunDirectory(path), root) for path in finished}
        return FinishedRuns(
            paths=[path for path in finished if belongs[path]],
            unclear=[path for path in finished if belongs[path] is None],
        )

    def remove(self, path: Path) -> None:
        """Remove the directory of a launch that is over; refuses any other."""
        if path.parent != self.root or not self._is_finished(path):
            raise ConfigurationError(f"{path} is not the directory of a launch that has ended")
        shutil.rmtree(path)

    def _is_finished(self, path: Path) -> bool:
        if path.is_symlink() or not (path / LAUNCH).is_file():
            return False
        run = RunDirectory(path)
        try:
            # Until there is a supervisor, whoever launched it is about to start one.
            processes = (run.supervisor() or run.launcher(), run.driver())
            ended = run.end() is not None
        except UNDECODABLE:
            return False
        return all(process is None or _is_gone(process, ended) for process in processes)


def _belongs(run: RunDirectory, root: str) -> bool | None:
    """Return whether a launch belongs to a root, None if that is not known."""
    try:
        job = run.job()
        launch = run.read(LAUNCH, Launch)
    except UNDECODABLE:
        return None
    if job is not None:
        return is_below(job.directory, root)
    if launch is None:
        return None
    given = launch.root or launch.settings.get(_ROOT)
    if given is None:
        return None
    if "://" not in given:
        given = str(Path(launch.directory, Path(given).expanduser()))
    return resolved(given) == resolved(root)


def _is_gone(process: ProcessId, ended: bool) -> bool:
    """Return whether a process is gone; `ended`: its launch is recorded as over."""
    here = ProcessId.current()
    if process.is_local() or here.machine is None:
        return not process.is_alive()
    if process.host == here.host and _boot(process) != _boot(here):
        return True
    # On a machine or in a container that shares this directory.
    return ended


def _boot(process: ProcessId) -> str:
    return (process.machine or "").partition(" pid:[")[0]


def await_running(run: RunDirectory, on_wait: Callable[[], None] | None = None) -> RunEnd | None:
    """Wait until the job runs, or stands by; returns how the launch has ended if it never does.

    `on_wait` is called again and again meanwhile.
    """
    ends = _poll_end(run)
    while True:
        end = next(ends)
        if run.running() is not None or run.is_standby():
            return None
        if end is not None:
            return end
        if on_wait is not None:
            on_wait()


def why_never_run(run: RunDirectory, end: RunEnd) -> RunError:
    """Return why a launch that is over never had a running job."""
    error = run.error()
    if error is not None:
        return error
    if run.job() is None:
        return RunError("JobFailedError", f"{end.reason}: does it call execute()?")
    return RunError("JobFailedError", f"the job never ran: {end.reason}")


def await_end(run: RunDirectory, on_wait: Callable[[], None]) -> RunEnd:
    """Wait until the launch is over; `on_wait` is called again and again meanwhile."""
    ends = _poll_end(run)
    while (end := next(ends)) is None:
        on_wait()
    return end


def _poll_end(run: RunDirectory) -> Iterator[RunEnd | None]:
    """Yield how a launch has ended, None as long as it has not; also if nobody could record it."""
    alive_s = time.monotonic()
    while True:
        end = run.end()
        processes = (run.supervisor(), run.driver())
        if any(process is not None and process.is_alive() for process in processes):
            alive_s = time.monotonic()
        elif end is None and time.monotonic() - alive_s > _ORPHANED_S:
            end = RunEnd(None, "its driver and its supervisor are gone")
        yield end
        time.sleep(_POLL_S)


def job_directory(job: RunningJob) -> JobDirectory:
    """Return the directory of the job that a driver has reported."""
    return JobDirectory.locate(job.root, job.name, job.storage_options)


def final_state(run: RunDirectory) -> JobState | None:
    """Return the state the job has ended in, `None` if that is not known."""
    job = run.job()
    status = job_directory(job).status() if job is not None else None
    return status.state if status is not None and status.state.is_terminal else None


def cancel(run: RunDirectory) -> None:
    """End what was launched: the job in good order if it runs, else the processes."""
    job = run.job()
    if job is not None and run.running() is not None and not run.is_standby():
        Requests(job_directory(job).storage).submit(RequestSpec(RequestKind.CANCEL))
    else:
        kill(run)


def kill(run: RunDirectory) -> None:
    """End the processes of a launch at once, the supervisor first."""
    # Written first: a driver whose supervisor is gone starts another, which sees this and ends.
    run.set_end(RunEnd(None, "it was killed by the process that started it"))
    for process in (run.supervisor(), run.driver()):
        if process is not None and process.is_local() and process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


# -- logs


class LogFollower:
    """Prints what is added to a log file, from a position on."""

    def __init__(self, path: Path, out: TextIO, start: int = 0) -> None:
        self._path = path
        self._out = out
        self._position = start
        self._last = ""

    def has_printed(self, text: str) -> bool:
        """Whether a text is among the last that was printed."""
        return text.strip() in self._last

    def print_new(self) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._position:  # the file was begun anew
            self._position = 0
        if size == self._position:
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read(size - self._position)
        self._position = size
        text = data.decode(errors="replace")
        self._last = (self._last + text)[-_BLOCK:]
        self._out.write(text)
        self._out.flush()


def last_lines(path: Path, most: int) -> tuple[str, int]:
    """Return the last lines of a file, and where it ended when they were read."""
    data = b""
    with path.open("rb") as file:
        end = at = file.seek(0, os.SEEK_END)
        while at > 0 and data.count(b"\n") <= most:
            at = max(0, at - _BLOCK)
            file.seek(at)
            data = file.read(end - at)
    lines = data.decode(errors="replace").splitlines(keepends=True)
    if at > 0:
        del lines[:1]  # the beginning of this line was not read
    return "".join(lines[-most:] if most else []), end
