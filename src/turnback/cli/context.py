"""What every command works with: where jobs are, the configuration, and where to print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from turnback.cli.exit import DeclinedError
from turnback.cli.output import Output
from turnback.cli.text import printable

if TYPE_CHECKING:
    from turnback.config.configuration import Configuration
    from turnback.inspect.job import Job
    from turnback.inspect.jobs import Jobs
    from turnback.snapshot.snapshot import Snapshot


class Cli:
    """The values of the options that every command has, and what follows from them.

    Args:
        root: Where jobs are, if --root says so.
        settings: The values of -D, as ``key=value``.
        output: Where to print.
        debug: Whether errors show where in the code they come from.
    """

    def __init__(
        self,
        *,
        root: str | None = None,
        settings: Sequence[str] = (),
        output: Output | None = None,
        debug: bool = False,
    ) -> None:
        self._root = root
        self.settings = tuple(settings)
        self.out = output or Output()
        self.debug = debug

    @property
    def json(self) -> bool:
        return self.out.json

    @cached_property
    def pairs(self) -> dict[str, str]:
        """The settings of the command line, by key; --root is one of them."""
        from turnback.config.layers import parse_pairs

        pairs = parse_pairs(self.settings)
        if self._root is not None:
            pairs["state.checkpoints.dir"] = self._root
        return pairs

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration of file, environment and command line."""
        from turnback.config.configuration import Configuration

        return Configuration.load(command_line=self.pairs)

    @cached_property
    def root(self) -> str:
        from turnback.config.configuration import job_root

        return job_root(self.configuration)

    @cached_property
    def runs_dir(self) -> Path:
        return Path(self.configuration.value("run.dir")).expanduser().absolute()

    @cached_property
    def storage_options(self) -> dict[str, str]:
        from turnback.config.configuration import storage_options

        return storage_options(self.configuration)

    @cached_property
    def jobs(self) -> Jobs:
        from turnback.inspect.jobs import Jobs

        return Jobs(self.root, self.storage_options)

    def job(self, text: str, *, whole: bool = False) -> Job:
        """Find a job by its name or id, or the beginning of either unless it has to be whole."""
        return self.jobs.find(text, whole=whole)

    def snapshot(self, text: str, *, whole: bool = False) -> Snapshot:
        """The checkpoint or savepoint that is meant.

        Args:
            text: What was written.
            whole: Prefixes of names and ids are not enough: for what deletes it.

        Raises:
            CheckpointNotFoundError: There is none.
        """
        from turnback.snapshot.find import open_snapshot

        return open_snapshot(text, self.jobs, self.storage_options, whole=whole)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something that cannot be undone, unless --yes was given.

        Raises:
            DeclinedError: The answer is no, or there is nobody to ask.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise DeclinedError(
                f"{question} Nobody can be asked, as this is not a terminal: give --yes to go on"
            )
        # On stderr, so that stdout holds results only.
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            print(file=sys.stderr)
        if answer.strip().lower() not in ("y", "yes"):
            raise DeclinedError("not done, as you said no")
