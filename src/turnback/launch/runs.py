from __future__ import annotations

import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path

from turnback.config.launch import LAUNCH, Launch
from turnback.coordinator.rundir import RunDirectory
from turnback.core.errors import ConfigurationError


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
        run.write(LAUNCH, launch)
        return run

    def over(self) -> list[Path]:
        """Return the directories of launches whose processes are all gone, oldest first."""
        if not self.root.is_dir():
            return []
        return [path for path in sorted(self.root.iterdir()) if self._is_over(path)]

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
        processes = (run.supervisor(), run.driver())
        return all(process is None or not process.is_alive() for process in processes)
