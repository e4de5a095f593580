"""What the exit code of `turnback` says."""

from __future__ import annotations

from enum import IntEnum

from turnback.core.errors import (
    AlreadyExistsError,
    AmbiguousJobError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    IncompatibleStateError,
    JobInUseError,
    JobNotFoundError,
    JobNotRunningError,
    NotFoundError,
    PlanError,
    StateError,
    StillNeededError,
    StorageError,
    TurnbackError,
)


class ExitCode(IntEnum):
    """One code for each kind of ending, so that scripts need not read messages."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_AS_NEEDED = 4
    WOULD_NOT_START = 5
    DAMAGED = 6
    STORAGE = 7
    TIMED_OUT = 8
    DECLINED = 9
    PROBLEM = 10
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What it says, for the help and the docs."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "it failed; diff --exit-code: there are differences",
    ExitCode.USAGE: "wrong usage or configuration",
    ExitCode.NOT_FOUND: "no such job, snapshot or state",
    ExitCode.NOT_AS_NEEDED: "the job is in use, or does not run as it would have to",
    ExitCode.WOULD_NOT_START: "the job would not start from this snapshot",
    ExitCode.DAMAGED: "a file is damaged, or was written by a newer version",
    ExitCode.STORAGE: "the storage refuses or does not answer",
    ExitCode.TIMED_OUT: "it took longer than --timeout",
    ExitCode.DECLINED: "you were asked and said no, or could not be asked",
    ExitCode.PROBLEM: "doctor found a problem",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}


class DeclinedError(TurnbackError):
    """The user was asked and said no, or there was nobody to ask."""


class RequestFailedError(TurnbackError):
    """The job could not do what was asked of it."""


class TimedOutError(TurnbackError):
    """What was waited for did not happen in time."""


# The first class that fits decides, so subclasses come before their bases.
_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (DeclinedError, ExitCode.DECLINED),
    (TimedOutError, ExitCode.TIMED_OUT),
    (CheckpointTimeoutError, ExitCode.TIMED_OUT),
    (JobNotFoundError, ExitCode.NOT_FOUND),
    (AmbiguousJobError, ExitCode.USAGE),
    (NotFoundError, ExitCode.NOT_FOUND),
    (CheckpointNotFoundError, ExitCode.NOT_FOUND),
    (ConfigurationError, ExitCode.USAGE),
    (PlanError, ExitCode.USAGE),
    (JobInUseError, ExitCode.NOT_AS_NEEDED),
    (JobNotRunningError, ExitCode.NOT_AS_NEEDED),
    (StillNeededError, ExitCode.NOT_AS_NEEDED),
    (FencedError, ExitCode.NOT_AS_NEEDED),
    (AlreadyExistsError, ExitCode.NOT_AS_NEEDED),
    (CorruptFileError, ExitCode.DAMAGED),
    (FormatVersionError, ExitCode.DAMAGED),
    (StorageError, ExitCode.STORAGE),
    (IncompatibleStateError, ExitCode.WOULD_NOT_START),
    (StateError, ExitCode.NOT_FOUND),
)


def exit_code(error: BaseException) -> ExitCode:
    """The exit code for an error that ends a command."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
