"""What `_metadata.json` says of a savepoint, and how it is written.

The file is JSON for people, but its first lines have a fixed form, the same in every version. The
checksum covers the kind, the version and every byte after itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple

import msgspec

from turnback.checkpoint.manifest import OperatorInfo, SourcePosition
from turnback.config.savepoints import SavepointFormat
from turnback.core.errors import CorruptFileError, FormatVersionError, StateError, StorageError
from turnback.snapshot.claims import StateId
from turnback.state.files import StateFile
from turnback.state.schema import MAX_GROUPS, StateSchema
from turnback.storage.base import split_path
from turnback.storage.envelope import damaged, digest
from turnback.types.typeinfo import ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInfo

FORMAT = 1
KIND = "turnback-savepoint"
METADATA = "_metadata.json"
STATE, SOURCES, FILES = "state", "sources", "files"
"""The directories of a savepoint: typed state, logs of sources, copied state files."""

END_OF_TIME = (1 << 63) - 1
"""The watermark after which nothing comes."""

_HEAD = '{{\n  "kind": "{}",\n  "format": {},\n  "checksum": "{}",\n  "savepoint": '
_HEADER = re.compile(
    rb'\{\n  "kind": "(turnback-savepoint)",\n  "format": ([1-9][0-9]{0,8}),\n'
    rb'  "checksum": "(xxh3:[0-9a-f]{32})",\n  "savepoint": '
)
_END = b"\n}\n"
_STRANGE = re.compile(r"[\x00-\x1f\x7f\\]")

Count = Annotated[int, msgspec.Meta(ge=0)]


def file_name(writer: str, name: str) -> str:
    """Return what a writer calls a file, so that no other takes it for its own.

    Args:
        writer: Who writes, see `SavepointDirectory.writer`; '' if nobody else can.
        name: Tells the file apart from others of this writer.
    """
    return f"{writer}-{name}" if writer else name


class StatePart(msgspec.Struct, frozen=True):
    """One Parquet file of a state.

    Attributes:
        path: Where it is, relative to the savepoint.
        length: Bytes.
        digest: Of those bytes.
        rows: Number of rows in it.
        first_group: Smallest key group in it.
        last_group: Greatest one.
    """

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
    """One state in a savepoint.

    Attributes:
        schema: What it is.
        rows: Values, list elements or map entries; None where nobody counted (type native).
        files: Its files; none if it is empty or the savepoint is of type native.
    """

    schema: StateSchema
    rows: Count | None = None
    files: tuple[StatePart, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in its files."""
        return sum(file.length for file in self.files)


class Origin(msgspec.Struct, frozen=True):
    """The snapshot that the job itself was started from.

    Attributes:
        uri: Where it was.
        id: The savepoint's id; None for a checkpoint.
        job: The job that took it.
        checkpoint: The number of the checkpoint.
    """

    uri: str
    id: str | None = None
    job: str | None = None
    checkpoint: int | None = None


class FileEntry(NamedTuple):
    """What the metadata says of any other file of the savepoint."""

    path: str
    length: int
    digest: str


class SavepointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a savepoint but the state itself. All paths are relative to it.

    Attributes:
        id: Unique.
        turnback_version: What wrote it.
        type: What its files are.
        job: Name of the job.
        job_id: Its identity.
        attempt: The attempt that took it.
        checkpoint: Number of the checkpoint it was made from.
        epoch: The last epoch in it.
        created_ms: When.
        trigger: Who or what asked for it.
        label: What the user calls it.
        note: What the user says of it.
        max_parallelism: Number of key groups.
        sources: Where each source goes on, by uid; its log files are in the savepoint.
        operators: The operators of the program.
        states: The states, with their files if the type is canonical.
        native: The state files if the type is native, never inline.
        watermarks: By uid; `END_OF_TIME` for all if the job was drained.
        origin: What the job itself was started from, if it was from anything.
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

    def entries(self) -> tuple[FileEntry, ...]:
        """Return every other file of the savepoint, each once."""
        found = {path: FileEntry(path, n, digest) for _, path, n, digest in _files(self)}
        return tuple(found.values())

    def files(self) -> dict[str, int]:
        """Return the length of every other file of the savepoint, by path."""
        return {entry.path: entry.length for entry in self.entries()}

    @property
    def drained(self) -> bool:
        """Whether event time has come to its end in it."""
        return END_OF_TIME in self.watermarks.values()

    def state(self, uid: str, name: str) -> SavedState | None:
        """Return a state, None if the savepoint does not hold it."""
        return next((s for s in self.states if s.schema.id == (uid, name)), None)

    def sizes(self) -> dict[tuple[str, str], int]:
        """Return the bytes of each state, by uid and name; 0 where files hold several states."""
        return {state.schema.id: state.size for state in self.states}


_DECODER = msgspec.json.Decoder(SavepointMetadata)


def encode(metadata: SavepointMetadata) -> bytes:
    """Return the bytes of `_metadata.json`.

    Raises:
        ValueError: `decode` would refuse it.
    """
    problem = _problem(metadata)
    if problem is not None:
        raise ValueError(f"savepoint {metadata.id} cannot be described: {problem}")
    document = {"kind": KIND, "format": FORMAT, "checksum": "", "savepoint": metadata}
    text = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    rest = text[len(_HEAD.format(KIND, FORMAT, "")) :]
    return _HEAD.format(KIND, FORMAT, _sum(KIND, FORMAT, rest)).encode() + rest


