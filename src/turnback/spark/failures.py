"""Which errors end a job, and the errors that are raised for them."""

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
    SparkUnavailableError,
    TurnbackError,
)

REPLACED = (FencedError, JobInUseError)
"""Another driver has the job."""


FINAL = (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    IncompatibleStateError,
    PlanError,
    *REPLACED,
)
"""A restart would fail in the same way."""


def describe_error(error: BaseException) -> str:
    """An error in a few lines, without Spark's stack traces."""
    text = str(error)
    if isinstance(error, TurnbackError):
        return text
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return f"{type(error).__name__}: " + "\n".join(lines[:20])


def final_error(job: str, restarts: int, cause: BaseException) -> BaseException:
    """The error to raise when no restart is left."""
    if isinstance(cause, FINAL):
        return cause
    times = f" after {restarts} restarts" if restarts else ""
    error = JobFailedError(f"job {job!r} failed{times}: {describe_error(cause)}")
    error.__cause__ = cause if not isinstance(cause, TurnbackError) else None
    return error


def lost_error(
    job: str, fate: str, cause: BaseException, *, supervised: bool
) -> SparkUnavailableError:
    """The error to raise when Spark's JVM is gone.

    Args:
        job: Name of the job.
        fate: What happened to the JVM, as `lost_jvm` says.
        cause: What the attempt failed with.
        supervised: Whether somebody starts the driver again.
    """
    next_step = (
        "Its supervisor starts it again as the restart strategy says."
        if supervised
        else "Start the program again, and the job goes on from its latest checkpoint; "
        "`turnback run` does so by itself."
    )
    return SparkUnavailableError(
        f"job {job!r} has lost Spark, and its driver has to be started again: {fate}. {next_step} "
        f"(The attempt ended with {describe_error(cause)})"
    )
