"""The metadata of a savepoint, and the format of `_metadata.json`.

The file is JSON for people, but its first lines have a fixed form, the same in every version. The
checksum covers the kind, the version and every byte after itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from turnback.checkpoint.manifest import (
    END_OF_TIME,
    LogFile,
    OperatorInfo,
    RedriveProgress,
    SourcePosition,
)
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import (
    UNDECODABLE,
    CorruptFileError,
    FormatVersionError,
    StorageError,
)
from turnback.job.run import StartedProgram
from turnback.state.files import StateFile
from turnback.state.schema import MAX_GROUPS, StateSchema
from turnback.storage.base import split_path
from turnback.storage.envelope import damaged, digest

FORMAT = 1
KIND = "turnback-savepoint"
METADATA = "_metadata.json"
STATE = "state"
SOURCES = "sources"
FILES = "files"
"""The directories of a savepoint: typed state, logs of sources, copied state files."""

_HEAD = '{{\n  "kind": "{}",\n  "format": {},\n  "checksum": "{}",\n  "savepoint": '
_HEADER = re.compile(
    rb'\{\n  "kind": "(turnback-savepoint)",\n  "format": ([1-9][0-9]{0,8}),\n'
    rb'  "checksum": "(xxh3:[0-9a-f]{32})",\n  "savepoint": '
)
_END = b"\n}\n"
_NOT_PLAIN = re.compile(r"[\x00-\x1f\x7f\\]")

Count = Annotated[int, msgspec.Meta(ge=0)]

StateId = tuple[str, str]
"""Uid and name of a state."""


def file_name(writer: str, name: str) -> str:
    """Return what a writer calls a file, so that no other takes it for its own.

    The writer is that of `SavepointDirectory`, or '' if nobody else can write.
    """
    return f"{writer}-{name}" if writer else name


class StatePart(msgspec.Struct, frozen=True):
    """One Parquet file of a state, with rows of the key groups first to last."""

    path: str
    length: Count
    digest: str
    rows: Count
    first_group: Count
    last_group: Count

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any of the key groups first..last may be in the file."""
        return self.first_group <= last and first <= self.last_group


class SavedState(msgspec.Struct, frozen=True):
    """One state in a savepoint; in one of type native its rows are not counted."""

    schema: StateSchema
    rows: Count | None = None
    files: tuple[StatePart, ...] = ()

    @property
    def id(self) -> StateId:
        return self.schema.id

    @property
    def size(self) -> int:
        """Bytes in its files; 0 where files hold several states."""
        return sum(file.length for file in self.files)


class Origin(msgspec.Struct, frozen=True):
    """The snapshot that the job itself was started from; `id` is None for a checkpoint."""

    uri: str
    id: str | None = None
    job: str | None = None
    checkpoint: int | None = None


class FileEntry(NamedTuple):
    """A file of a snapshot, as recorded; `inline` holds the bytes of one inside the manifest."""

    path: str
    length: int
    digest: str
    inline: bytes | None = None

    @classmethod
    def of(cls, file: StatePart | LogFile | StateFile) -> FileEntry:
        inline = file.inline if isinstance(file, StateFile) else None
        return cls(file.path, file.length, file.digest, inline)


class SavepointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a savepoint but the state itself. All paths are relative to it.

    Attributes:
        checkpoint: Number of the checkpoint it was made from.
        epoch: The last epoch in it.
        trigger: Why it was taken.
        max_parallelism: Number of key groups.
        sources: Where each source goes on, by uid; its log files are in the savepoint.
        states: The states, with their files if the type is canonical.
        native: The state files if the type is native, never inline.
        watermarks: By uid; `END_OF_TIME` for all if the job was drained.
        origin: What the job itself was started from, if it was from anything.
        started: The program that took the checkpoint, and how it was started; None if an older
            version wrote it.
        targets: By sink uid, the version of a table that has what the savepoint has, and nothing
            newer of the job.
        redriven: How far it is with dead letters that were fed back.
    """

    id: str
    turnback_version: str
    type: SavepointFormat
    job: str
    job_id: str
    attempt: int
    checkpoint: int
    epoch: int
    created_ms: int
    trigger: str
    label: str | None = None
    note: str | None = None
    max_parallelism: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)]
    sources: dict[str, SourcePosition]
    operators: tuple[OperatorInfo, ...]
    states: tuple[SavedState, ...]
    watermarks: dict[str, int]
    native: tuple[StateFile, ...] = ()
    origin: Origin | None = None
    targets: dict[str, str] = {}
    redriven: RedriveProgress = RedriveProgress()
    started: StartedProgram | None = None

    def entries(self) -> tuple[FileEntry, ...]:
        """Return every other file of the savepoint, each once."""
        return tuple(dict.fromkeys(entry for _, entry in _files(self)))

    def files(self) -> dict[str, int]:
        """Return the length of every other file of the savepoint, by path."""
        return {entry.path: entry.length for entry in self.entries()}

    @property
    def drained(self) -> bool:
        """Whether event time has come to its end in it."""
        return END_OF_TIME in self.watermarks.values()


_DECODER = msgspec.json.Decoder(SavepointMetadata)


def encode(metadata: SavepointMetadata) -> bytes:
    """Return the bytes of `_metadata.json`."""
    problem = _problem(metadata)
    if problem is not None:
        raise ValueError(f"cannot write the metadata of savepoint {metadata.id}: {problem}")
    document = {"kind": KIND, "format": FORMAT, "checksum": "", "savepoint": metadata}
    text = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    rest = text[len(_HEAD.format(KIND, FORMAT, "")) :]
    return _HEAD.format(KIND, FORMAT, _sum(KIND, FORMAT, rest)).encode() + rest


def decode(data: bytes, name: str) -> SavepointMetadata:
    """Read the bytes of `_metadata.json`. They may come from strangers.

    What is damaged, or names files that cannot be in a savepoint, is refused.
    """
    header = _HEADER.match(data)
    if header is None:
        raise damaged(name, "it does not begin like the metadata of a savepoint")
    version = int(header[2])
    rest = data[header.end() :]
    actual = _sum(header[1].decode(), version, rest)
    recorded = header[3].decode()
    if actual != recorded:
        raise damaged(name, f"checksum {actual} found, {recorded} recorded")
    if version != FORMAT:
        raise FormatVersionError(
            f"{name} has savepoint format version {version}; this Turnback reads version {FORMAT}. "
            "Use the version of Turnback that wrote it, or a newer one"
        )
    try:
        metadata = _DECODER.decode(rest.removesuffix(_END))
    except (*UNDECODABLE, RecursionError) as error:
        raise CorruptFileError(f"{name} is intact but not a valid savepoint: {error}") from error
    problem = _problem(metadata)
    if problem is not None:
        raise CorruptFileError(
            f"{name} is intact but not a valid savepoint: {problem}. Nothing in it was used; do "
            "not trust its origin"
        )
    return metadata


def _sum(kind: str, version: int, rest: bytes) -> str:
    return digest(b"%s %d\n%s" % (kind.encode(), version, rest))


def _files(metadata: SavepointMetadata) -> Iterator[tuple[str, FileEntry]]:
    """Yield every file, with the directory it belongs in."""
    for state in metadata.states:
        yield from ((STATE, FileEntry.of(part)) for part in state.files)
    for source in metadata.sources.values():
        yield from ((SOURCES, FileEntry.of(log)) for log in source.log)
    yield from ((FILES, FileEntry.of(file)) for file in metadata.native)


def _problem(metadata: SavepointMetadata) -> str | None:
    """Say what keeps metadata from being used, whoever wrote it; None if nothing does."""
    ids = [state.schema.id for state in metadata.states]
    if len(set(ids)) < len(ids):
        return "it contains a state twice"
    if any(file.inline is not None for file in metadata.native):
        return "a state file is listed more than once"
    parts = [part for state in metadata.states for part in state.files]
    if metadata.native and parts:
        return "it contains files of both types"
    for part in parts:
        if not part.first_group <= part.last_group < metadata.max_parallelism:
            return f"{part.path!r} has key groups that do not exist"
    for directory, entry in _files(metadata):
        if not _is_inside(entry.path, directory):
            return f"the path {entry.path!r} is not a plain path below {directory}/"
    return None


def _is_inside(path: str, directory: str) -> bool:
    try:
        first, *below = split_path(path)
    except StorageError:
        return False
    return first == directory and bool(below) and not _NOT_PLAIN.search(path)
