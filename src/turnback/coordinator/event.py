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
    """A checkpoint is durable and its sink work is committed.

    Attributes:
        number: Of the checkpoint.
        epoch: The last epoch in it.
        trigger: Why it was taken.
        waited_ms: Time from the trigger until writing began.
        manifest_ms: Time to make the manifest durable.
        commit_ms: Time the sinks took to commit.
        bytes_written: Bytes of the files that no earlier checkpoint held.
        files_written: Number of those files.
        full_bytes: Bytes of all files it references.
        files: Number of all files it references.
        sync_ms: How long the slowest task of the epoch took to snapshot its state.
        tasks: Tasks that acknowledged it, which are all.
    """

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
    sync_ms: int = 0
    tasks: int = 0


class CheckpointFailed(msgspec.Struct, frozen=True, tag="checkpoint-failed"):
    """A checkpoint was discarded.

    Attributes:
        epoch: What it was to be a cut of.
        trigger: Why it was taken.
        reason: Why it failed.
        timed_out: Whether it only took too long.
        number: The slot of its manifest, if that was durable when it failed.
        after_ms: How long after its trigger it failed.
    """

    epoch: int
    trigger: str
    reason: str
    timed_out: bool = False
    number: int | None = None
    after_ms: int = 0


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
