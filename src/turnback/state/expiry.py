"""Keyed state with a time to live.

The clock stands still during an epoch. So whatever is written in it has the same time, and what an
entry is worth is decided once, when it is read from the store for the first time: if it has expired
it is removed, and if a read is an update it counts as changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.state.key_context import MISSING, KeyContext, restore_entry
from turnback.state.list_and_map import ABSENT, Entries, ListRows, ListState, MapState, stored_order
from turnback.state.schema import (
    HASHED,
    StateSchema,
    StateTtl,
    component,
    state_prefix,
    wrapped_size,
)
from turnback.state.stores import LocalStore
from turnback.state.values import (
    AggregatingState,
    KeyedState,
    MutableValueState,
    ReducingState,
    SingleState,
)
from turnback.values.serializer import Serializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class _Timed(KeyedState):
    """A state whose values are stored with the time of their last update."""

    __slots__ = ()

    @property
    def _ttl(self) -> StateTtl:
        assert self.schema.ttl is not None
        return self.schema.ttl

    def _has_expired(self, data: bytes) -> bool:
        return update_time(data) <= self._context.now_ms - self._ttl.ms

    def _from_stored(self, data: bytes) -> Any:
        return self._format.from_bytes(data[TIME_BYTES:])

    def _all_to_bytes(self, keys: Sequence[Any], values: Sequence[Any]) -> list[bytes | None]:
        now = encode_time(self._context.now_ms)
        encoded = super()._all_to_bytes(keys, values)
        return [None if data is None else now + data for data in encoded]


class _ExpiringSingle(_Timed, SingleState):
    """One value per key that expires."""

    __slots__ = ()

    def _read(self) -> Any:
        suffix, wrapped = self._context.current()
        data = self._context.get(self._prefix + suffix)
        return self._seen(self._context.key, None if data is None else data[wrapped:])

    def read_many(self, keys: Sequence[Any]) -> list[Any]:
        cache = self._cache
        missing = [key for key in keys if key not in cache]
        locations = self._context.locate_all(missing)
        stored = self._context.get_many([self._prefix + where[2] for where in locations])
        first = {
            key: self._seen(key, None if data is None else data[where[3] :])
            for key, where, data in zip(missing, locations, stored, strict=True)
        }
        values = [first[key] if key in first else cache[key] for key in keys]
        if self._from_cache is None:
            return values
        return [None if value is None else self._from_cache(value) for value in values]

    def _seen(self, key: Any, data: bytes | None) -> Any:
        """What the first read of a stored value gives; later ones find it in the cache."""
        value = None if data is None else self._from_stored(data)
        self._cache[key] = value
        if data is None:
            return None
        if self._has_expired(data):
            self._cache[key] = self._dirty[key] = None
            return value if self._ttl.shows_expired else None
        if self._ttl.on_read:
            self._dirty[key] = value
        return value


class ExpiringValueState(_ExpiringSingle, MutableValueState[T]):
    """One value per key, which expires some time after its last update."""

    __slots__ = ()


class ExpiringReducingState(_ExpiringSingle, ReducingState[T]):
    """A reducing state whose value expires; what is added later begins a new one."""

    __slots__ = ()


class ExpiringAggregatingState(_ExpiringSingle, AggregatingState[T, R]):
    """An aggregating state whose accumulator expires; what is added later begins a new one."""

    __slots__ = ()


class ExpiringListState(_Timed, ListState[T]):
    """A list per key, each element of which expires by itself."""

    __slots__ = ("_rewritten",)

    def __init__(self, context: KeyContext, schema: Any, serializer: Serializer) -> None:
        super().__init__(context, schema, serializer)
        self._rewritten: dict[Any, dict[bytes, Any]] = {}

    def clear(self) -> None:
        super().clear()
        self._rewritten.pop(self._context.key, None)

    def save(self) -> tuple[Any, ...]:
        return *super().save(), self._rewritten.get(self._context.key, MISSING)

    def restore(self, saved: tuple[Any, ...]) -> None:
        *of_list, rewritten = saved
        super().restore(tuple(of_list))
        restore_entry(self._rewritten, self._context.key, rewritten)

    def begin(self) -> None:
        super().begin()
        self._rewritten.clear()

    def _read(self) -> list[Any]:
        suffix, wrapped = self._context.current()
        prefix = self._prefix + suffix
        position = len(prefix) + 1
        alive: list[Any] = []
        shown: list[Any] = []
        rewritten: dict[bytes, Any] = {}
        for where, stored in self._context.scan(prefix):
            data = stored[wrapped:]
            element = self._from_stored(data)
            has_expired = self._has_expired(data)
            if has_expired or self._ttl.on_read:
                rewritten[where[position:]] = None if has_expired else element
            if not has_expired:
                alive.append(element)
            if not has_expired or self._ttl.shows_expired:
                shown.append(element)
        key = self._context.key
        self._stored[key] = alive
        if rewritten:
            self._rewritten[key] = rewritten
        return shown

    def _rows(self) -> ListRows:
        """What `ListState` writes, and stored elements that were removed, or read."""
        rows = super()._rows()
        locations = self._context.locate_all(self._rewritten)
        owners: list[Any] = []
        elements: list[Any] = []
        for (key, some), where in zip(self._rewritten.items(), locations, strict=True):
            rows.groups.extend([where[0]] * len(some))
            rows.keys.extend([where[1]] * len(some))
            rows.subs.extend(some)
            owners += [key] * len(some)
            elements += some.values()
        rows.values.extend(self._all_to_bytes(owners, elements))
        return rows


class ExpiringMapState(_Timed, MapState[K, V]):
    """A map per key, each entry of which expires by itself."""

    __slots__ = ()

    def is_empty(self) -> bool:
        """Whether there is no entry; reads no more than it needs to."""
        entries = self._entries()
        known = entries.known
        if any(value is not ABSENT for value in known.values()):
            return False
        return entries.whole or not any(
            sub not in known and (self._ttl.shows_expired or not self._has_expired(data))
            for sub, data in self._scan()
        )

    def _read(self, entries: Entries, sub: bytes) -> Any:
        if entries.whole:
            return ABSENT
        suffix, wrapped = self._context.current()
        data = self._context.get(self._prefix + suffix + component(sub))
        if data is None:
            entries.known[sub] = ABSENT
            return ABSENT
        return self._seen(entries, sub, data[wrapped + wrapped_size(sub) :])

    def _all(self) -> list[tuple[bytes, Any]]:
        entries = self._entries()
        if entries.whole:
            return super()._all()
        known = dict(entries.known)
        found = {
            sub: self._seen(entries, sub, data) for sub, data in self._scan() if sub not in known
        }
        self._complete(entries, {})
        shown = (found | known).items()
        return sorted((each for each in shown if each[1] is not ABSENT), key=stored_order)

    def _seen(self, entries: Entries, sub: bytes, data: bytes) -> Any:
        """What the first read of a stored entry gives; later ones find it among the known."""
        value = entries.known[sub] = self._from_stored(data)
        if self._has_expired(data):
            entries.known[sub], entries.dirty[sub] = ABSENT, None
            return value if self._ttl.shows_expired else ABSENT
        if self._ttl.on_read:
            entries.dirty[sub] = None
        return value

    def _encoded(self, key: Any, cached: Any) -> bytes | None:
        data = super()._encoded(key, cached)
        return None if data is None else encode_time(self._context.now_ms) + data


TIME_BYTES = 8
Limits = Mapping[tuple[str, str], int]
"""By uid and name of a state: values last updated then, or earlier, have expired."""

_TIME = Struct(">q")
_END = 1 << 31  # no value is longer, and Arrow fails for many values if none is given
_SIZE = Struct(">I")
_FIRST_PART = 10  # of a store key, after state and key group
_HASH_BYTES = 33

encode_time = _TIME.pack
"""The time of an update as it stands before a value."""


def update_time(data: bytes, at: int = 0) -> int:
    """The time of its last update that stands before a value."""
    time: int = _TIME.unpack_from(data, at)[0]
    return time


def merge_limits(schemas: Iterable[StateSchema], now_ms: int) -> dict[tuple[str, str], int]:
    """What a merge of state files at this time may leave out."""
    return {s.id: now_ms - s.ttl.ms for s in schemas if s.ttl is not None and s.ttl.merged}


def export_limits(schemas: Iterable[StateSchema], now_ms: int) -> dict[tuple[str, str], int]:
    """What a savepoint of this time leaves out."""
    return {s.id: now_ms - s.ttl.ms for s in schemas if s.ttl is not None and not s.ttl.saved}


# -- columns


def update_times(values: Any) -> npt.NDArray[np.int64]:
    """The times before a column of values; anything for null."""
    head = pc.binary_slice(values, 0, TIME_BYTES)
    if isinstance(head, pa.ChunkedArray):
        head = head.combine_chunks()
    fixed = head.cast(pa.binary(TIME_BYTES))
    times = np.frombuffer(fixed.buffers()[1] or b"", ">i8")
    return times[fixed.offset : fixed.offset + len(fixed)].astype(np.int64)


def without_times(values: Any) -> Any:
    """A column of values, without the times before them."""
    return pc.binary_slice(values, TIME_BYTES, _END)


def with_times(values: Any, times: npt.NDArray[np.int64]) -> Any:
    """A column of values, with a time before each."""
    data = pa.py_buffer(times.astype(">i8").tobytes())
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(TIME_BYTES), len(times), [None, data])
    return pc.binary_join_element_wise(fixed.cast(values.type), values, pa.scalar(b"", values.type))


class Expired:
    """Finds the rows of state files that have expired."""

    def __init__(self, schemas: Iterable[StateSchema], limits: Limits) -> None:
        never = np.iinfo(np.int64).min
        self._limits = np.array(
            [never if s.ttl is None else limits.get(s.id, never) for s in schemas], np.int64
        )
        self._some = self._limits > never
        self.is_possible = bool(self._some.any())

    def without(self, rows: pa.Table, *, final: bool) -> pa.Table:
        """The rows without those that have expired; unless it is `final`, tombstones of them.

        A tombstone is needed as long as older files may have a value of the same entry.
        """
        if not self.is_possible or not len(rows):
            return rows
        states = rows["state"].to_numpy()
        values = rows["value"]
        mask = self._some[states]
        mask &= values.is_valid().to_numpy()
        index = np.flatnonzero(mask)
        if len(index):
            times = update_times(values.take(pa.array(index)))
            mask[index] = times <= self._limits[states[index]]
        if not mask.any():
            return rows
        if final:
            return rows.filter(pa.array(~mask))
        column = pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)
        return rows.set_column(rows.schema.get_field_index("value"), rows.field("value"), column)


# -- local stores


def expired_keys(
    store: LocalStore, schemas: Iterable[StateSchema], now_ms: int, start: bytes, most: int
) -> tuple[list[bytes], bytes]:
    """The store keys of entries that have expired, and where the next call starts.

    It looks at the next `most` entries of states with a time to live.
    """
    limits = {
        state_prefix(*s.id): now_ms - s.ttl.ms for s in schemas if s.ttl is not None and s.ttl.swept
    }
    keys: list[bytes] = []
    for prefix in sorted(limits):
        if prefix < start[: len(prefix)]:
            continue
        for where, data in store.scan(prefix, max(start, prefix)):
            if not most:
                return keys, where
            most -= 1
            if update_time(data, _wrapped_before(where, data)) <= limits[prefix]:
                keys.append(where)
    return keys, b""


def _wrapped_before(where: bytes, data: bytes) -> int:
    """How many bytes of an entry of a store stand before the time; see `schema.wrap`."""
    at = 0
    part = _FIRST_PART
    while part < len(where):
        if where[part] == HASHED:
            at += _SIZE.size + _SIZE.unpack_from(data, at)[0]
            part += _HASH_BYTES
        else:
            part += 1 + where[part]
    return at
