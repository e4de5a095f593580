"""What to make of the error that ended an attempt."""

from __future__ import annotations

from turnback.core.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    IncompatibleStateError,
    JobFailedError,
    JobInUseError,
    PlanError,
    TurnbackError,
)

FINAL = (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    IncompatibleStateError,
    JobInUseError,
    PlanError,
)
"""Errors that no restart mends."""


def told(error: BaseException) -> str:
    """An error in a few lines: Spark's stack traces stay out."""
    text = str(error)
    if isinstance(error, TurnbackError):
        return text
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return f"{type(error).__name__}: " + "\n".join(lines[:20])


def final_error(job: str, restarts: int, cause: BaseException) -> BaseException:
    """What whoever started the job is told when no restart is left."""
    if isinstance(cause, FINAL):
        return cause
    times = f" after {restarts} restarts" if restarts else ""
    error = JobFailedError(f"job {job!r} failed{times}: {told(cause)}")
    error.__cause__ = cause if not isinstance(cause, TurnbackError) else None
    return error
