"""What every command works with: jobs, configuration, where to print, and how it can end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from turnback import errors
from turnback.cli.output import Output, printable

if TYPE_CHECKING:
    from turnback.config.configuration import Configuration
    from turnback.snapshot.snapshot import Snapshot
    from turnback.views.job import Job
    from turnback.views.jobs import Jobs


class Cli:
    """What the options of every command say: `settings` are the values of -D, as ``key=value``."""

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
        from turnback.config.configuration import parse_pairs

        pairs = parse_pairs(self.settings)
        if self._root is not None:
            pairs["state.checkpoints.dir"] = self._root
        return pairs

    @cached_property
    def configuration(self) -> Configuration:
        from turnback.config.configuration import Configuration

        return Configuration.load(command_line=self.pairs)

    @property
    def is_root_given(self) -> bool:
        """Whether the command line names the root."""
        return "state.checkpoints.dir" in self.pairs

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
        from turnback.views.jobs import Jobs

        return Jobs(self.root, self.storage_options)

    def job(self, text: str, *, whole: bool = False) -> Job:
        """Find a job by its name or id; by the beginning of either, unless `whole`."""
        return self.jobs.find(text, whole=whole)

    def snapshot(self, text: str, *, whole: bool = False) -> Snapshot:
        """Find a checkpoint or savepoint; `whole`: not by the beginning of a name or id."""
        from turnback.snapshot.find import open_snapshot

        return open_snapshot(text, self.jobs, self.storage_options, whole=whole)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something that cannot be undone, unless --yes was given."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise DeclinedError(f"{question} There is no terminal to ask on: use --yes to confirm")
        # On stderr, so that stdout holds results only.
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            print(file=sys.stderr)
        if answer.strip().lower() not in ("y", "yes"):
            raise DeclinedError("not confirmed: nothing was done")


class ExitCode(IntEnum):
    """One code for each kind of ending, so that scripts need not read messages."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "done"
    FAILED = 1, "failed; with diff --exit-code: there are differences"
    USAGE = 2, "wrong usage or configuration"
    NOT_FOUND = 3, "no such job, snapshot or state"
    CONFLICT = 4, "the job is in use, is not running, or still needs what you want to delete"
    WOULD_NOT_START = 5, "the job would not start from this snapshot"
    DAMAGED = 6, "a file is damaged or was written by a newer version"
    STORAGE = 7, "the storage denies access or does not respond"
    TIMED_OUT = 8, "timed out (--timeout)"
    DECLINED = 9, "not confirmed: you answered no, or there was no terminal to ask on"
    PROBLEM = 10, "doctor or watch --once found a problem"
    INTERRUPTED = 130, "interrupted with Ctrl-C"


class DeclinedError(errors.TurnbackError):
    """The user did not confirm, or there was no terminal to ask on."""


class AlreadyPrintedError(errors.TurnbackError):
    """What went wrong was printed before; the message is what there is to add, or empty."""

    def __init__(self, advice: str, code: ExitCode) -> None:
        super().__init__(advice)
        self.code = code


class RequestFailedError(errors.TurnbackError):
    """The job could not do what was requested."""


class TimedOutError(errors.TurnbackError):
    """The command has waited as long as --timeout says."""


# The first class that fits decides, so subclasses come before their bases.
_CODES: tuple[tuple[ExitCode, tuple[type[BaseException], ...]], ...] = (
    (ExitCode.INTERRUPTED, (KeyboardInterrupt,)),
    (ExitCode.DECLINED, (DeclinedError,)),
    (ExitCode.TIMED_OUT, (TimedOutError, errors.CheckpointTimeoutError)),
    (ExitCode.NOT_FOUND, (errors.JobNotFoundError, errors.NotFoundError)),
    (ExitCode.NOT_FOUND, (errors.CheckpointNotFoundError,)),
    (ExitCode.FAILED, (errors.TableChangedError,)),
    (ExitCode.USAGE, (errors.AmbiguousJobError, errors.ConfigurationError, errors.PlanError)),
    (ExitCode.CONFLICT, (errors.JobInUseError, errors.JobNotRunningError)),
    (ExitCode.CONFLICT, (errors.StillNeededError, errors.FencedError, errors.AlreadyExistsError)),
    (ExitCode.DAMAGED, (errors.CorruptFileError, errors.FormatVersionError)),
    (ExitCode.STORAGE, (errors.StorageError, errors.LocalStoreError)),
    (ExitCode.WOULD_NOT_START, (errors.IncompatibleStateError,)),
    (ExitCode.NOT_FOUND, (errors.StateError,)),
)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ends a command."""
    if isinstance(error, AlreadyPrintedError):
        return error.code
    return next((code for code, kinds in _CODES if isinstance(error, kinds)), ExitCode.FAILED)