def decode(data: bytes, name: str) -> SavepointMetadata:
    """Read the bytes of `_metadata.json`. They may come from strangers.

    Args:
        data: The whole file.
        name: The file, for messages.

    Raises:
        CorruptFileError: It is damaged, is no savepoint, or names files that cannot be in one.
        FormatVersionError: It was written by a newer version.
    """
    header = _HEADER.match(data)
    if header is None:
        raise damaged(name, "its first lines are not those of a savepoint")
    version, rest = int(header[2]), data[header.end() :]
    found, recorded = _sum(header[1].decode(), version, rest), header[3].decode()
    if found != recorded:
        raise damaged(name, f"checksum {found} found, {recorded} recorded")
    if version != FORMAT:
        raise FormatVersionError(
            f"{name} has savepoint format version {version}; this Turnback reads version {FORMAT}. "
            "Use the version of Turnback that wrote it, or a newer one"
        )
    try:
        metadata = _DECODER.decode(rest.removesuffix(_END))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CorruptFileError(f"{name} is intact but is no valid savepoint: {error}") from error
    problem = _problem(metadata)
    if problem is not None:
        raise CorruptFileError(
            f"{name} is intact but is no valid savepoint: {problem}. Nothing of it was used; do "
            "not trust where it came from"
        )
    return metadata


def _sum(kind: str, version: int, rest: bytes) -> str:
    return digest(b"%s %d\n%s" % (kind.encode(), version, rest))


def _files(metadata: SavepointMetadata) -> Iterator[tuple[str, str, int, str]]:
    """Yield every file: the directory it belongs in, path, length and digest."""
    for state in metadata.states:
        for part in state.files:
            yield STATE, part.path, part.length, part.digest
    for source in metadata.sources.values():
        for log in source.log:
            yield SOURCES, log.path, log.length, log.digest
    for file in metadata.native:
        yield FILES, file.path, file.length, file.digest


def _problem(metadata: SavepointMetadata) -> str | None:
    """Say what keeps metadata from being used, whoever wrote it; None if nothing does."""
    ids = [state.schema.id for state in metadata.states]
    if len(set(ids)) < len(ids):
        return "it holds a state twice"
    if any(file.inline is not None for file in metadata.native):
        return "a state file is not a file of its own"
    parts = [part for state in metadata.states for part in state.files]
    if metadata.native and parts:
        return "it holds files of both types"
    for part in parts:
        if not part.first_group <= part.last_group < metadata.max_parallelism:
            return f"{part.path!r} has key groups that do not exist"
    for directory, path, _, _ in _files(metadata):
        if not _is_inside(path, directory):
            return f"the path {path!r} is not a plain path below {directory}/"
    return None


def _is_inside(path: str, directory: str) -> bool:
    try:
        first, *below = split_path(path)
    except StorageError:
        return False
    return first == directory and bool(below) and not _STRANGE.search(path)


Reorder = Callable[[bytes], bytes]

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


def reorder(type_: TypeInfo) -> Reorder | None:
    """Return what puts the maps inside a stored value in one order; None if it can have none.

    Equal maps may be stored in different orders, and nothing else that is equal differs in its
    bytes, once decimals have all their places (see `StateTable`). Pickles are not opened: they
    are bytes here.
    """
    return _reordered if _has_map(type_) else None


def _has_map(type_: TypeInfo) -> bool:
    if isinstance(type_, RowTypeInfo):
        return any(map(_has_map, type_.types))
    if isinstance(type_, ListTypeInfo):
        return _has_map(type_.element)
    return isinstance(type_, MapTypeInfo)


def _reordered(data: bytes) -> bytes:
    return _encode(_sorted(_decode(data)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        entries = sorted((_encode(key), key, item) for key, item in value.items())
        return {key: _sorted(item) for _, key, item in entries}
    if isinstance(value, list):
        return list(map(_sorted, value))
    return value


def check_state(snapshot: str, ids: Collection[StateId], uid: str, state: str) -> StateId:
    """Return the id of a state that is there.

    Raises:
        StateError: It is not; the message suggests the nearest name.
    """
    check_operator(snapshot, ids, uid)
    if (uid, state) not in ids:
        names = [name for owner, name in ids if owner == uid]
        raise StateError(
            f"operator {uid!r} in {snapshot} has no state {state!r}; {_hint(state, names)}"
        )
    return uid, state


def check_operator(snapshot: str, ids: Iterable[StateId], uid: str) -> None:
    """Raise `StateError`, with the nearest name, if no operator of this uid has state."""
    uids = {owner for owner, _ in ids}
    if uid not in uids:
        raise StateError(f"{snapshot} has no state of an operator {uid!r}; {_hint(uid, uids)}")


def _hint(given: str, names: Collection[str]) -> str:
    near = get_close_matches(str(given), names, 1, 0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there is {', '.join(map(repr, sorted(names))) or 'no state at all'}"
