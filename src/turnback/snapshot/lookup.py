"""What a state holds for one key at the newest checkpoint of a job, which may be running.

Only the files that hold the key's group are read, and of those only the batches with rows of it.
All of them are of one checkpoint. The job may drop that checkpoint meanwhile, and delete files that
no newer one needs: then the newer one is read instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    ElementTypeError,
    NotFoundError,
)
from turnback.job.directory import JobDirectory
from turnback.snapshot.find import find_snapshot, locate, resume_point
from turnback.snapshot.metadata import SavedState
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef
from turnback.state.schema import OPERATOR_KINDS, SINGLE_KINDS, StateSchema

if TYPE_CHECKING:  # Arrow is loaded when the first state is read
    import pyarrow as pa

_CURSOR = re.compile(r"([0-9]{1,18})\.((?:[0-9a-f]{2})*)")
T = TypeVar("T")


# -- which snapshot


def confirmed_state(directory: JobDirectory, job: StorageRef) -> Snapshot:
    """The newest state of a job that nothing can undo: where it would go on if it failed now.

    That is its newest checkpoint; what it has started from, as long as it has taken none since; and
    if its checkpoints were deleted when it ended, its newest savepoint. Raises
    `CheckpointNotFoundError` if it has taken none yet.
    """
    log = CheckpointLog(directory.storage)
    point = resume_point(log, directory)
    if point is None:
        newest = log.newest()
        info = directory.info()
        if isinstance(newest, Fence) and newest.ended and info and newest.job_id == info.job_id:
            return find_snapshot("latest", job)
        raise CheckpointNotFoundError(
            f"job {directory.name!r} has not completed a checkpoint since it started, so there "
            "is no state to read yet. Try again after its first checkpoint"
        )
    if point.manifest is not None:
        return Snapshot(point.manifest, job)
    assert point.snapshot is not None
    return locate(point.snapshot, job)


def read_confirmed(
    directory: JobDirectory,
    job: StorageRef,
    read: Callable[[Snapshot], T],
    checkpoint: int | None = None,
) -> T:
    """Read from `confirmed_state`, or from a newer one if that is dropped meanwhile.

    It reads from the given checkpoint as long as that is there. `read` may be called several times.
    """
    if checkpoint is not None:
        try:
            slot = CheckpointLog(directory.storage).get(checkpoint)
            if isinstance(slot, Manifest):
                return read(Snapshot(slot, job))
        except (CheckpointNotFoundError, NotFoundError):
            pass
    before: Snapshot | None = None
    while True:
        snapshot = confirmed_state(directory, job)
        try:
            return read(snapshot)
        except NotFoundError as error:
            if before is not None and before.origin == snapshot.origin:
                raise CorruptFileError(
                    f"{snapshot.name} of job {directory.name!r} needs a file that is missing: "
                    f"{error}. To find other missing files, run `turnback verify`; start the job "
                    "from an older checkpoint or a savepoint"
                ) from error
            before = snapshot


# -- which rows


class Cursor(NamedTuple):
    """Where a page ends: the checkpoint it was read from, and the last entry on it."""

    checkpoint: int
    sub: bytes

    def text(self) -> str:
        return f"{self.checkpoint}.{self.sub.hex()}"

    @classmethod
    def of(cls, text: str | None) -> Cursor | None:
        if text is None:
            return None
        match = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(f"invalid cursor {text!r}: pass `next` of the previous page")
        return cls(int(match[1]), bytes.fromhex(match[2]))


@dataclass(frozen=True)
class KeyRows:
    """What a state holds for a key, or a page of it, in the order of subs.

    `first` is how many entries come before, `next` where the next page begins; None at the end.
    """

    snapshot: Snapshot
    schema: StateSchema
    rows: pa.Table
    first: int = 0
    next: Cursor | None = None


def look_up(
    directory: JobDirectory,
    job: StorageRef,
    uid: str,
    name: str,
    key: Callable[[StateSchema], Any],
    now_ms: int,
    after: str | None = None,
    limit: int | None = None,
) -> KeyRows:
    """Read what a state holds for a key, see `confirmed_state` for when.

    Pages are of one checkpoint as long as the job retains it; later ones go on in a newer
    checkpoint, behind the last entry of the page before, whose `next` is `after`. What has expired
    by `now_ms` is left out. The key is asked for once it is known what keys the state has.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ConfigurationError(f"limit must be at least 1, not {limit!r}")
    cursor = Cursor.of(after)

    def read(snapshot: Snapshot) -> KeyRows:
        state = snapshot.state(uid, name)
        rows = key_rows(snapshot, state, key(state.schema), now_ms)
        first = 0 if cursor is None else _count_up_to(rows, cursor.sub)
        page = rows.slice(first, limit)
        more = first + len(page) < len(rows)
        last = page["sub"][-1].as_py() if more else b""
        following = Cursor(snapshot.origin.checkpoint or 0, last) if more else None
        return KeyRows(snapshot, state.schema, page, first, following)

    return read_confirmed(directory, job, read, None if cursor is None else cursor.checkpoint)


def key_rows(
    snapshot: Snapshot, state: SavedState, key: Any, now_ms: int | None = None
) -> pa.Table:
    """The rows of one key, in the order of list positions or of encoded map keys.

    With a time, those are left out whose time to live has ended by then.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from turnback.snapshot.table import ROWS
    from turnback.state.expiry import update_times

    schema = state.schema
    stored = snapshot.rows(state)
    group, data = encode_key(schema, key, snapshot.max_parallelism)
    if schema.kind in OPERATOR_KINDS:
        # Where a subtask has its state depends on how many of them there were.
        tables = stored.rows(0, snapshot.max_parallelism - 1)
    else:
        tables = stored.rows(group, group, data)
    matching = [
        table.filter(pc.equal(table["key"], pa.scalar(data, table["key"].type))) for table in tables
    ]
    rows = pa.concat_tables(matching) if matching else ROWS.empty_table()
    if schema.kind not in SINGLE_KINDS:
        rows = rows.sort_by("sub")
    if schema.ttl is not None and now_ms is not None and len(rows):
        rows = rows.filter(pa.array(update_times(rows["value"]) > now_ms - schema.ttl.ms))
    return rows


def encode_key(schema: StateSchema, key: Any, groups: int) -> tuple[int, bytes]:
    """Return the key group and the bytes of a key; `ConfigurationError` if it has another type."""
    codec = schema.key.codec()
    try:
        return codec.group(key, groups), codec.encode(key)
    except ElementTypeError as error:
        types = ", ".join(map(str, codec.types))
        raise ConfigurationError(
            f"{schema.title}: {key!r} is not a key of type {types}: {error}"
        ) from error


def _count_up_to(rows: pa.Table, sub: bytes) -> int:
    """How many rows are not behind an entry; that itself may be gone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    behind = pc.greater(rows["sub"], pa.scalar(sub, rows["sub"].type))
    return len(rows) - int(pc.sum(behind).as_py() or 0)
