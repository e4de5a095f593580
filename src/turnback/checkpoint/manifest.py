"""The slots of the checkpoint log.

A slot is one sealed JSON document: a `Manifest` (a durable checkpoint) or a `Fence` (the start
of an attempt).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from turnback.errors import (
    UNDECODABLE,
    CheckpointNotFoundError,
    CorruptFileError,
    FormatVersionError,
)
from turnback.state.files import StateFile
from turnback.state.schema import StateSchema
from turnback.storage.envelope import seal, unseal


class AttemptRange(msgspec.Struct, frozen=True, array_like=True):
    """Attempts that went on one from the other, up to an epoch: `first` to `last`."""

    first: int
    last: int
    epoch: int


class RedriveProgress(msgspec.Struct, frozen=True):
    """How many batches of dead letters a checkpoint has been fed, and what it has come from.

    The oldest of its past is first, and itself at the end; in between the job was turned back.
    """

    batches: int = 0
    past: tuple[AttemptRange, ...] = ()

    def has(self, attempt: int, epoch: int) -> bool:
        """Whether an epoch of an attempt is in the past."""
        return any(s.first <= attempt <= s.last and epoch <= s.epoch for s in self.past)

    def begin(self, attempt: int, epoch: int, *, continues: bool = False) -> RedriveProgress:
        """What holds for an attempt that starts from this, at an epoch.

        `continues` keeps the past short: it starts from the newest checkpoint there is.
        """
        past = (*self.past, AttemptRange(attempt, attempt, epoch))
        if continues and self.past:
            past = (*self.past[:-1], AttemptRange(self.past[-1].first, attempt, epoch))
        return RedriveProgress(self.batches, past)

    def advance(self, epoch: int, batches: int) -> RedriveProgress:
        """The same after an epoch, and so many batches."""
        past = (*self.past[:-1], msgspec.structs.replace(self.past[-1], epoch=epoch))
        return RedriveProgress(batches, past)


NOTHING_REDRIVEN = RedriveProgress()
"""Of a job that knows nothing of dead letters."""


FORMAT = 1
KIND = "checkpoint"
END_OF_TIME = (1 << 63) - 1
"""The watermark of operators for which event time has come to its end."""


class LogFile(msgspec.Struct, frozen=True):
    """A file of a source's log (for sources that keep a list of what they have seen)."""

    name: str
    path: str
    length: int
    digest: str


class SourcePosition(msgspec.Struct, frozen=True):
    """Where a source goes on: Spark's offset as JSON, `None` for the very beginning.

    `identity` tells its streams from others that get the same names later, if that is known.
    `malformed` is how many records up to here did not fit the schema, and were left out.
    """

    offset: str | None
    log: tuple[LogFile, ...] = ()
    identity: str | None = None
    malformed: int = 0


def add_malformed(
    after: Mapping[str, SourcePosition],
    before: Mapping[str, SourcePosition],
    malformed: Mapping[str, int],
) -> dict[str, SourcePosition]:
    """The positions after an epoch, with how many records were malformed up to there."""
    known = malformed_counts(before)
    return {
        uid: msgspec.structs.replace(position, malformed=known.get(uid, 0) + malformed.get(uid, 0))
        for uid, position in after.items()
    }


def malformed_counts(positions: Mapping[str, SourcePosition]) -> dict[str, int]:
    """How many records were malformed up to these positions, of sources that had any."""
    return {uid: position.malformed for uid, position in positions.items() if position.malformed}


class OperatorInfo(msgspec.Struct, frozen=True):
    """An operator of the program that took the checkpoint."""

    uid: str
    name: str
    kind: str
    parallelism: int


@dataclass(frozen=True)
class EpochCut:
    """Everything a checkpoint of one confirmed epoch consists of; later cuts have greater epochs.

    Attributes:
        sources: Position of every source after the epoch, by source uid.
        state: All live state files after the epoch.
        transactions: What sinks prepared in this very epoch, by sink uid.
        sync_ms: How long the slowest task of the epoch took to snapshot its state.
        watermarks: Of every operator that has event time, by uid.
        redriven: How far it is with dead letters that were fed back.
        drained_by: The request that event time has come to its end for; empty if there is none.
    """

    epoch: int
    sources: Mapping[str, SourcePosition]
    state: tuple[StateFile, ...] = ()
    schemas: tuple[StateSchema, ...] = ()
    operators: tuple[OperatorInfo, ...] = ()
    transactions: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    sync_ms: int = 0
    tasks: int = 0
    watermarks: Mapping[str, int] = field(default_factory=dict)
    redriven: RedriveProgress = NOTHING_REDRIVEN
    drained_by: str = ""

    @cached_property
    def paths(self) -> frozenset[str]:
        return frozenset(_files(self.state, self.sources))


