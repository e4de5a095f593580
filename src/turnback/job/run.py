"""What `turnback run` hands to the program it starts: everything on the command line wins."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from traceback import format_exception_only
from typing import Any, TypeVar

import msgspec

from turnback.core import errors
from turnback.core.errors import ConfigurationError, NotFoundError, TurnbackError
from turnback.job.process import ProcessId
from turnback.storage.local import LocalStorage

LAUNCH_VARIABLE = "TURNBACK_LAUNCH"
"""Names the launch file, in the environment of the program."""
LAUNCH = "launch.json"


class LaunchMode(StrEnum):
    """What the program is started for."""

    RUN = "run"
    PLAN = "plan"
    """To learn what it is: `execute` ends the program before anything runs."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How a program is to be run.

    Attributes:
        script: The program.
        arguments: Its arguments.
        directory: Its working directory.
        mode: What it is started for.
        name: Name of the job, instead of the one in the code.
        start_from: Which snapshot to start from, instead of the job's latest.
        fresh: Start empty although there are checkpoints.
        allow_non_restored_state: State that may be dropped: all of it, or what is named.
        renames: Names in the snapshot to names in the program.
        claim_mode: Whose the snapshot is from then on; None for what the code says.
        fork: The snapshot may be another job's.
        allow_pickled_state: Read pickled objects in the snapshot.
        take_over_sinks: Targets of sinks that belong to other jobs become this job's.
        root: Where `turnback run` looks for jobs; the program may name another place.
        settings: Configuration keys and values.
        log_bytes: How large the driver's log may grow before it is begun anew.
    """

    script: str
    arguments: tuple[str, ...] = ()
    directory: str = "."
    mode: LaunchMode = LaunchMode.RUN
    name: str | None = None
    start_from: str | None = None
    fresh: bool = False
    allow_non_restored_state: bool | tuple[str, ...] = False
    renames: dict[str, str] = {}
    claim_mode: str | None = None
    fork: bool = False
    allow_pickled_state: bool = False
    take_over_sinks: bool = False
    root: str | None = None
    settings: dict[str, str] = {}
    log_bytes: int = 64 << 20


def current_launch() -> Launch | None:
    """Return how this program was launched, `None` if it was started by other means.

    Raises:
        ConfigurationError: The launch file is gone or damaged.
    """
    run = current_run()
    if run is None:
        return None
    try:
        launch = run.read(LAUNCH, Launch)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{run.path / LAUNCH} is damaged: {error}") from error
    if launch is None:
        raise ConfigurationError(
            f"{LAUNCH_VARIABLE} names {run.path / LAUNCH}, which is not there: start the program "
            "with `turnback run`, or without this variable"
        )
    return launch


def current_run() -> RunDirectory | None:
    """Return the directory of the launch this program belongs to."""
    named = os.environ.get(LAUNCH_VARIABLE)
    return RunDirectory(Path(named).parent) if named else None


T = TypeVar("T")
LOG = "driver.log"


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """Which job a driver runs.

    Attributes:
        name: Its name.
        job_id: Its identity.
        root: Where job directories are.
        directory: Its own.
        restart: Its restart strategy, as configuration.
        storage_options: What is needed to read its directory.
    """

    name: str
    job_id: str
    root: str
    directory: str
    restart: dict[str, Any] = {}
    storage_options: dict[str, str] = {}


class RunError(msgspec.Struct, frozen=True):
    """Why a driver ended: the class of the error, and what it says."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> RunError:
        """Return what to tell of an error."""
        kind = type(error)
        name = kind.__name__
        if hasattr(errors, name) and not issubclass(kind, TurnbackError):
            name = f"{kind.__module__}.{name}"  # another package's, which has the same name
        return cls(name, str(error) or "".join(format_exception_only(error)).strip())

    def rebuilt(self) -> TurnbackError | None:
        """Return the error as it was, `None` if it was none of Turnback's."""
        found = getattr(errors, self.kind, None)
        if isinstance(found, type) and issubclass(found, TurnbackError):
            return found(self.message)
        return None


class RunEnd(msgspec.Struct, frozen=True):
    """How it ended.

    Attributes:
        code: Exit status of the last driver, negative if a signal ended it; None if nobody saw it.
        reason: Why the driver is not started again.
    """

    code: int | None
    reason: str


class RunDirectory:
    """One launch of a program, over all lives of its driver. Local, and readable by its user only.

    Args:
        path: The directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files = LocalStorage(self.path)

    @property
    def log(self) -> Path:
        """What the driver printed."""
        return self.path / LOG

    # -- who is who

    def set_launcher(self, process: ProcessId) -> None:
        """Say which process starts the supervisor."""
        self._write("launcher.json", process)

    def launcher(self) -> ProcessId | None:
        """Return the process that starts the supervisor, or has done so."""
        return self._read("launcher.json", ProcessId)

    def set_supervisor(self, process: ProcessId) -> None:
        """Say which process supervises."""
        self._write("supervisor.json", process)

    def supervisor(self) -> ProcessId | None:
        """Return the process that supervises or did so last."""
        return self._read("supervisor.json", ProcessId)

    def set_driver(self, process: ProcessId) -> None:
        """Say which process is the driver."""
        self._write("driver.json", process)

    def driver(self) -> ProcessId | None:
        """Return the driver of now or the last one."""
        return self._read("driver.json", ProcessId)

    def start_supervisor(self) -> subprocess.Popen[bytes]:
        """Start a supervisor, which ends at once if there is one already.

        It is a session of its own: a closed terminal, which ends the caller, leaves it alone.
        """
        with self.log.open("ab") as log:
            return subprocess.Popen(
                # -P: the working directory may hold a file of the same name.
                [sys.executable, "-P", "-m", "turnback.launch.supervisor", str(self.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # -- what the driver tells

    def set_job(self, job: RunningJob) -> None:
        """Say which job the driver runs."""
        self._write("job.json", job)

    def job(self) -> RunningJob | None:
        """Return which job the driver runs, `None` as long as it has not said so."""
        return self._read("job.json", RunningJob)

    def set_running(self, attempt: int) -> None:
        """Say that the job runs."""
        self._write("running.json", attempt)

    def running(self) -> int | None:
        """Return the newest attempt that got as far as running."""
        return self._read("running.json", int)

    def set_error(self, error: RunError) -> None:
        """Say why the driver ends."""
        self._write("error.json", error)

    def error(self) -> RunError | None:
        """Return why the driver ended, `None` if it did not say."""
        return self._read("error.json", RunError)

    def forget_error(self) -> None:
        """Before the driver starts again."""
        self._files.delete("error.json")

    def set_end(self, end: RunEnd) -> None:
        """Say that it is over."""
        self._write("ended.json", end)

    def end(self) -> RunEnd | None:
        """Return how it ended, `None` as long as it has not."""
        return self._read("ended.json", RunEnd)

    # -- files

    def write(self, name: str, document: Any) -> None:
        """Write another document."""
        self._write(name, document)

    def read(self, name: str, type_: type[T]) -> T | None:
        """Read another document, `None` if it is not there.

        Raises:
            msgspec.MsgspecError: It is damaged.
        """
        return self._read(name, type_)

    def _write(self, name: str, document: Any) -> None:
        self._files.put(name, msgspec.json.encode(document))

    def _read(self, name: str, type_: type[T]) -> T | None:
        try:
            return msgspec.json.decode(self._files.get(name), type=type_)
        except NotFoundError:
            return None
