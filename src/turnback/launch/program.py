"""The process of a driver: runs the script of a launch, and looks after its supervisor.

`python -m turnback.launch.program DIRECTORY ...` takes the place of `python SCRIPT ARGUMENTS...`.
What follows the directory is only for whoever lists processes: an argument may be a secret, and
all users of a machine can read the command lines of all processes.

The supervisor starts a driver that dies again, and the driver a supervisor that dies. That has to
hold from the driver's first moment on: imports and Spark may take a minute.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType

from turnback.core.masking import mask_arguments
from turnback.errors import UNDECODABLE, ConfigurationError, StorageError
from turnback.job.run import Launch, ProcessId, RunDirectory

_LOG = logging.getLogger("turnback.launch.program")  # this is the main module, by another name
# -P: the working directory may hold a file of the same name.
_DRIVER = (sys.executable, "-P", "-m", "turnback.launch.program")
_TICK_S = 0.5


def driver_command(launch: Launch, run: RunDirectory) -> list[str]:
    """The command that runs the script of a launch."""
    return [*_DRIVER, str(run.path), launch.script, *mask_arguments(launch.arguments)]


class SupervisorWatch:
    """Starts another supervisor when that of this driver has died."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._started: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_failing = False

    def start(self) -> None:
        """Watch in the background, until this process ends."""
        threading.Thread(target=self._watch, name="turnback-supervisor-watch", daemon=True).start()
        # It may die just before the driver ends, and somebody has to see how that ends.
        atexit.register(self.check)

    def check(self) -> ProcessId | None:
        """Return the supervisor if it lives; else start another one, if that is called for."""
        with self._lock:
            try:
                supervisor = self._check()
                self._is_failing = False
            except (OSError, ConfigurationError, StorageError, *UNDECODABLE) as error:
                if not self._is_failing:
                    _LOG.warning("cannot start a supervisor, retrying: %s", error)
                self._is_failing = True
                return None
            return supervisor

    def _check(self) -> ProcessId | None:
        try:
            supervisor = self._run.supervisor()
        except UNDECODABLE:
            supervisor = None
        if supervisor is not None and supervisor.is_alive():
            return supervisor
        is_starting = self._started is not None and self._started.poll() is None
        if not is_starting and self._run.end() is None:
            _LOG.warning("the supervisor of this driver has died; starting another one")
            self._started = self._run.start_supervisor()
        return None

    def _watch(self) -> None:
        while True:
            supervisor = self.check()
            if supervisor is None:
                time.sleep(_TICK_S)
            else:
                _await_end(supervisor)


def _await_end(process: ProcessId) -> None:
    """Return as soon as a process has ended, or after a moment where the system cannot tell."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, an old kernel, or it has ended
        time.sleep(_TICK_S)
        return
    try:
        if process.is_alive():  # its number may be another process's by now
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll()
    finally:
        os.close(descriptor)


def run_script(launch: Launch) -> None:
    """Run the script as the main program of this process."""
    sys.argv = [launch.script, *launch.arguments]
    sys.path.insert(0, str(Path(launch.script).parent))
    # It stays the main module when its last line is done: other threads may still run its job.
    main = ModuleType("__main__")
    main.__file__ = launch.script
    sys.modules["__main__"] = main
    code = compile(Path(launch.script).read_bytes(), launch.script, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _show_errors_of(script: str) -> None:
    """Let tracebacks begin in the script, as if Python had been started with it."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        traceback.print_exception(kind, error, trace)

    sys.excepthook = show


def main(path: str) -> None:
    """Run the script of the launch in a directory, as its driver."""
    run = RunDirectory(path)
    # A supervisor that was killed could not record it, and the next one looks for it.
    with suppress(StorageError):
        run.set_driver(ProcessId.current())
    SupervisorWatch(run).start()
    launch = run.launch()
    _show_errors_of(launch.script)
    run_script(launch)


if __name__ == "__main__":
    main(sys.argv[1])
