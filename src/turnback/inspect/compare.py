"""What differs between two snapshots."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from turnback.core.errors import ConfigurationError, IncompatibleStateError
from turnback.inspect.browse import SCAN_S, RowPosition, StateRows, check_limit
from turnback.inspect.model import View
from turnback.inspect.snapshots import while_kept
from turnback.snapshot.metadata import StatePart, check_state
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StateFile

if TYPE_CHECKING:
    import pyarrow as pa

    from turnback.snapshot.reader import Span


class DiffRow(View, frozen=True, kw_only=True):
    """A difference between two snapshots: `change` is added, removed or changed."""

    change: str
    key: Any
    sub: Any = None
    before: Any = None
    after: Any = None


class StateDiffRow(View, frozen=True, kw_only=True):
    """How one state differs between two snapshots: in both, or only in one of them."""

    uid: str
    name: str
    presence: str


class DiffPage(View, frozen=True, kw_only=True):
    """Some differences of a state between two snapshots.

    Attributes:
        uid: The operator.
        name: The state.
        added: In the later one only, among what this page has compared.
        removed: In the earlier one only, likewise.
        changed: Other values, likewise.
        same: Equal, likewise.
        rows: The differences, at most as many as were asked for.
        next: What to ask for to see more; None at the end.
    """

    uid: str
    name: str
    added: int
    removed: int
    changed: int
    same: int
    rows: tuple[DiffRow, ...]
    next: str | None


PIECE_ROWS = 100_000
PIECE_BYTES = 32 << 20
"""About as much of both snapshots is compared at once, but never less than a key group."""

_NIL = b"\xc0"

Entries = dict[tuple[bytes, bytes], bytes]
"""Values by key and list position or map key, in bytes that are the same if values are equal."""


def states(before: Snapshot, after: Snapshot) -> list[StateDiffRow]:
    """Which states there are to compare; `presence` is both, before or after."""
    old, new = ({state.id for state in side.states} for side in (before, after))
    return [
        StateDiffRow(
            uid=uid,
            name=name,
            presence="both" if (uid, name) in old & new else _only((uid, name) in old),
        )
        for uid, name in sorted(old | new)
    ]


def _only(in_old: bool) -> str:
    return "before" if in_old else "after"


def page(
    before: Snapshot,
    after: Snapshot,
    uid: str,
    name: str,
    *,
    after_cursor: str | None = None,
    limit: int = 50,
    full: bool = False,
) -> DiffPage:
    """Compare a state in two snapshots, key group by key group.

    Values are compared as they are stored: maps in any order, decimals by their value, NaN is
    equal to NaN, and pickles are equal if their bytes are. A list element is found by its
    position. The numbers of all pages add up to those of the whole state. A page may have fewer
    rows than asked for and still not be the last one: only `next` tells.

    Args:
        before: The earlier snapshot.
        after: The later one.
        uid: The operator.
        name: The state.
        after_cursor: What the page before gave as `next`.
        limit: Number of rows, at most `browse.MOST`.
        full: Show long values as a whole.

    Raises:
        StateError: Neither has such a state, or its rows cannot be read.
        IncompatibleStateError: Its types or key groups differ.
        ConfigurationError: An argument cannot be used.
        CorruptFileError: A file is damaged.
        CheckpointNotFoundError: A checkpoint was dropped meanwhile.
        NotFoundError: A file is missing.
    """
    check_limit(limit)
    start = RowPosition.of(after_cursor)
    pair = _pair(before, after, uid, name)
    found = _Found(limit)
    with while_kept(before, after):
        following = _compare(pair, start, found)
    return DiffPage(
        uid=uid,
        name=name,
        added=found.added,
        removed=found.removed,
        changed=found.changed,
        same=found.same,
        rows=tuple(pair.shown(found.changes, full=full)),
        next=following.cursor() if following is not None else None,
    )


class EntryChange(NamedTuple):
    """A row that differs: what it was and what it is, None for not there."""

    key: bytes
    sub: bytes
    old: bytes | None
    new: bytes | None

    @property
    def kind(self) -> str:
        """What happened to it."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


