"""One launch of a program with `turnback run`: what it hands over, and the processes of it."""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import subprocess
import sys
from enum import Enum, StrEnum
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from platform import python_version
from traceback import format_exception_only
from typing import Any, TypeVar

import msgspec

from turnback import errors
from turnback.core.masking import mask_arguments, mask_code, mask_text, mask_value
from turnback.errors import UNDECODABLE, ConfigurationError, NotFoundError, TurnbackError
from turnback.storage.local import LocalStorage
from turnback.storage.locations import is_in_memory

LAUNCH_VARIABLE = "TURNBACK_LAUNCH"
"""Names the launch file, in the environment of the program."""
LAUNCH = "launch.json"
LOG = "driver.log"

T = TypeVar("T")


class ProcessId(msgspec.Struct, frozen=True):
    """A process, distinct from every other one that ever had its number.

    Attributes:
        machine: This boot of the machine and the namespace of its process numbers; `None` where
            the system does not report them.
        started: When it started, in whatever form the system reports it; `None` if it does not.
    """

    host: str
    machine: str | None
    pid: int
    started: str | None

    @classmethod
    def current(cls) -> ProcessId:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return a process of this machine that runs now."""
        return cls(socket.gethostname(), _machine(), pid, _started(pid))

    def is_local(self) -> bool:
        """Return whether this machine can tell if it is alive."""
        here = _machine()
        return here is not None and self.machine == here and self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Return whether this very process still runs; only for local ones."""
        started = _started(self.pid)
        return started is not None and started == self.started


def _machine() -> str | None:
    return _linux_machine() or _output("sysctl", "-n", "kern.boottime")  # macOS


@cache
def _linux_machine() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Containers share the boot but count their processes separately.
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            # The name in parentheses may hold anything; after it, field 3 is the state and field
            # 22 the start in ticks since boot.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    return _output("ps", "-p", str(pid), "-o", "lstart=")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


class LaunchMode(StrEnum):
    """What the program is started for."""

    RUN = "run"
    PLAN = "plan"
    """To learn what it is: `execute` ends the program before anything runs."""


class ClaimMode(Enum):
    """Whether a job that starts from a savepoint owns it from then on."""

    NO_CLAIM = "no_claim"
    """The savepoint stays as it is, and any number of jobs can start from it."""
    CLAIM = "claim"
    """The job owns it, and deletes it once the job has a checkpoint of its own."""


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job starts, and what it may do there; see `StreamExecutionEnvironment.execute_async`.

    The command line, the program and the driver all have these.
    """

    start_from: str | int | None = None
    fresh: bool = False
    allow_non_restored_state: bool | tuple[Any, ...] = False
    renames: dict[Any, Any] = {}
    claim_mode: ClaimMode | None = None
    """None if nothing was said, which means that the savepoint is not claimed."""
    fork: bool = False
    allow_pickled_state: bool = False
    take_over_sinks: bool = False

    def or_else(self, other: StartOptions) -> StartOptions:
        """These, and where they say nothing, those of the other."""
        says_where = self.fresh or self.start_from is not None
        where = self if says_where else other
        return StartOptions(
            start_from=where.start_from,
            fresh=where.fresh,
            allow_non_restored_state=self.allow_non_restored_state
            or other.allow_non_restored_state,
            renames={**other.renames, **self.renames},
            claim_mode=self.claim_mode or other.claim_mode,
            fork=self.fork or other.fork,
            allow_pickled_state=self.allow_pickled_state or other.allow_pickled_state,
            take_over_sinks=self.take_over_sinks or other.take_over_sinks,
        )


class Launch(StartOptions, frozen=True, kw_only=True):
    """How a program is to be run; what it says wins over what the program gives `execute_async`.

    Attributes:
        directory: The working directory of the script.
        name: Name of the job.
        root: Where `turnback run` looks for jobs; the program may name another directory.
        detached: Whether whoever started it did not wait for its end.
        log_bytes: How large the driver's log may grow before it is begun anew.
        standby: Whether to wait while another driver runs the job, and to take over from it.
        class_archive: Whether the supervisor writes an archive of Spark's classes if there is none.
        supervisor: The command that supervises the launch, without its last argument: the
            directory of the launch. Whoever creates the launch fills it in.
    """

    script: str
    arguments: tuple[str, ...] = ()
    directory: str = "."
    mode: LaunchMode = LaunchMode.RUN
    name: str | None = None
    root: str | None = None
    settings: dict[str, str] = {}
    detached: bool = False
    log_bytes: int = 64 << 20
    class_archive: bool = False
    standby: bool = False
    supervisor: tuple[str, ...] = ()


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """Which job a driver runs; its restart strategy and alerts as configuration."""

    name: str
    job_id: str
    root: str
    directory: str
    restart: dict[str, Any] = {}
    storage_options: dict[str, str] = {}
    alerts: dict[str, str] = {}


class RunError(msgspec.Struct, frozen=True):
    """Why a driver ended: the class of the error, and its message."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> RunError:
        kind = type(error)
        name = kind.__name__
        if hasattr(errors, name) and not issubclass(kind, TurnbackError):
            name = f"{kind.__module__}.{name}"  # another package's, which has the same name
        text = str(error) or "".join(format_exception_only(error)).strip()
        return cls(name, mask_text(text))

    def rebuilt(self) -> TurnbackError | None:
        """Return the error as it was, `None` if it was none of Turnback's."""
        cls = getattr(errors, self.kind, None)
        if isinstance(cls, type) and issubclass(cls, TurnbackError):
            return cls(self.message)
        return None


