"""Keyed state of many entries per key: lists and maps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

from turnback.errors import StateError
from turnback.state.delta import DeltaBuilder
from turnback.state.key_context import MISSING, KeyContext, restore_entry
from turnback.state.schema import StateSchema, component, split_sub, wrapped_size
from turnback.state.values import KeyedState
from turnback.values.keys import KeyCodec
from turnback.values.serializer import Serializer

T = TypeVar("T")

POSITION = Struct(">QI")
"""Where an element of a list is: the epoch in which it was added, and its number in that."""


class ListRows(NamedTuple):
    """The columns of what was changed in lists."""

    groups: list[int]
    keys: list[bytes]
    subs: list[bytes | None]
    values: list[bytes | None]


class ListState(KeyedState, Generic[T]):
    """A list per key, stored per element; an append reads and rewrites nothing.

    An element's position is the epoch and the number within it, so that positions sort in the
    order in which elements were added, provided epochs only ever rise along a job's history.
    Elements count as they were when they were added, and those handed out are the caller's own.
    """

    __slots__ = ("_added", "_cleared", "_stored")

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        super().__init__(context, schema, serializer)
        self._added: dict[Any, list[Any]] = {}
        self._stored: dict[Any, list[Any]] = {}
        self._cleared: dict[Any, None] = {}

    def get(self) -> list[T]:
        """The elements of the current key in the order they were added; a new list."""
        key = self._context.key
        stored = self._stored.get(key)
        if stored is None:
            stored = self._read()
        cached = stored + self._added.get(key, [])
        from_cache = self._format.from_cache
        return cached if from_cache is None else list(map(from_cache, cached))

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def add(self, value: T) -> None:
        if value is None:
            raise self._no_null()
        key = self._context.key
        cached = value if type(value) is self._plain else self._to_cache(value)
        try:
            self._added[key].append(cached)
        except KeyError:
            self._added[key] = [cached]

    def add_all(self, values: Iterable[T]) -> None:
        new = self._all_to_cache(values)
        if new:
            self._added.setdefault(self._context.key, []).extend(new)

    def update(self, values: Iterable[T] | None) -> None:
        new = [] if values is None else self._all_to_cache(values)
        self.clear()
        if new:
            self._added[self._context.key] = new

    def clear(self) -> None:
        key = self._context.key
        self._cleared[key] = None
        self._stored[key] = []
        self._added.pop(key, None)

    def save(self) -> tuple[Any, ...]:
        """What is to be given to `restore` to undo what is done to the current key from now on."""
        key = self._context.key
        added = self._added.get(key, MISSING)
        size = 0 if added is MISSING else len(added)
        return added, size, self._stored.get(key, MISSING), self._cleared.get(key, MISSING)

    def restore(self, saved: tuple[Any, ...]) -> None:
        added, size, stored, cleared = saved
        if added is not MISSING:
            del added[size:]
        key = self._context.key
        for values, value in (
            (self._added, added),
            (self._stored, stored),
            (self._cleared, cleared),
        ):
            restore_entry(values, key, value)

    def begin(self) -> None:
        self._added.clear()
        self._stored.clear()
        self._cleared.clear()

    def drain(self, builder: DeltaBuilder) -> None:
        builder.add(self.schema, *self._rows())

    def _rows(self) -> ListRows:
        """What was cleared, then what was added, in this epoch."""
        cleared = self._context.locate_all(self._cleared)
        groups = [location[0] for location in cleared]
        keys = [location[1] for location in cleared]
        subs: list[bytes | None] = [None] * len(cleared)
        values: list[bytes | None] = [None] * len(cleared)
        epoch = self._context.epoch
        position = POSITION.pack
        locations = self._context.locate_all(self._added)
        for (group, encoded, _, _), added in zip(locations, self._added.values(), strict=True):
            size = len(added)
            groups += [group] * size
            keys += [encoded] * size
            subs += [position(epoch, i) for i in range(size)]
        owners = [key for key, added in self._added.items() for _ in added]
        elements = [element for added in self._added.values() for element in added]
        values += self._all_to_bytes(owners, elements)
        return ListRows(groups, keys, subs, values)

    def _all_to_cache(self, values: Iterable[T]) -> list[Any]:
        new = list(values)
        if any(value is None for value in new):
            raise self._no_null()
        plain = self._plain
        to_cache = self._to_cache
        return [value if type(value) is plain else to_cache(value) for value in new]

    def _read(self) -> list[Any]:
        suffix, wrapped = self._context.current()
        from_bytes = self._format.from_bytes
        entries = self._context.scan(self._prefix + suffix)
        stored = self._stored[self._context.key] = [
            from_bytes(data[wrapped:]) for _, data in entries
        ]
        return stored

    def _no_null(self) -> StateError:
        return StateError(
            f"list state {self.schema.name!r} of operator {self.schema.uid!r} cannot hold None"
        )


K = TypeVar("K")
V = TypeVar("V")


ABSENT: Any = object()
"""Stands for an entry that is not there."""


@dataclass(slots=True, eq=False)
class Entries:
    """What is known of one key's map in this epoch, by encoded map key.

    Encoded, so that two map keys are the same entry exactly when they are stored as the same one.

    Attributes:
        known: Entries seen or changed; `ABSENT` where there is none. Of a whole map, those that are
            there: what comes and goes within an epoch would else be passed over again and again.
        dirty: Map keys whose entry was changed.
        whole: All that is there is in `known`.
        in_order: Whether `known` is in the order of the store.
        cleared: Everything stored is gone.
        of_windows: Map keys by the window they begin with, those of removed entries too; None as
            long as nobody has asked.
        spans: The windows of entries that are there, sorted, if map keys are windows; None as long
            as nobody has asked.
        longest: No span is longer.
    """

    known: dict[bytes, Any] = field(default_factory=dict)
    dirty: dict[bytes, None] = field(default_factory=dict)
    whole: bool = False
    in_order: bool = False
    cleared: bool = False
    of_windows: dict[tuple[int, int], dict[bytes, None]] | None = None
    spans: list[tuple[int, int]] | None = None
    longest: int = 0


def stored_order(entry: tuple[bytes, Any]) -> bytes:
    """What entries of a map are sorted by, which begin with their encoded keys."""
    return component(entry[0])


class MapState(KeyedState, Generic[K, V]):
    """A map per key, stored per entry; a put reads and rewrites no other entry.

    Values count as they were when they were put, and those handed out are the caller's own.
    """

    __slots__ = ("_changes", "_decode_sub", "_encode_sub", "_maps")

    def __init__(
        self,
        context: KeyContext,
        schema: StateSchema,
        serializer: Serializer,
        sub_codec: Serializer | KeyCodec,
    ) -> None:
        super().__init__(context, schema, serializer)
        self._encode_sub = sub_codec.encode
        self._decode_sub = sub_codec.decode
        self._maps: dict[Any, Entries] = {}
        self._changes: list[tuple[Entries, bytes, Any, bool]] | None = None
        """What entries were before they were changed, as far as that may have to be undone."""

    def get(self, key: K) -> V | None:
        """The value of an entry, None when there is none."""
        cached = self._find(key)
        return None if cached is ABSENT else self._value(cached)

    def put(self, key: K, value: V) -> None:
        self._set(key, value if type(value) is self._plain else self._cached(value))

    def _set(self, key: K, cached: Any) -> None:
        sub = self._encode_sub(key)
        entries = self._maps.get(self._context.key) or self._new()
        if self._changes is not None:
            before = entries.known.get(sub, MISSING)
            self._changes.append((entries, sub, before, sub in entries.dirty))
        known = entries.known
        entries.dirty[sub] = None
        if entries.whole and cached is ABSENT:
            known.pop(sub, None)
            return
        if entries.in_order and sub not in known:
            entries.in_order = False
        known[sub] = cached

    def put_all(self, values: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        for key, value in values.items() if isinstance(values, Mapping) else values:
            self.put(key, value)

    def remove(self, key: K) -> None:
        self._set(key, ABSENT)

    def contains(self, key: K) -> bool:
        return self._find(key) is not ABSENT

    def items(self) -> list[tuple[K, V]]:
        """All entries, in the order of their encoded keys wherever epochs end."""
        decode = self._decode_sub
        value = self._value
        return [(decode(sub), value(cached)) for sub, cached in self._all()]

    def keys(self) -> list[K]:
        """The keys of all entries, in the order of `items`."""
        decode = self._decode_sub
        return [decode(sub) for sub, _ in self._all()]

    def values(self) -> list[V]:
        """The values of all entries, in the order of `items`."""
        return [self._value(cached) for _, cached in self._all()]

    def is_empty(self) -> bool:
        """Whether there is no entry; reads no more than it needs to."""
        entries = self._maps.get(self._context.key) or self._new()
        known = entries.known
        if any(value is not ABSENT for value in known.values()):
            return False
        return entries.whole or all(sub in known for sub, _ in self._scan())

    def clear(self) -> None:
        entries = self._new()
        entries.whole = entries.cleared = True

    def __getitem__(self, key: K) -> V:
        cached = self._find(key)
        if cached is ABSENT:
            raise KeyError(key)
        return self._value(cached)  # type: ignore[no-any-return]

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if self._find(key) is ABSENT:
            raise KeyError(key)
        self.remove(key)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not ABSENT

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def save(self) -> tuple[Any, bool]:
        """What is to be given to `restore` to undo what is done to the current key from now on."""
        self._changes = []
        entries = self._maps.get(self._context.key, MISSING)
        return entries, entries is not MISSING and entries.whole

    def restore(self, saved: tuple[Any, bool]) -> None:
        entries, was_whole = saved
        for changed, sub, before, was_dirty in reversed(self._changes or ()):
            restore_entry(changed.known, sub, before)
            if not was_dirty:
                changed.dirty.pop(sub, None)
        if entries is not MISSING:
            if entries.whole and not was_whole:  # what is not known now may be stored
                entries.known = dict.fromkeys(entries.dirty, ABSENT) | entries.known
            entries.whole = was_whole
            entries.in_order = False
        restore_entry(self._maps, self._context.key, entries)

    def begin(self) -> None:
        self._maps.clear()
        self._changes = None

    def drain(self, builder: DeltaBuilder) -> None:
        """Write what was cleared and every entry that was changed in this epoch."""
        groups: list[int] = []
        keys: list[bytes] = []
        subs: list[bytes | None] = []
        values: list[bytes | None] = []
        for key, entries in self._maps.items():
            dirty = entries.dirty
            known = entries.known
            size = len(dirty) + entries.cleared
            if not size:
                continue
            group, encoded, *_ = self._context.locations.get(key) or self._context.locate(key)
            groups += [group] * size
            keys += [encoded] * size
            if entries.cleared:
                subs.append(None)
                values.append(None)
            subs += dirty
            values += [self._encoded(key, known.get(sub, ABSENT)) for sub in dirty]
        builder.add(self.schema, groups, keys, subs, values)

    def _entries(self) -> Entries:
        return self._maps.get(self._context.key) or self._new()

    def _new(self) -> Entries:
        entries = self._maps[self._context.key] = Entries()
        return entries

    def _find(self, key: Any) -> Any:
        sub = self._encode_sub(key)
        entries = self._maps.get(self._context.key) or self._new()
        try:
            return entries.known[sub]
        except KeyError:
            return self._read(entries, sub)

    def _read(self, entries: Entries, sub: bytes) -> Any:
        if entries.whole:
            return ABSENT
        value = ABSENT
        suffix, wrapped = self._context.current()
        data = self._context.get(self._prefix + suffix + component(sub))
        if data is not None:
            wrapped += wrapped_size(sub)
            value = self._format.from_bytes(data[wrapped:] if wrapped else data)
        entries.known[sub] = value
        return value

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        """The stored entries of the current key, still encoded."""
        suffix, wrapped = self._context.current()
        prefix = self._prefix + suffix
        size = len(prefix)
        for where, data in self._context.scan(prefix):
            yield split_sub(where[size:], data[wrapped:])

    def _all(self) -> list[tuple[bytes, Any]]:
        entries = self._maps.get(self._context.key) or self._new()
        if not entries.whole:
            from_bytes = self._format.from_bytes
            known = entries.known
            stored = {sub: from_bytes(data) for sub, data in self._scan() if sub not in known}
            self._complete(entries, stored)
        if not entries.in_order:
            # As if all had been stored before: else it would matter where epochs end.
            entries.known = dict(sorted(entries.known.items(), key=stored_order))
            entries.in_order = True
        return list(entries.known.items())

    def _complete(self, entries: Entries, stored: dict[bytes, Any]) -> None:
        """Take what the store has besides what is known; then all of the map is known."""
        every = stored | entries.known
        entries.known = {sub: value for sub, value in every.items() if value is not ABSENT}
        entries.whole = True
        entries.in_order = False

    def _cached(self, value: Any) -> Any:
        if value is None and self._format.from_cache is None:
            return None
        return self._to_cache(value)

    def _value(self, cached: Any) -> Any:
        from_cache = self._format.from_cache
        return cached if from_cache is None else from_cache(cached)

    def _encoded(self, key: Any, cached: Any) -> bytes | None:
        if cached is ABSENT:
            return None
        try:
            return self._format.to_bytes(cached)
        except Exception as e:
            raise self._mismatch(key, cached, e) from e


class WindowedState(MapState[Any, Any]):
    """A map whose keys begin with start and end of a window."""

    __slots__ = ()

    def of_window(self, window: tuple[int, int]) -> list[Any]:
        """The map keys of a window. The first call in an epoch reads all entries of the key."""
        entries = self._entries()
        if not entries.whole or entries.of_windows is None:
            entries.of_windows = {}
            for sub, _ in self._all():
                self._note(entries, sub)
        found = entries.of_windows.get((window[0], window[1]), ())
        return [
            self._decode_sub(sub) for sub in found if entries.known.get(sub, ABSENT) is not ABSENT
        ]

    def touching(self, window: tuple[int, int]) -> list[tuple[int, int]]:
        """The map keys that overlap or touch a window, of a map whose keys are windows alone.

        The first call in an epoch reads all entries of the key; others look at few of them.
        """
        entries = self._entries()
        if entries.spans is None:
            keys = [self._decode_sub(sub) for sub, _ in self._all()]
            entries.spans = sorted((start, end) for start, end in keys)
            entries.longest = max((end - start for start, end in entries.spans), default=0)
        start, end = window
        found = []
        for i in range(bisect_left(entries.spans, (end + 1,)) - 1, -1, -1):
            span = entries.spans[i]
            if span[0] + entries.longest < start:
                break
            if span[1] >= start:
                found.append(span)
        return found[::-1]

    def restore(self, saved: tuple[Any, bool]) -> None:
        super().restore(saved)
        for entries in self._maps.values():
            entries.spans = None

    def _set(self, key: Any, cached: Any) -> None:
        super()._set(key, cached)
        entries = self._entries()
        if entries.of_windows is not None:
            self._note(entries, self._encode_sub(key))
        if entries.spans is not None:
            self._span(entries, (key[0], key[1]), is_there=cached is not ABSENT)

    def _span(self, entries: Entries, window: tuple[int, int], *, is_there: bool) -> None:
        spans = entries.spans
        assert spans is not None
        at = bisect_left(spans, window)
        is_known = at < len(spans) and spans[at] == window
        if is_there and not is_known:
            spans.insert(at, window)
            entries.longest = max(entries.longest, window[1] - window[0])
        elif is_known and not is_there:
            del spans[at]

    def _note(self, entries: Entries, sub: bytes) -> None:
        start, end, *_ = self._decode_sub(sub)
        assert entries.of_windows is not None
        entries.of_windows.setdefault((start, end), {})[sub] = None
