from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Generic, TypeVar

from turnback.core.errors import StateError
from turnback.state.delta import DeltaBuilder
from turnback.state.schema import StateSchema, component, split_sub, state_prefix, wrapped_size
from turnback.state.values import CachedForm, KeyContext, encode_all, misfit
from turnback.types.keys import KeyCodec
from turnback.types.serializer import Serializer

T = TypeVar("T")

_POSITION = Struct(">QI")


class ListState(Generic[T]):
    """A list per key, stored per element; an append reads and rewrites nothing.

    An element's position is the epoch and the number within it, so that positions sort in the
    order in which elements were added, provided epochs only ever rise along a job's history.
    Elements count as they were when they were added, and those handed out are the caller's own.
    """

    __slots__ = (
        "_added",
        "_cleared",
        "_context",
        "_kept",
        "_plain",
        "_prefix",
        "_stored",
        "schema",
    )

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        self.schema = schema
        self._context = context
        self._prefix = state_prefix(*schema.id)
        self._kept = CachedForm(serializer)
        self._plain = self._kept.plain
        self._added: dict[Any, list[Any]] = {}
        self._stored: dict[Any, list[Any]] = {}
        self._cleared: dict[Any, None] = {}

    def get(self) -> list[T]:
        """The elements of the current key in the order they were added; a new list."""
        key = self._context.key
        stored = self._stored.get(key)
        if stored is None:
            stored = self._read()
        kept = stored + self._added.get(key, [])
        show = self._kept.show
        return kept if show is None else list(map(show, kept))

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def add(self, value: T) -> None:
        """Append an element."""
        if value is None:
            raise self._no_null()
        key = self._context.key
        kept = value if type(value) is self._plain else self._keep(value)
        try:
            self._added[key].append(kept)
        except KeyError:
            self._added[key] = [kept]

    def add_all(self, values: Iterable[T]) -> None:
        """Append elements."""
        new = self._keep_all(values)
        if new:
            self._added.setdefault(self._context.key, []).extend(new)

    def update(self, values: Iterable[T] | None) -> None:
        """Replace the list; None or nothing clears it."""
        new = [] if values is None else self._keep_all(values)
        self.clear()
        if new:
            self._added[self._context.key] = new

    def clear(self) -> None:
        """Remove all elements of the current key."""
        key = self._context.key
        self._cleared[key] = None
        self._stored[key] = []
        self._added.pop(key, None)

    def begin(self) -> None:
        """Forget the epoch before."""
        self._added.clear()
        self._stored.clear()
        self._cleared.clear()

    def drain(self, builder: DeltaBuilder) -> None:
        """Write what was cleared, then what was added, in this epoch."""
        cleared = self._context.locate_all(self._cleared)
        groups = [place[0] for place in cleared]
        keys = [place[1] for place in cleared]
        nothing: list[bytes | None] = [None] * len(cleared)
        subs, values = nothing, nothing[:]
        epoch, position = self._context.epoch, _POSITION.pack
        places = self._context.locate_all(self._added)
        for (group, encoded, _, _), added in zip(places, self._added.values(), strict=True):
            size = len(added)
            groups += [group] * size
            keys += [encoded] * size
            subs += [position(epoch, i) for i in range(size)]
        owners = [key for key, added in self._added.items() for _ in added]
        elements = [element for added in self._added.values() for element in added]
        values += encode_all(self.schema, self._kept.encode_all, owners, elements)
        builder.add(self.schema, groups, keys, subs, values)

    def _keep_all(self, values: Iterable[T]) -> list[Any]:
        new = list(values)
        if any(value is None for value in new):
            raise self._no_null()
        plain, keep = self._plain, self._keep
        return [value if type(value) is plain else keep(value) for value in new]

    def _keep(self, value: T) -> Any:
        try:
            return self._kept.keep(value)
        except Exception as e:
            raise misfit(self.schema, self._context.key, value, e) from e

    def _read(self) -> list[Any]:
        context = self._context
        key = context.key
        _, _, suffix, wrapped = context.located.get(key) or context.locate(key)
        load = self._kept.load
        stored = [load(data[wrapped:]) for _, data in context.scan(self._prefix + suffix)]
        self._stored[key] = stored
        return stored

    def _no_null(self) -> StateError:
        return StateError(
            f"list state {self.schema.name!r} of operator {self.schema.uid!r} cannot hold None"
        )


K = TypeVar("K")
V = TypeVar("V")


class _Absent:
    """Stands in the overlay for an entry that is not there."""

    __slots__ = ()


_ABSENT: Any = _Absent()


class _Entries:
    """What is known of one key's map in this epoch, by encoded map key.

    Encoded, so that two map keys are the same entry exactly when they are stored as the same one.

    Attributes:
        known: Entries seen or changed; `_ABSENT` where there is none.
        dirty: Map keys whose entry was changed.
        whole: The store has nothing that is not in `known`.
        cleared: Everything stored is gone.
    """

    __slots__ = ("cleared", "dirty", "known", "whole")

    def __init__(self) -> None:
        self.known: dict[bytes, Any] = {}
        self.dirty: dict[bytes, None] = {}
        self.whole = False
        self.cleared = False