class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag="manifest", tag_field="slot"):
    """A durable checkpoint; it exists as soon as its slot is written, and not before."""

    format: int = FORMAT
    job: str
    job_id: str
    number: int
    attempt: int
    epoch: int
    created_ms: int
    trigger: str
    parent: int | None
    max_parallelism: int
    sources: dict[str, SourcePosition]
    state: tuple[StateFile, ...]
    schemas: tuple[StateSchema, ...]
    operators: tuple[OperatorInfo, ...]
    transactions: dict[str, tuple[bytes, ...]]
    watermarks: dict[str, int]
    redriven: RedriveProgress = RedriveProgress()
    drained_by: str = ""
    """The request to drain the job that ends it with this checkpoint, whoever serves it."""

    @property
    def event_time_has_ended(self) -> bool:
        """Whether timers and windows have fired that would have waited for more input."""
        return bool(self.drained_by) or END_OF_TIME in self.watermarks.values()

    @property
    def name(self) -> str:
        return f"chk-{self.number}"

    def files(self) -> dict[str, int]:
        """Return the length of every file it references, by path."""
        return _files(self.state, self.sources)


class StartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the user told an attempt to start from, instead of the newest checkpoint."""

    checkpoint: Manifest | None = None
    """One of the job's log. A copy: the driver that was replaced may be about to drop it."""
    snapshot: str | None = None
    """Where any other snapshot is, such as a savepoint."""
    goes_on: bool = False
    """Whether the job goes on from there although event time had ended."""


class Fence(msgspec.Struct, frozen=True, kw_only=True, tag="fence", tag_field="slot"):
    """The start of an attempt. It takes the slot an older attempt would write next."""

    format: int = FORMAT
    job: str
    job_id: str
    number: int
    attempt: int
    created_ms: int
    host: str
    pid: int
    nonce: str
    manifests: tuple[int, ...] = ()
    """The slots below that held manifests; every other slot below holds a fence."""
    ended: bool = False
    """Whether it marks the end of the attempt instead: all its checkpoints were deleted."""
    start: StartPoint | None = None
    """What the attempt was told to start from; only in the second fence of such an attempt."""

    @property
    def line(self) -> str:
        """Identifies this attempt of this driver to local stores, even among copies of the job."""
        return f"{self.attempt}-{self.nonce}"


Slot = Manifest | Fence


def _files(state: Iterable[StateFile], sources: Mapping[str, SourcePosition]) -> dict[str, int]:
    lengths = {file.path: file.length for file in state if file.inline is None}
    for source in sources.values():
        lengths.update((entry.path, entry.length) for entry in source.log)
    return lengths


_DECODER: msgspec.json.Decoder[Slot] = msgspec.json.Decoder(Slot)


def encode(slot: Slot) -> bytes:
    """Return the bytes of a slot file."""
    return seal(KIND, FORMAT, msgspec.json.encode(slot))


def decode(data: bytes, name: str) -> Slot:
    """Read the bytes of a slot file; raises `CorruptFileError` or `FormatVersionError`."""
    _, body = unseal(KIND, FORMAT, data, name)
    try:
        return _DECODER.decode(body)
    except UNDECODABLE as error:
        raise CorruptFileError(f"{name} is intact but not a valid checkpoint: {error}") from error


Unreadable = CorruptFileError | FormatVersionError


@dataclass(frozen=True)
class Listing:
    """The newest part of the log, consistent because it is read from one listing of its slots.

    That is the newest slots down to the newest fence, and the numbers of all slots that hold
    manifests or cannot be read, ascending.
    """

    slots: dict[int, Slot]
    unreadable: dict[int, Unreadable]
    manifests: tuple[int, ...]

    @property
    def newest(self) -> Slot | None:
        """The newest slot; raises `CorruptFileError` if it is damaged."""
        number = max((*self.slots, *self.unreadable), default=None)
        if number in self.unreadable:
            raise self.unreadable[number]
        return self.slots[number] if number is not None else None


def read_newest(numbers: Sequence[int], get: Callable[[int], Slot]) -> Listing:
    """Read the log, of which one listing gave these numbers, from the newest slot to a fence.

    That fence knows what is below it, so the cost does not grow with the number of attempts the
    job has had.
    """
    slots: dict[int, Slot] = {}
    unreadable: dict[int, Unreadable] = {}
    below: set[int] = set()
    number = numbers[-1] if numbers else 0
    while number > 0:
        try:
            slots[number] = slot = get(number)
        except CheckpointNotFoundError:
            number = max((n for n in numbers if n < number), default=0)
            continue
        except (CorruptFileError, FormatVersionError) as error:
            unreadable[number] = error
        else:
            if isinstance(slot, Fence):
                below = set(slot.manifests).intersection(numbers)
                break
        # Listed or not: a listing takes time, and may show a slot and not the one before it.
        number -= 1
    manifests = {n for n, slot in slots.items() if isinstance(slot, Manifest)}
    return Listing(slots, unreadable, tuple(sorted({*manifests, *unreadable, *below})))
