"""What a slot of the checkpoint log holds, and how it is written.

A slot is one sealed JSON document: a `Manifest` (a complete checkpoint) or a `Fence` (the start
of an attempt).
"""

from typing import Any

import msgspec

from turnback.core.errors import CorruptFileError
from turnback.state.file import StateFile
from turnback.state.schema import StateSchema
from turnback.storage.envelope import seal, unseal

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