class MapState(Generic[K, V]):
    """A map per key, stored per entry; a put reads and rewrites no other entry.

    Values count as they were when they were put, and those handed out are the caller's own.
    """

    __slots__ = (
        "_context",
        "_decode_sub",
        "_encode_sub",
        "_kept",
        "_maps",
        "_plain",
        "_prefix",
        "schema",
    )

    def __init__(
        self,
        context: KeyContext,
        schema: StateSchema,
        serializer: Serializer,
        sub_codec: Serializer | KeyCodec,
    ) -> None:
        self.schema = schema
        self._context = context
        self._prefix = state_prefix(*schema.id)
        self._kept = CachedForm(serializer)
        self._plain = self._kept.plain
        self._encode_sub = sub_codec.encode
        self._decode_sub = sub_codec.decode
        self._maps: dict[Any, _Entries] = {}

    def get(self, key: K) -> V | None:
        """The value of an entry, None when there is none."""
        kept = self._find(key)
        return None if kept is _ABSENT else self._shown(kept)

    def put(self, key: K, value: V) -> None:
        """Set an entry."""
        self._set(key, value if type(value) is self._plain else self._keep(value))

    def _set(self, key: K, kept: Any) -> None:
        sub = self._encode_sub(key)
        try:
            entries = self._maps[self._context.key]
        except KeyError:
            entries = self._new()
        entries.known[sub] = kept
        entries.dirty[sub] = None

    def put_all(self, values: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set several entries."""
        for key, value in values.items() if isinstance(values, Mapping) else values:
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Remove an entry, if it is there."""
        self._set(key, _ABSENT)

    def contains(self, key: K) -> bool:
        """Whether there is an entry."""
        return self._find(key) is not _ABSENT

    def items(self) -> list[tuple[K, V]]:
        """All entries: stored ones in stored order, then new ones in the order of their puts."""
        decode, shown = self._decode_sub, self._shown
        return [(decode(sub), shown(kept)) for sub, kept in self._all()]

    def keys(self) -> list[K]:
        """The keys of all entries, in the order of `items`."""
        decode = self._decode_sub
        return [decode(sub) for sub, _ in self._all()]

    def values(self) -> list[V]:
        """The values of all entries, in the order of `items`."""
        return [self._shown(kept) for _, kept in self._all()]

    def is_empty(self) -> bool:
        """Whether there is no entry; reads no more than it needs to."""
        entries = self._maps.get(self._context.key) or self._new()
        known = entries.known
        if any(value is not _ABSENT for value in known.values()):
            return False
        return entries.whole or all(sub in known for sub, _ in self._scan())

    def clear(self) -> None:
        """Remove all entries of the current key."""
        entries = self._new()
        entries.whole = entries.cleared = True

    def __getitem__(self, key: K) -> V:
        kept = self._find(key)
        if kept is _ABSENT:
            raise KeyError(key)
        return self._shown(kept)  # type: ignore[no-any-return]

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if self._find(key) is _ABSENT:
            raise KeyError(key)
        self._set(key, _ABSENT)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not _ABSENT

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def begin(self) -> None:
        """Forget the epoch before."""
        self._maps.clear()

    def drain(self, builder: DeltaBuilder) -> None:
        """Write what was cleared and every entry that was changed in this epoch."""
        groups: list[int] = []
        keys: list[bytes] = []
        subs: list[bytes | None] = []
        values: list[bytes | None] = []
        located = self._context.located
        for key, entries in self._maps.items():
            dirty, known = entries.dirty, entries.known
            size = len(dirty) + entries.cleared
            if not size:
                continue
            group, encoded, _, _ = located.get(key) or self._context.locate(key)
            groups += [group] * size
            keys += [encoded] * size
            if entries.cleared:
                subs.append(None)
                values.append(None)
            subs += dirty
            values += [self._encoded(key, known[sub]) for sub in dirty]
        builder.add(self.schema, groups, keys, subs, values)

    def _new(self) -> _Entries:
        entries = self._maps[self._context.key] = _Entries()
        return entries

    def _find(self, key: Any) -> Any:
        sub = self._encode_sub(key)
        try:
            entries = self._maps[self._context.key]
        except KeyError:
            entries = self._new()
        try:
            return entries.known[sub]
        except KeyError:
            return self._read(entries, sub)

    def _read(self, entries: _Entries, sub: bytes) -> Any:
        value = _ABSENT
        if not entries.whole:
            context = self._context
            key = context.key
            _, _, suffix, wrapped = context.located.get(key) or context.locate(key)
            data = context.get(self._prefix + suffix + component(sub))
            if data is not None:
                wrapped += wrapped_size(sub)
                value = self._kept.load(data[wrapped:] if wrapped else data)
        entries.known[sub] = value
        return value

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        """The stored entries of the current key, still encoded."""
        context = self._context
        key = context.key
        _, _, suffix, wrapped = context.located.get(key) or context.locate(key)
        prefix = self._prefix + suffix
        size = len(prefix)
        for where, data in context.scan(prefix):
            yield split_sub(where[size:], data[wrapped:])

    def _all(self) -> list[tuple[bytes, Any]]:
        entries = self._maps.get(self._context.key) or self._new()
        if not entries.whole:
            load, known = self._kept.load, entries.known
            stored = {sub: known[sub] if sub in known else load(data) for sub, data in self._scan()}
            for sub, value in known.items():
                stored.setdefault(sub, value)
            entries.known = stored
            entries.whole = True
        return [(sub, value) for sub, value in entries.known.items() if value is not _ABSENT]

    def _keep(self, value: Any) -> Any:
        if value is None and self._kept.show is None:
            return None
        try:
            return self._kept.keep(value)
        except Exception as e:
            raise misfit(self.schema, self._context.key, value, e) from e

    def _shown(self, kept: Any) -> Any:
        show = self._kept.show
        return kept if show is None else show(kept)

    def _encoded(self, key: Any, kept: Any) -> bytes | None:
        if kept is _ABSENT:
            return None
        try:
            return self._kept.encode(kept)
        except Exception as e:
            raise misfit(self.schema, key, kept, e) from e
