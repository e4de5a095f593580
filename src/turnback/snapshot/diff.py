"""What differs between two snapshots, row by row.

Rows are matched by key and map key, list elements by when they were added. Where a field was added
to the type of values, or a number widened, older values are compared as the newer type.
Values are compared as they are stored: maps in any order, decimals by their value, NaN is equal to
NaN, 0.0 is not -0.0, and pickled objects are equal if their pickles are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.snapshot.evolution import Incompatible, Migration, evolve, ttl_change
from turnback.snapshot.metadata import StateId
from turnback.snapshot.numbering import with_positions
from turnback.snapshot.snapshot import Batches, Snapshot, StateReader, StoredRows, check_state
from turnback.snapshot.table import ROWS, StateTable
from turnback.state.schema import KINDS, LIST_KINDS, SINGLE_KINDS, StateSchema
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import (
    Descriptor,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    type_from_descriptor,
)

ENTRIES = ROWS.remove(0)
_NIL = pa.scalar(b"\xc0", pa.binary())
_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


class Change(StrEnum):
    """What became of a row between two snapshots."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    UNCHANGED = "unchanged"

    @classmethod
    def of(cls, old: bytes | None, new: bytes | None) -> Change:
        """Compare what `entries` gives for a row; None where it is not there."""
        if old is None:
            return cls.ADDED
        if new is None:
            return cls.REMOVED
        return cls.UNCHANGED if old == new else cls.CHANGED


CHANGE_SQL = """CASE WHEN old IS NULL THEN 'added' WHEN new IS NULL THEN 'removed'
    WHEN old = new THEN 'unchanged' ELSE 'changed' END"""
"""`Change.of` for Spark."""


# -- which states


@dataclass(frozen=True)
class StatePair:
    """A state in two snapshots; one of the two has no files if it is in the other only.

    `problem` is why they cannot be compared, None if they can.
    """

    old: StoredRows
    new: StoredRows
    old_groups: int
    new_groups: int
    is_in_both: bool = True
    problem: str | None = None

    @property
    def note(self) -> str:
        """What became of the type and the time to live; nothing if they stayed."""
        if not self.is_in_both or self.problem is not None:
            return ""
        was = self.old.schema
        now = self.new.schema
        notes = [_type_change(was, now), ttl_change(was.ttl, now.ttl)]
        return "; ".join(note for note in notes if note)

    @property
    def readers(self) -> tuple[EntryReader, EntryReader]:
        """What reads the rows of both, so that they can be compared; without spans."""
        return EntryReader(self.old, (), self.schema.value), EntryReader(self.new, ())

    @property
    def schema(self) -> StateSchema:
        """What rows are compared as: when they were last updated does not count."""
        return self.new.schema.without_ttl()


def state_ids(before: Snapshot, after: Snapshot) -> list[StateId]:
    """Uid and name of every state that is in one of two snapshots, or in both."""
    return sorted({*before.state_ids, *after.state_ids})


def state_pair(before: Snapshot, after: Snapshot, uid: str, name: str) -> StatePair:
    """Find a state in two snapshots."""
    id = check_state(f"{before.name} and {after.name}", state_ids(before, after), uid, name)
    old, new = (
        side.rows(side.state(*id)) if id in side.state_ids else None for side in (before, after)
    )
    groups = before.max_parallelism, after.max_parallelism
    if old is not None and new is not None:
        return StatePair(old, new, *groups, problem=incomparable(old.schema, new.schema))
    either = old or new
    assert either is not None
    nothing = StoredRows(either.schema, either.storage)
    return StatePair(old or nothing, new or nothing, *groups, is_in_both=False)


def incomparable(old: StateSchema, new: StateSchema) -> str | None:
    """Why the rows of two states cannot be compared.

    How key groups are computed does not matter, nor do kinds that are stored alike.
    """
    for what, was, now in (
        ("kind of state", _storage_kind(old), _storage_kind(new)),
        ("key type", list(old.key.types), list(new.key.types)),
        ("map key type", old.sub, new.sub),
    ):
        if was != now:
            return f"its {what} was {_type_text(was)} and is now {_type_text(now)}"
    types = type_from_descriptor(old.value), type_from_descriptor(new.value)
    if isinstance(evolve(*types), Incompatible):
        return f"its value type was {types[0]} and is now {types[1]}"
    return None


def _type_change(old: StateSchema, new: StateSchema) -> str:
    outcome = evolve(type_from_descriptor(old.value), type_from_descriptor(new.value))
    return outcome.why if isinstance(outcome, Migration) else ""


def _storage_kind(schema: StateSchema) -> str:
    return "value" if schema.kind in SINGLE_KINDS else schema.kind


def _type_text(what: object) -> str:
    if isinstance(what, list):
        return ", ".join(map(_type_text, what))
    return str(what if what is None or what in KINDS else type_from_descriptor(what))


# -- which rows


