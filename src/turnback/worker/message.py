"""Messages between driver and tasks: commands, and barriers with acknowledgements."""

from __future__ import annotations

import base64
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from turnback import errors
from turnback.errors import EpochConflictError, TurnbackError, UserFunctionError
from turnback.state.files import StateFile, StorageRef
from turnback.state.schema import StateSchema
from turnback.worker.event_time import EpochTime, Segment


class TaskName(msgspec.Struct, frozen=True, array_like=True):
    """One attempt of one task.

    Attributes:
        attempt: Spark's number of this attempt, unique within a Spark application.
        stage: Spark's number of the stage it belongs to.
        tries: How often Spark had tried this task before, in the same run of the stage.
    """

    partition: int
    attempt: int
    stage: int = 0
    tries: int = 0


class TaskSet(msgspec.Struct, frozen=True, array_like=True):
    """Stands for attempts of all tasks of a level; every task of the next level names them all."""

    count: int
    digest: bytes

    @classmethod
    def of(cls, names: Iterable[TaskName]) -> TaskSet:
        """The tasks of these names, in order."""
        named = tuple(names)
        encoded = msgspec.msgpack.encode(named)
        return cls(len(named), blake2b(encoded, digest_size=16).digest())


class TaskAck(msgspec.Struct, frozen=True):
    """A task's acknowledgement: what it made durable in this epoch.

    Attributes:
        upstream: The task attempts whose output it read.
        transactions: Prepared sink transactions by sink uid.
        records: Number of elements read and written, by operator uid.
        left_out: Number of elements at which functions failed, and which were left out, by uid.
        native_records: Number of elements that Spark itself gave from sources, by channel.
        malformed: Number of records that did not fit their schema, by uid of the source.
        opened: How its local store was opened, see `Replica.opening`; empty without state.
        seconds: Time spent by step.
        busy: Seconds that operators have worked, by uid.
        next_timer_ms: When the next timer by the clock is due; None without one.
        row_bytes: Mean size of a row in memory, of the batch where it was greatest; 0 if no batch
            had enough rows.
    """

    level: int
    name: TaskName
    upstream: TaskSet
    state: StateFile | None = None
    schemas: tuple[StateSchema, ...] = ()
    transactions: dict[str, tuple[bytes, ...]] = {}
    records: dict[str, tuple[int, int]] = {}
    opened: str = ""
    seconds: dict[str, float] = {}
    row_bytes: int = 0
    next_timer_ms: int | None = None
    left_out: dict[str, int] = {}
    native_records: dict[int, int] = {}
    malformed: dict[str, int] = {}
    busy: dict[str, float] = {}


class Barrier(msgspec.Struct, frozen=True):
    """The end of an epoch on the way from one task to one partition of the next level.

    Attributes:
        level: Level it comes from.
        acks: Acknowledgements on their way to the driver.
        segments: All parts of the sources in this epoch that are known where it comes from.
    """

    level: int
    name: TaskName
    acks: tuple[TaskAck, ...] = ()
    segments: tuple[Segment, ...] = ()


encode_barrier = msgspec.msgpack.Encoder().encode
decode_barrier = msgspec.msgpack.Decoder(Barrier).decode


def align(barriers: list[Barrier], tasks: int | None, where: str) -> tuple[TaskName, ...]:
    """Check that every upstream task's barrier has arrived exactly once; return their names.

    `tasks` is how many there are; None in a task after those that read the sources, whose number
    only the driver knows.
    """
    names = sorted((b.name for b in barriers), key=lambda n: (n.partition, n.attempt))
    if [n.partition for n in names] != list(range(len(names) if tasks is None else tasks)):
        raise EpochConflictError(
            f"{where}: expected one barrier of each of {'the' if tasks is None else tasks} "
            f"upstream tasks, got {[(n.partition, n.attempt) for n in names]}"
        )
    return tuple(names)


@dataclass(frozen=True)
class EpochCommand:
    """What a level is to do in one epoch.

    Attributes:
        attempt: Fencing number of this life of the job.
        local_dir: Where local stores live; None for the machine's default.
        files: For each partition the confirmed state files, in epoch command.
        line: This attempt of this driver, see `Fence.line`.
        letters: Dead letters that are fed back to operators of the level.
        nonce: Which driver runs this attempt.
        directory_id: Stands for the job directory, see `sinks.base.directory_digest`.
        fence: The path of the fence of this attempt, which holds the nonce.
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
    time: EpochTime = field(default_factory=EpochTime)
    letters: tuple[bytes, ...] = ()
    nonce: str = ""
    directory_id: str = ""
    fence: str = ""


def encode_command(command: EpochCommand) -> str:
    """A command as text, which is all that Spark passes on to tasks."""
    return base64.b64encode(msgspec.msgpack.encode(command)).decode()


def decode_command(text: str) -> EpochCommand:
    """The command that `encode_command` was given."""
    return msgspec.msgpack.decode(base64.b64decode(text), type=EpochCommand)


_PACKAGE = str(Path(__file__).resolve().parent.parent)
_MARK = re.compile(r"<<turnback (?P<body>[A-Za-z0-9+/=]+) kcabnrut>>")


def user_error(
    error: BaseException, uid: str, name: str, advice: str = "", **about: Any
) -> UserFunctionError:
    """Describe an exception of the user's code by its line, its operator and its key."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_PACKAGE)]
    if not own and not advice:
        own = list(frames)[-1:]
    text = _cut(str(error), 2_000)
    lines = [f"operator {uid!r} ({name}) failed: {type(error).__name__}: {text}{advice}"]
    for label, value in about.items():
        lines.append(f"  {label}: {_cut(repr(value), 200)}")
    for frame in own[-5:]:
        lines.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}')
        if frame.line:
            lines.append(f"    {frame.line}")
    return UserFunctionError("\n".join(lines))


@contextmanager
def naming_operator(uid: str, name: str, where: str) -> Iterator[None]:
    """Let an error of the user's code name the operator; those of Turnback name it already."""
    try:
        yield
    except TurnbackError:
        raise
    except Exception as e:
        raise user_error(e, uid, name, where=where) from e


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


class EncodedError(Exception):
    """Carries an error through Spark, which keeps nothing of an exception but its text."""


def encode_error(error: TurnbackError) -> EncodedError:
    """An error in the form in which it survives the way through Spark."""
    body = base64.b64encode(msgspec.msgpack.encode((type(error).__name__, str(error)))).decode()
    return EncodedError(f"{error}\n<<turnback {body} kcabnrut>>")


def decode_error(error: BaseException) -> BaseException:
    """The error that a task raised, recovered from what Spark made of it."""
    match = _MARK.search(str(error))
    if match is None:
        return error
    kind, message = msgspec.msgpack.decode(base64.b64decode(match["body"]), type=tuple[str, str])
    cause: TurnbackError = getattr(errors, kind, UserFunctionError)(message)
    return cause
