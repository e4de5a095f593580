"""From a launch to a running job, and to its end, as whoever started it sees them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from turnback.job.directory import JobDirectory
from turnback.job.process import ProcessId
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.job.run import RunDirectory, RunEnd, RunError, RunningJob
from turnback.job.status import JobState

_POLL_S = 0.1
_ORPHANED_S = 15.0
_TAIL = 40


@dataclass(frozen=True)
class Started:
    """What became of a launch so far.

    Attributes:
        job: The job, if the program got as far as that.
        error: Why it does not run.
        tail: The last lines it printed, if it does not run.
    """

    job: RunningJob | None
    error: RunError | None = None
    tail: tuple[str, ...] = ()


def await_running(run: RunDirectory, on_wait: Callable[[], None] = lambda: None) -> Started:
    """Wait until the job runs, or does not.

    Args:
        run: The launch; its supervisor is started.
        on_wait: Called again and again meanwhile.
    """
    watch = _Watch(run)
    while True:
        if run.running() is not None:
            return Started(run.job())
        end = watch.end()
        if end is not None:
            if run.running() is not None:
                return Started(run.job())
            return Started(run.job(), why_never_run(run, end), last_lines(run, _TAIL))
        on_wait()
        time.sleep(_POLL_S)


def why_never_run(run: RunDirectory, end: RunEnd) -> RunError:
    """Return why a launch that is over never had a running job."""
    told = run.error()
    if told is not None:
        return told
    if run.job() is None:
        return RunError("JobFailedError", f"{end.reason}: does it call execute()?")
    return RunError("JobFailedError", f"the job never ran: {end.reason}")


def await_end(run: RunDirectory, on_wait: Callable[[], None] = lambda: None) -> RunEnd:
    """Wait until the launch is over; `on_wait` is called again and again meanwhile."""
    watch = _Watch(run)
    while (end := watch.end()) is None:
        on_wait()
        time.sleep(_POLL_S)
    return end


def final_state(run: RunDirectory) -> JobState | None:
    """Return the state the job has ended in, `None` if it has not said."""
    job = run.job()
    if job is None:
        return None
    status = JobDirectory.locate(job.root, job.name, job.storage_options).status()
    return status.state if status is not None and status.state.is_terminal else None


def cancel(run: RunDirectory) -> None:
    """End what was launched: the job in good order if it runs, else the processes."""
    job = run.job()
    if job is not None and run.running() is not None:
        directory = JobDirectory.locate(job.root, job.name, job.storage_options)
        Requests(directory.storage).submit(RequestSpec(RequestKind.CANCEL))
    else:
        kill(run)


def kill(run: RunDirectory) -> None:
    """End the processes of a launch at once, the supervisor first."""
    # Said before: a driver whose supervisor is gone starts another, which sees this and ends.
    run.set_end(RunEnd(None, "it was killed by whoever started it"))
    for process in (run.supervisor(), run.driver()):
        if process is not None and process.is_local() and process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def last_lines(run: RunDirectory, most: int) -> tuple[str, ...]:
    """Return the end of what the driver printed."""
    try:
        data = run.log.read_bytes()[-200_000:]
    except FileNotFoundError:
        return ()
    return tuple(data.decode(errors="replace").splitlines()[-most:])


class _Watch:
    """Tells when a launch is over, also when nobody is left to say so."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._alive = time.monotonic()

    def end(self) -> RunEnd | None:
        found = self._run.end()
        if found is not None:
            return found
        if _alive(self._run.supervisor()) or _alive(self._run.driver()):
            self._alive = time.monotonic()
        elif time.monotonic() - self._alive > _ORPHANED_S:
            return RunEnd(None, "its driver and its supervisor are gone")
        return None


def _alive(process: ProcessId | None) -> bool:
    return process is not None and process.is_alive()
