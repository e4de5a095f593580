"""What a slot of the checkpoint log holds, and how it is written.

A slot is one sealed JSON document: a `Manifest` (a complete checkpoint) or a `Fence` (the start
of an attempt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from turnback.core.errors import CorruptFileError
from turnback.state.files import StateFile
from turnback.state.schema import StateSchema
from turnback.storage.envelope import seal, unseal


@dataclass(frozen=True)
class EpochCut:
    """Everything a checkpoint of one confirmed epoch consists of.

    Attributes:
        epoch: The epoch; greater than that of any cut before.
        sources: Position of every source after the epoch, by source uid.
        state: All live state files after the epoch.
        schemas: What is in them.
        operators: The operators of the program.
        transactions: What sinks prepared in this very epoch, by sink uid.
        watermarks: Greatest watermarks by name.
        sync_ms: How long the slowest task of the epoch took to snapshot its state.
        tasks: Tasks that acknowledged the epoch.
    """

    epoch: int
    sources: Mapping[str, SourcePosition]
    state: tuple[StateFile, ...] = ()
    schemas: tuple[StateSchema, ...] = ()
    operators: tuple[OperatorInfo, ...] = ()
    transactions: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    sync_ms: int = 0
    tasks: int = 0

    def paths(self) -> frozenset[str]:
        """Return the paths of all files the cut needs."""
        found = {file.path for file in self.state if file.inline is None}
        for source in self.sources.values():
            found.update(entry.path for entry in source.log)
        return frozenset(found)


FORMAT = 1
KIND = "checkpoint"


class LogFile(msgspec.Struct, frozen=True):
    """A file of a source's log (for sources that keep a list of what they have seen)."""

    name: str
    path: str
    length: int
    digest: str


class SourcePosition(msgspec.Struct, frozen=True):
    """Where a source goes on: Spark's offset as JSON, `None` for the very beginning."""

    offset: str | None
    log: tuple[LogFile, ...] = ()


class OperatorInfo(msgspec.Struct, frozen=True):
    """An operator of the program that took the checkpoint."""

    uid: str
    name: str
    kind: str
    parallelism: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag="manifest", tag_field="slot"):
    """A complete checkpoint; it exists as soon as its slot is written, and not before."""

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
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """The name users know it by, ``chk-7``."""
        return f"chk-{self.number}"

    def files(self) -> dict[str, int]:
        """Return the length of every file it references, by path."""
        found = {file.path: file.length for file in self.state if file.inline is None}
        for source in self.sources.values():
            found.update((entry.path, entry.length) for entry in source.log)
        return found


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

    @property
    def line(self) -> str:
        """The name of this attempt of this driver, which no other has, even in a copy of the job.

        Local stores are told apart by it.
        """
        return f"{self.attempt}-{self.nonce}"


Slot = Manifest | Fence

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Slot] = msgspec.json.Decoder(Slot)


def encode(slot: Slot) -> bytes:
    """Return the bytes of a slot file."""
    return seal(KIND, FORMAT, _ENCODER.encode(slot))


def decode(data: bytes, name: str) -> Slot:
    """Read the bytes of a slot file.

    Args:
        data: The whole file.
        name: The file, for messages.

    Raises:
        CorruptFileError: It is damaged or is no checkpoint.
        FormatVersionError: It was written by a newer version.
    """
    _, body = unseal(KIND, FORMAT, data, name)
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptFileError(f"{name} is intact but is no valid checkpoint: {error}") from error


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint that is durable and whose sink work is committed.

    Attributes:
        manifest: What it consists of.
        waited_ms: Time from the trigger until writing began.
        manifest_ms: Time to make the manifest durable.
        commit_ms: Time the sinks took to commit.
        bytes_written: Bytes of the files that no earlier checkpoint of this attempt held.
        files_written: Number of those files.
        full_bytes: Bytes of all files it references.
        files: Number of all files it references.
        sync_ms: How long the slowest task of the epoch took to snapshot its state.
        tasks: Tasks that acknowledged the epoch.
    """

    manifest: Manifest
    waited_ms: int = 0
    manifest_ms: int = 0
    commit_ms: int = 0
    bytes_written: int = 0
    files_written: int = 0
    full_bytes: int = 0
    files: int = 0
    sync_ms: int = 0
    tasks: int = 0

    @property
    def number(self) -> int:
        """The slot it is in."""
        return self.manifest.number

    @property
    def epoch(self) -> int:
        """The epoch it is a cut of."""
        return self.manifest.epoch

    @property
    def duration_ms(self) -> int:
        """Time from the trigger until it was complete."""
        return self.waited_ms + self.manifest_ms + self.commit_ms