class RunEnd(msgspec.Struct, frozen=True):
    """How a launch ended: the exit status of the last driver, and why it is not started again.

    The status is negative if a signal ended it; None if nobody saw it.
    """

    code: int | None
    reason: str


class RunDirectory:
    """The directory of one launch, over all lives of its driver; only its user can read it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files = LocalStorage(self.path)

    @property
    def log(self) -> Path:
        return self.path / LOG

    def launch(self) -> Launch:
        """Return how the program is to be run, from the launch file."""
        path = self.path / LAUNCH
        try:
            launch = self.read(LAUNCH, Launch)
        except UNDECODABLE as error:
            raise ConfigurationError(f"{path} is damaged: {error}") from error
        if launch is None:
            raise ConfigurationError(
                f"{path} does not exist: start the program with `turnback run`, or unset "
                f"{LAUNCH_VARIABLE}"
            )
        return launch

    # -- its processes

    def set_launcher(self, process: ProcessId) -> None:
        self.write("launcher.json", process)

    def launcher(self) -> ProcessId | None:
        """Return the process that starts the supervisor, or has done so."""
        return self.read("launcher.json", ProcessId)

    def set_supervisor(self, process: ProcessId) -> None:
        self.write("supervisor.json", process)

    def supervisor(self) -> ProcessId | None:
        """Return the process that supervises or did so last."""
        return self.read("supervisor.json", ProcessId)

    def set_driver(self, process: ProcessId) -> None:
        self.write("driver.json", process)

    def driver(self) -> ProcessId | None:
        return self.read("driver.json", ProcessId)

    def start_supervisor(self) -> subprocess.Popen[bytes]:
        """Start a supervisor, which ends at once if there is one already.

        It is a session of its own: a closed terminal, which ends the caller, leaves it alone.
        """
        command = self.launch().supervisor
        if not command:
            raise ConfigurationError(f"{self.path / LAUNCH} does not contain a supervisor")
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*command, str(self.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # -- what the driver reports

    def set_job(self, job: RunningJob) -> None:
        self.write("job.json", job)

    def job(self) -> RunningJob | None:
        """Return which job the driver runs, `None` as long as that is not known."""
        return self.read("job.json", RunningJob)

    def set_running(self, attempt: int) -> None:
        self.write("running.json", attempt)

    def running(self) -> int | None:
        """Return the newest attempt that got as far as running."""
        return self.read("running.json", int)

    def set_epoch(self, number: int) -> None:
        self.write("epoch.json", number)

    def epoch(self) -> int | None:
        """Return the first epoch that a driver of this launch has finished, if there is one."""
        return self.read("epoch.json", int)

    def set_standby(self, waits: bool) -> None:
        """Record whether the driver waits for another one."""
        if waits:
            self.write("standby.json", True)
        else:
            self._files.delete("standby.json")

    def is_standby(self) -> bool:
        return self.read("standby.json", bool) is True

    def set_error(self, error: RunError) -> None:
        self.write("error.json", error)

    def error(self) -> RunError | None:
        """Return why the driver ended, `None` if it did not report that."""
        return self.read("error.json", RunError)

    def forget_error(self) -> None:
        self._files.delete("error.json")

    def set_end(self, end: RunEnd) -> None:
        self.write("ended.json", end)

    def end(self) -> RunEnd | None:
        """Return how the launch ended, `None` as long as it has not."""
        return self.read("ended.json", RunEnd)

    # -- files

    def write(self, name: str, document: Any) -> None:
        self._files.put(name, msgspec.json.encode(document))

    def read(self, name: str, type_: type[T]) -> T | None:
        """Read a document, `None` if it is not there; raises one of `UNDECODABLE` if damaged."""
        try:
            return msgspec.json.decode(self._files.get(name), type=type_)
        except NotFoundError:
            return None


def current_run() -> RunDirectory | None:
    """Return the launch this program belongs to, `None` if it was started by other means."""
    named = os.environ.get(LAUNCH_VARIABLE)
    return RunDirectory(Path(named).parent) if named else None


_MOST_TEXT = 1 << 20
_ROOT = "state.checkpoints.dir"


class StartedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program as it was when its driver started; there are stars in place of secrets.

    Attributes:
        command: The whole command; empty if the driver was not started by `turnback run`.
        options: Those of `turnback run` that belong to every start of the job, not only to one
            from a certain snapshot.
        directory: The working directory.
        script: Its path and its arguments; empty if there is none, as in a notebook.
        digest: Of the bytes of the script.
        text: The script; None if it is too large, or not kept here.
        versions: Of Python and of every package that is installed.
    """

    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    directory: str = ""
    script: tuple[str, ...] = ()
    digest: str | None = None
    text: str | None = None
    versions: dict[str, str] = {}

    @classmethod
    def of_launch(cls, launch: Launch, root: str) -> StartedProgram:
        """The program that `turnback run` has started, of a job below a root."""
        options = _options(launch, root)
        script = mask_arguments((launch.script, *launch.arguments))
        command = ("turnback", "run", *options, *_options_of_start(launch), *script)
        return cls(
            command=command,
            options=options,
            directory=launch.directory,
            script=script,
            versions=_versions(),
            digest=_digest(launch.script),
            text=_text(launch.script),
        )

    @classmethod
    def of_process(cls, root: str) -> StartedProgram:
        """The program of this process, which was started by other means."""
        main = getattr(sys.modules["__main__"], "__file__", None)
        script = () if main is None else mask_arguments((str(Path(main).absolute()), *sys.argv[1:]))
        return cls(
            options=("--root", root),
            directory=str(Path.cwd()),
            script=script,
            versions=_versions(),
            digest=None if main is None else _digest(main),
            text=None if main is None else _text(main),
        )

    def restore_command(self, snapshot: str) -> str:
        """The command that starts the job from one of its snapshots, as it was started before."""
        run = shlex.join(["turnback", "run", *self.options, "-s", snapshot, *self.script])
        return f"cd {shlex.quote(self.directory)} && {run}" if self.directory else run

    def has_changed(self) -> bool | None:
        """Whether the script is another one now; None if it cannot be read here."""
        if not self.script or self.digest is None:
            return None
        now = _digest(self.script[0])
        return None if now is None else now != self.digest


