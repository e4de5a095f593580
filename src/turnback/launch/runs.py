from __future__ import annotations

import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from turnback.core.errors import ConfigurationError
from turnback.inspect.locations import is_below, resolved
from turnback.job.process import ProcessId
from turnback.job.run import LAUNCH, Launch, RunDirectory

_ROOT = "state.checkpoints.dir"


class Over(NamedTuple):
    """Directories of launches whose processes are all gone, oldest first.

    Attributes:
        paths: Those that belong to a root.
        unclear: Those that may belong to any: they never came to a job, and do not say where
            they would have looked for it.
    """

    paths: list[Path]
    unclear: list[Path]


class Runs:
    """The launches of this machine: what was started here, and what it printed.

    Args:
        root: Where they are kept.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, launch: Launch) -> RunDirectory:
        """Make the directory of a new launch.

        Raises:
            ConfigurationError: It cannot be made.
        """
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = self.root / f"{now}-{secrets.token_hex(4)}"
        try:
            # What a driver prints, and what it was started with, may be secret.
            path.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be made: {error.strerror}. Set run.dir to a directory you may "
                "write to"
            ) from error
        run = RunDirectory(path)
        run.set_launcher(ProcessId.current())
        run.write(LAUNCH, launch)
        return run

    def over(self, root: str) -> Over:
        """Return the launches that are over and belong to a root.

        A launch belongs to the root of the job it ran; one that never came to a job, to the root
        that it was started with.

        Args:
            root: The directory of all jobs.
        """
        found = Over([], [])
        entries = sorted(self.root.iterdir()) if self.root.is_dir() else []
        for path in entries:
            if not self._is_over(path):
                continue
            belongs = _belongs(RunDirectory(path), root)
            if belongs is None:
                found.unclear.append(path)
            elif belongs:
                found.paths.append(path)
        return found

    def remove(self, path: Path) -> None:
        """Remove the directory of a launch that is over.

        Raises:
            ConfigurationError: It is none, or it is not over.
        """
        if path.parent != self.root or not self._is_over(path):
            raise ConfigurationError(f"{path} is not the directory of a launch that is over")
        shutil.rmtree(path)

    def _is_over(self, path: Path) -> bool:
        if path.is_symlink() or not (path / LAUNCH).is_file():
            return False
        run = RunDirectory(path)
        try:
            # Until there is a supervisor, whoever launched it is about to start one.
            processes = (run.supervisor() or run.launcher(), run.driver())
            ended = run.end() is not None
        except msgspec.MsgspecError:
            return False
        return all(process is None or _is_gone(process, ended) for process in processes)


def _belongs(run: RunDirectory, root: str) -> bool | None:
    """Return whether a launch belongs to a root, None if nobody can tell."""
    try:
        job, launch = run.job(), run.read(LAUNCH, Launch)
    except msgspec.MsgspecError:
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
    """Return whether a process is gone, as far as that can be told from here.

    Args:
        process: A process of a launch.
        ended: The launch says that it is over.
    """
    here = ProcessId.current()
    if process.is_local() or here.machine is None:
        return not process.is_alive()
    if process.host == here.host and _boot(process) != _boot(here):
        return True
    # On a machine or in a container that shares this directory.
    return ended


def _boot(process: ProcessId) -> str:
    return (process.machine or "").partition(" pid:[")[0]
