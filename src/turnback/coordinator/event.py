import msgspec


class AttemptStarted(msgspec.Struct, frozen=True, tag="attempt-started"):
    """An attempt began.

    Attributes:
        snapshot: What it started from ("chk-7", the path of a savepoint); `None` for nothing.
        epoch: The last epoch of that snapshot.
    """

    snapshot: str | None
    epoch: int | None = None


class CheckpointDone(msgspec.Struct, frozen=True, tag="checkpoint-completed"):
    """A checkpoint is durable and its sink work is committed."""

    number: int
    epoch: int
    trigger: str
    waited_ms: int
    manifest_ms: int
    commit_ms: int
    bytes_written: int
    files_written: int
    full_bytes: int
    files: int


class CheckpointFailed(msgspec.Struct, frozen=True, tag="checkpoint-failed"):
    """A checkpoint was discarded.

    Attributes:
        epoch: What it was to be a cut of.
        trigger: Why it was taken.
        reason: Why it failed.
        timed_out: Whether it only took too long.
        number: The slot of its manifest, if that was durable when it failed.
    """

    epoch: int
    trigger: str
    reason: str
    timed_out: bool = False
    number: int | None = None


class Restarting(msgspec.Struct, frozen=True, tag="restarting"):
    """The attempt failed and the next one follows after a delay."""

    cause: str
    delay_ms: int


class JobEnded(msgspec.Struct, frozen=True, tag="job-ended"):
    """The job will not go on by itself: it is FINISHED, FAILED or CANCELED."""

    state: str
    cause: str | None = None


Event = AttemptStarted | CheckpointDone | CheckpointFailed | Restarting | JobEnded


class Record(msgspec.Struct, frozen=True):
    """An event with its place in the history; order follows the numbers, never the clock."""

    attempt: int
    index: int
    at_ms: int
    event: Event


def is_routine(event: Event) -> bool:
    """Return whether there are many of this kind, so that old ones may be forgotten first."""
    return isinstance(event, CheckpointDone | CheckpointFailed)
