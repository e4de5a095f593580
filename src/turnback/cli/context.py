"""What every command has at hand: where jobs are, the configuration, and where to print."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from turnback.cli.output import Output

if TYPE_CHECKING:
    from turnback.config.configuration import Configuration
    from turnback.inspect.job import Job
    from turnback.inspect.jobs import Jobs
    from turnback.snapshot.snapshot import Snapshot


class Cli:
    """What the options that all commands share have said.

    Args:
        root: Where jobs are, if the command line says so.
        settings: What was given with -D, as ``key=value``.
        output: Where to print.
        debug: Whether errors show where they come from.
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
        """Whether to print one JSON document."""
        return self.out.json

    @cached_property
    def pairs(self) -> dict[str, str]:
        """What was given with -D, by key; --root is one of them."""
        from turnback.config.layers import parse_pairs

        pairs = parse_pairs(self.settings)
        if self._root is not None:
            pairs["state.checkpoints.dir"] = self._root
        return pairs

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration as this command sees it.

        Raises:
            ConfigurationError: The file, an environment variable or -D is wrong.
        """
        from turnback.config.configuration import Configuration

        return Configuration.load(command_line=self.pairs)

    @cached_property
    def root(self) -> str:
        """Where jobs are."""
        from turnback.config.configuration import job_root

        return job_root(self.configuration)

    @cached_property
    def runs_dir(self) -> Path:
        """Where the launches of this machine are."""
        return Path(self.configuration.value("run.dir")).expanduser().absolute()

    @cached_property
    def storage_options(self) -> dict[str, str]:
        """Credentials and endpoints of object stores."""
        from turnback.config.configuration import storage_options

        return storage_options(self.configuration)

    @cached_property
    def jobs(self) -> Jobs:
        """All jobs below the root."""
        from turnback.inspect.jobs import Jobs

        return Jobs(self.root, self.storage_options)

    def job(self, text: str, *, whole: bool = False) -> Job:
        """The job with a name, an id, or a prefix of either.

        Args:
            text: What was written.
            whole: A prefix is not enough: for what changes or ends a job.

        Raises:
            JobNotFoundError: There is none; the message names the nearest.
            AmbiguousJobError: There are several.
        """
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