@dataclass(frozen=True)
class EntryReader(StateReader):
    """Gives the rows of a state as the bytes of key, sub and value, without the key group.

    They are the same for equal rows of any two snapshots. `value` is the descriptor of a newer
    type, as which values are given.
    """

    value: Descriptor = None

    @property
    def schema(self) -> pa.Schema:
        return ENTRIES

    def read(self, first: int, last: int) -> Iterator[pa.Table]:
        codec = StateTable(self.stored.schema.without_ttl())
        migrated = self._migration()
        reordered = reordering(type_from_descriptor(self.value or self.stored.schema.value))
        for typed in self.stored.typed(first, last):
            # Typed and back again: decimals of one value then have the same bytes.
            entries = codec.to_rows(typed.select(codec.arrow_schema.names)).select(ENTRIES.names)
            for change in filter(None, (migrated, reordered)):
                values = pa.array(map(change, entries["value"].to_pylist()), pa.binary())
                entries = entries.set_column(2, ENTRIES.field(2), values)
            yield entries

    def _migration(self) -> Callable[[bytes], bytes] | None:
        if self.value is None:
            return None
        old, new = map(type_from_descriptor, (self.stored.schema.value, self.value))
        outcome = evolve(old, new)
        if not isinstance(outcome, Migration) or outcome.convert is None:
            return None
        decode = Serializer(old).decode
        convert = outcome.convert
        encode = Serializer(new).encode
        return lambda data: encode(convert(decode(data)))


def reordering(type_: TypeInfo) -> Callable[[bytes], bytes] | None:
    """What puts the maps inside stored values of a type in one order; None if it can have none.

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


class EntryChange(NamedTuple):
    """A row that differs: what it was and what it is, None for not there.

    `place` is that of an element in its list, in the newer snapshot if it is there, else the older.
    """

    key: bytes
    sub: bytes | None
    old: bytes | None
    new: bytes | None
    place: int | None = None

    @property
    def change(self) -> Change:
        return Change.of(self.old, self.new)


def changes(pair: StatePair, first: int, last: int) -> tuple[list[EntryChange], int]:
    """Compare some key groups in this process; both snapshots need the same number of them.

    Returns what differs, in the order of keys, and how many rows do not.
    """
    old, new = (_entries(side, first, last) for side in pair.readers)
    ids = old.keys() | new.keys()
    different = sorted(id for id in ids if old.get(id) != new.get(id))
    single = pair.schema.kind in SINGLE_KINDS
    changed = [
        EntryChange(key, None if single else sub, old.get((key, sub)), new.get((key, sub)))
        for key, sub in different
    ]
    if pair.schema.kind in LIST_KINDS:
        places = _places(old, changed) | _places(new, changed)
        changed = [each._replace(place=places[each.key, each.sub]) for each in changed]
    return changed, len(ids) - len(changed)


def _places(entries: _Entries, changed: Sequence[EntryChange]) -> dict[tuple[bytes, Any], int]:
    """The places of all elements of the lists in which something has changed."""
    lists: dict[bytes, list[bytes]] = {change.key: [] for change in changed}
    for key, sub in entries:
        if key in lists:
            lists[key].append(sub)
    return {
        (key, sub): place for key, subs in lists.items() for place, sub in enumerate(sorted(subs))
    }


_Entries = dict[tuple[bytes, bytes], bytes]
"""Values by key and list position or map key."""


def _entries(reader: EntryReader, first: int, last: int) -> _Entries:
    entries: _Entries = {}
    for table in reader.read(first, last):
        keys, subs, values = (column.to_pylist() for column in table.columns)
        for key, sub, value in zip(keys, subs, values, strict=True):
            entries[key, sub or b""] = value
    return entries


# -- with types


def typed_changes(changes: Sequence[EntryChange], state: StateSchema) -> tuple[pa.Table, pa.Table]:
    """The old and the new rows of changes with typed columns; what is not there is null."""
    keys, subs, old, new = (
        pa.array([change[i] for change in changes], pa.binary()) for i in range(4)
    )
    typed = _typed(state, keys, subs, old), _typed(state, keys, subs, new)
    if state.kind not in LIST_KINDS:
        return typed
    places = [change.place for change in changes]
    return with_positions(typed[0], places), with_positions(typed[1], places)


@dataclass(frozen=True)
class ChangeDecoder:
    """Gives columns of changes their types: key, sub, change, old and new, which may be null.

    Of lists there is also the `place` of the element.
    """

    state: StateSchema

    @property
    def schema(self) -> pa.Schema:
        _, *columns, value = StateTable(self.state).arrow_schema
        change = pa.field("change", pa.string(), nullable=False)
        return pa.schema(
            [*columns, change, pa.field("old", value.type), pa.field("new", value.type)]
        )

    def __call__(self, batches: Batches) -> Batches:
        schema = self.schema
        for batch in batches:
            keys, subs, old, new = (
                batch.column(name).cast(pa.binary()) for name in ("key", "sub", "old", "new")
            )
            was, now = (_typed(self.state, keys, subs, values) for values in (old, new))
            if self.state.kind in LIST_KINDS:
                was = with_positions(was, batch.column("place"))
            columns = [was[name] for name in schema.names[:-3]]
            columns += [batch.column("change").cast(pa.string()), was["value"], now["value"]]
            yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _typed(state: StateSchema, keys: pa.Array, subs: pa.Array, values: pa.Array) -> pa.Table:
    groups = pa.array(np.zeros(len(keys), np.int32))
    columns = [groups, keys, subs, pc.fill_null(values, _NIL)]
    return StateTable(state).to_typed(pa.Table.from_arrays(columns, schema=ROWS))
