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

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "done"
    FAILED = 1, "it failed; diff --exit-code: there are differences"
    USAGE = 2, "wrong usage or configuration"
    NOT_FOUND = 3, "no such job, snapshot or state"
    CONFLICT = 4, "the job is in use or not running, or needs what was to be deleted"
    WOULD_NOT_START = 5, "the job would not start from this snapshot"
    DAMAGED = 6, "a file is damaged, or was written by a newer version"
    STORAGE = 7, "the storage refuses or does not answer"
    TIMED_OUT = 8, "it took longer than --timeout"
    DECLINED = 9, "you were asked and said no, or could not be asked"
    PROBLEM = 10, "doctor found a problem"
    INTERRUPTED = 130, "interrupted with Ctrl-C"


class DeclinedError(TurnbackError):
    """The user was asked and said no, or there was nobody to ask."""


class RequestFailedError(TurnbackError):
    """The job could not do what it was asked to do."""


class TimedOutError(TurnbackError):
    """What was waited for did not happen in time."""


# The first class that fits decides, so subclasses come before their bases.
_CODES: tuple[tuple[ExitCode, tuple[type[BaseException], ...]], ...] = (
    (ExitCode.INTERRUPTED, (KeyboardInterrupt,)),
    (ExitCode.DECLINED, (DeclinedError,)),
    (ExitCode.TIMED_OUT, (TimedOutError, CheckpointTimeoutError)),
    (ExitCode.NOT_FOUND, (JobNotFoundError, NotFoundError, CheckpointNotFoundError)),
    (ExitCode.USAGE, (AmbiguousJobError, ConfigurationError, PlanError)),
    (ExitCode.CONFLICT, (JobInUseError, JobNotRunningError, StillNeededError, FencedError)),
    (ExitCode.CONFLICT, (AlreadyExistsError,)),
    (ExitCode.DAMAGED, (CorruptFileError, FormatVersionError)),
    (ExitCode.STORAGE, (StorageError,)),
    (ExitCode.WOULD_NOT_START, (IncompatibleStateError,)),
    (ExitCode.NOT_FOUND, (StateError,)),
)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ends a command."""
    return next((code for code, kinds in _CODES if isinstance(error, kinds)), ExitCode.FAILED)