class _Found:
    """What a page has found so far."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.changes: list[EntryChange] = []
        self.same = 0

    def take(self, changes: list[EntryChange]) -> int:
        """Take as many as the page has room for; returns how many."""
        taken = changes[: self.limit - len(self.changes)]
        self.changes += taken
        return len(taken)

    @property
    def is_full(self) -> bool:
        return len(self.changes) >= self.limit

    @property
    def added(self) -> int:
        return self._count("added")

    @property
    def removed(self) -> int:
        return self._count("removed")

    @property
    def changed(self) -> int:
        return self._count("changed")

    def _count(self, kind: str) -> int:
        return sum(change.kind == kind for change in self.changes)


def _compare(pair: _Pair, start: RowPosition, found: _Found) -> RowPosition | None:
    """Compare from a position on; returns where the next page begins."""
    deadline = time.monotonic() + SCAN_S
    pieces = pair.pieces()
    if start.place not in (first for first, _ in pieces):
        raise ConfigurationError(
            f"{start.cursor()!r} does not say where to go on: pass on what the page before gave "
            "as next, with the same two snapshots"
        )
    rest = [piece for piece in pieces if piece[0] >= start.place]
    for number, piece in enumerate(rest):
        if number and (found.is_full or time.monotonic() >= deadline):
            return RowPosition(piece[0], 0)
        changes, same = pair.compared(piece)
        skipped = start.row if number == 0 else 0
        taken = found.take(changes[skipped:])
        if skipped + taken < len(changes):
            return RowPosition(piece[0], skipped + taken)
        found.same += same
    return None


def _pair(before: Snapshot, after: Snapshot, uid: str, name: str) -> _Pair:
    ids = [row for side in (before, after) for row in (state.id for state in side.states)]
    id = check_state(f"{before.name} and {after.name}", ids, uid, name)
    old, new = (
        StateRows(side, uid, name) if id in {state.id for state in side.states} else None
        for side in (before, after)
    )
    if old is not None and new is not None:
        _check_comparable(old, new)
    return _Pair(old, new)


def _check_comparable(old: StateRows, new: StateRows) -> None:
    from turnback.snapshot.reader import incomparable

    what = f"state {old.schema.name!r} of operator {old.schema.uid!r} cannot be compared"
    problem = incomparable(old.schema, new.schema)
    if problem is not None:
        raise IncompatibleStateError(
            f"{what}: {problem}. Look at it in each of the two snapshots instead"
        )
    if old.groups != new.groups:
        problem = f"one snapshot has {old.groups} key groups, the other {new.groups}"
    elif old.schema.key.columns != new.schema.key.columns:
        problem = "the stream was keyed by columns in one snapshot and by a function in the other"
    if problem is not None:
        raise IncompatibleStateError(
            f"{what} here: {problem}, so equal keys are in different ones. Use `turnback diff`, "
            "which brings them together with Spark"
        )


@dataclass(frozen=True)
class _Pair:
    """A state in two snapshots; None where there is none."""

    old: StateRows | None
    new: StateRows | None

    @property
    def there(self) -> StateRows:
        found = self.old or self.new
        assert found is not None
        return found

    def pieces(self) -> list[Span]:
        """Ranges of key groups to be compared one after the other; always the same."""
        from turnback.snapshot.reader import spans

        uid = self.there.schema.uid
        files: list[StatePart | StateFile] = []
        for side in filter(None, (self.old, self.new)):
            files += side.stored.parts
            files += [file for file in side.stored.files if uid in file.operators]
        rows, size = sum(f.rows for f in files), sum(f.length for f in files)
        return spans(self.there.groups, max(-(-rows // PIECE_ROWS), -(-size // PIECE_BYTES)))

    def compared(self, piece: Span) -> tuple[list[EntryChange], int]:
        """What differs in some key groups, in the order of keys, and how many rows do not."""
        old, new = _entries(self.old, piece), _entries(self.new, piece)
        different = [id for id in old.keys() | new.keys() if old.get(id) != new.get(id)]
        changes = [EntryChange(*id, old.get(id), new.get(id)) for id in sorted(different)]
        return changes, len(old.keys() | new.keys()) - len(changes)

    def shown(self, changes: list[EntryChange], *, full: bool) -> Iterator[DiffRow]:
        """Changes in a form that JSON can hold."""
        state = self.there
        before, after = (
            state.shown(state.codec.to_typed(_rows(changes, values, state)), full=full)
            for values in ([c.old for c in changes], [c.new for c in changes])
        )
        for change, was, now in zip(changes, before, after, strict=True):
            yield DiffRow(
                change=change.kind,
                key=was[0],
                sub=was[1] if len(was) > 2 else None,
                before=was[-1],
                after=now[-1],
            )


def _entries(rows: StateRows | None, piece: Span) -> Entries:
    import pyarrow as pa

    from turnback.snapshot.reader import EntryReader

    found: Entries = {}
    if rows is None:
        return found
    numbers = pa.record_batch([pa.array([0], pa.int32())], names=["number"])
    for batch in EntryReader(rows.stored, (piece,))(iter([numbers])):
        keys, subs, values = (column.to_pylist() for column in batch.columns)
        for key, sub, value in zip(keys, subs, values, strict=True):
            found[key, sub or b""] = value
    return found


def _rows(changes: list[EntryChange], values: list[bytes | None], state: StateRows) -> pa.Table:
    """Rows as a state has them; what is not there stands as None."""
    import pyarrow as pa

    from turnback.snapshot.table import ROWS

    single = len(state.columns) == 2
    columns = [
        [0] * len(changes),
        [change.key for change in changes],
        [None if single else change.sub for change in changes],
        [_NIL if value is None else value for value in values],
    ]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, ROWS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ROWS)
