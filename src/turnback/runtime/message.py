"""What travels between driver and tasks. Barriers and acknowledgements ride through the shuffle."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from turnback.core.errors import EpochConflictError
from turnback.runtime.storageref import StorageRef
from turnback.state import StateFile, StateSchema


class TaskName(msgspec.Struct, frozen=True, array_like=True):
    """One attempt of one task.

    Attributes:
        partition: Index of the task.
        attempt: Spark's number of this attempt, unique within a Spark application.
        stage: Spark's number of the stage it belongs to.
        tries: How often Spark had tried this task before, in the same run of the stage.
    """

    partition: int
    attempt: int
    stage: int = 0
    tries: int = 0


class TaskAck(msgspec.Struct, frozen=True):
    """A task's acknowledgement: what it made durable in this epoch.

    Attributes:
        level: Its level.
        name: Which attempt of which partition this is.
        upstream: The task attempts whose output it read.
        state: The delta it wrote, if its state changed.
        schemas: The states its operators have registered.
        transactions: Prepared sink transactions by sink uid.
        records: Elements read and written by operator uid.
        found: Whether the state was at home, caught up or rebuilt; empty without state.
        seconds: Where the time went.
        row_bytes: Size of its rows in memory, as the mean of the batch where it was greatest; 0
            if no batch had enough of them to tell.
    """

    level: int
    name: TaskName
    upstream: tuple[TaskName, ...]
    state: StateFile | None = None
    schemas: tuple[StateSchema, ...] = ()
    transactions: dict[str, tuple[bytes, ...]] = {}
    records: dict[str, tuple[int, int]] = {}
    found: str = ""
    seconds: dict[str, float] = {}
    row_bytes: int = 0


class Barrier(msgspec.Struct, frozen=True):
    """The end of an epoch on the way from one task to one partition of the next level.

    Attributes:
        level: Level it comes from; -1 for the coordinator itself.
        name: The task attempt it comes from.
        total: Number of tasks of that level, from the one task that knows it.
        acks: Acknowledgements on their way to the driver.
    """

    level: int
    name: TaskName
    total: int | None = None
    acks: tuple[TaskAck, ...] = ()


INJECTED = Barrier(-1, TaskName(0, 0), total=1)

_encoder = msgspec.msgpack.Encoder()
_barrier_decoder = msgspec.msgpack.Decoder(Barrier)


def encode_barrier(barrier: Barrier) -> bytes:
    """The bytes of a barrier's control column."""
    return _encoder.encode(barrier)


def decode_barrier(data: bytes) -> Barrier:
    """The barrier behind a control column."""
    return _barrier_decoder.decode(data)


def align(barriers: list[Barrier], where: str) -> tuple[TaskName, ...]:
    """Check that every upstream task's barrier has arrived exactly once; return their names."""
    totals = {b.total for b in barriers if b.total is not None}
    if len(totals) != 1:
        raise EpochConflictError(f"{where}: upstream tasks disagree about their number: {totals}")
    (total,) = totals
    names = sorted((b.name for b in barriers), key=lambda n: (n.partition, n.attempt))
    if [n.partition for n in names] != list(range(total)):
        raise EpochConflictError(
            f"{where}: expected one barrier of each of {total} upstream tasks, got "
            f"{[(n.partition, n.attempt) for n in names]}"
        )
    return tuple(names)


@dataclass(frozen=True)
class Order:
    """What a level is to do in one epoch.

    Attributes:
        job: Name of the job.
        job_id: Its unique id.
        attempt: Fencing number of this life of the job.
        epoch: The epoch to run.
        backend: Name of the state backend.
        local_dir: Where local stores live; None for the machine's default.
        storage: Where state files go.
        files: For each partition the confirmed state files, in epoch order.
        line: This attempt of this driver, as no other is called.
        schemas: States of the snapshot the attempt started from.
    """

    job: str
    job_id: str
    attempt: int
    epoch: int
    backend: str
    local_dir: str | None
    storage: StorageRef
    files: dict[int, tuple[StateFile, ...]]
    line: str
    schemas: tuple[StateSchema, ...] = ()