def _options(launch: Launch, root: str) -> tuple[str, ...]:
    words = ["-d"] if launch.detached else []
    if not is_in_memory(root):
        words += ["--root", root]
    if launch.name is not None:
        words += ["--name", launch.name]
    for key, value in launch.settings.items():
        if key != _ROOT:
            words += ["-D", f"{key}={mask_value(key, value)}"]
    return tuple(words)


def _options_of_start(launch: Launch) -> tuple[str, ...]:
    """Options that are about the snapshot it started from."""
    words = [] if launch.start_from is None else ["-s", str(launch.start_from)]
    for old, new in launch.renames.items():
        words += ["--rename", f"{old}={new}"]
    allowed = launch.allow_non_restored_state
    if allowed is True:
        words.append("-n")
    elif allowed:
        words += [word for state in allowed for word in ("--allow", state)]
    if launch.claim_mode is not None:
        words += ["--claim-mode", launch.claim_mode.value]
    flags = {
        "--fresh": launch.fresh,
        "--fork": launch.fork,
        "--allow-pickled-state": launch.allow_pickled_state,
        "--take-over-sinks": launch.take_over_sinks,
    }
    return (*words, *(flag for flag, given in flags.items() if given))


def _text(script: str) -> str | None:
    try:
        text = Path(script).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return mask_code(text) if len(text) <= _MOST_TEXT else None


def _digest(script: str) -> str | None:
    try:
        return f"sha256:{hashlib.sha256(Path(script).read_bytes()).hexdigest()}"
    except OSError:
        return None


@cache
def _versions() -> dict[str, str]:
    # The attribute reads and parses a file, each time.
    known = (distribution.metadata for distribution in distributions())
    found = {each["Name"]: each["Version"] for each in known if each["Name"]}
    return {"python": python_version(), **dict(sorted(found.items(), key=lambda i: i[0].lower()))}
