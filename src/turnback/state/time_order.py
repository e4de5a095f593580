"""Keyed state in the order of time: timers, and whatever else has to wait for its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from turnback.state.delta import DeltaBuilder
from turnback.state.key_context import MISSING, KeyContext, restore_entry
from turnback.state.schema import (
    GROUPS,
    StateSchema,
    component,
    encode_time,
    read_time,
    split_sub,
    time_component,
)
from turnback.state.values import KeyedState
from turnback.values.serializer import Serializer

_PREFIX = 8
_TIME = _PREFIX + 8
_KEY = _TIME + 2

Entry = tuple[int, Any, Any]
"""A time, a key, and the value that the key has at that time."""


class TimeOrderedState(KeyedState):
    """At most one value per key and time; the earliest of all keys are found without a search.

    What waits costs nothing: only entries that are due are read.

    Attributes:
        due: Times and encoded keys of what can be taken, the earliest first.
    """

    __slots__ = ("_changes", "_known", "_limit", "due")

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        super().__init__(context, schema, serializer)
        self._format.all_to_bytes = serializer.encode_all  # values are known as they were given
        self._known: dict[tuple[Any, int], Any] = {}
        self.due: list[tuple[int, bytes]] = []
        self._limit: int | None = None
        self._changes: list[tuple[tuple[Any, int], Any]] | None = None
        """What was known before it was changed, as far as that may have to be undone."""

    def get(self, time: int) -> Any:
        """The value of the current key at a time, None when there is none."""
        key = self._context.key
        try:
            return self._known[key, time]
        except KeyError:
            return self._read(key, time)

    def put(self, time: int, value: Any) -> None:
        key = self._context.key
        self._change((key, time), value)
        if self._limit is not None and time <= self._limit:
            heappush(self.due, (time, self._location(key)[1]))

    def add(self, time: int, element: Any, *, aside: bool = False) -> None:
        """Add an element to the list of the current key at a time, if it is not in it.

        A list put `aside` is not taken before the next `open`.
        """
        known = self._known.get((self._context.key, time))
        if known is not None and element in known:
            return
        held = self.get(time) or []
        put = self.put_aside if aside else self.put
        put(time, held if element in held else [*held, element])

    def put_aside(self, time: int, value: Any) -> None:
        """Set the value of the current key at a time, not to be taken before the next `open`."""
        self._change((self._context.key, time), value)

    def remove(self, time: int) -> None:
        """Remove what the current key has at a time; nothing happens if that is nothing."""
        self._change((self._context.key, time), None)

    def save(self) -> None:
        """Begin to note changes, for `restore`."""
        self._changes = []

    def restore(self, saved: None) -> None:
        """Undo what was done since `save`; what is due is looked up again when it is taken."""
        for slot, before in reversed(self._changes or ()):
            restore_entry(self._known, slot, before)

    def _change(self, slot: tuple[Any, int], value: Any) -> None:
        if self._changes is not None:
            self._changes.append((slot, self._known.get(slot, MISSING)))
        self._known[slot] = value

    def open(self, limit: int) -> None:
        """Make ready to `take` entries up to a time."""
        self._limit = limit
        added = [
            (time, self._location(key)[1])
            for (key, time), value in self._known.items()
            if value is not None and time <= limit
        ]
        # A sorted list is a heap.
        self.due = sorted({*added, *self._stored_due(limit)})

    def take(self, upto: int) -> Entry | None:
        """Remove and give the earliest entry up to a time, and make its key the current one.

        What was put since `open`, and is due, is given as well; what was removed is not.
        """
        while self.due and self.due[0][0] <= upto:
            time, encoded = heappop(self.due)
            key = self._context.key = self._context.key_of(encoded)
            value = self.get(time)
            if value is not None:
                self._known[key, time] = None
                return time, key, value
        return None

    def last_due(self, before: int) -> dict[Any, int]:
        """Of every key with something to `take` before a time, the last time it has that."""
        last: dict[Any, int] = {}
        current = self._context.key
        for time, encoded in sorted(self.due):
            key = self._context.key = self._context.key_of(encoded)
            if time < before and self.get(time) is not None:
                last[key] = time
        self._context.key = current
        return last

    def stored_until(self, limit: int) -> list[Entry]:
        """What the store has up to a time, the earliest first; changes of this epoch aside."""
        entries = []
        key_of = self._context.key_of
        for time, encoded, data in self._stored():
            if time > limit:
                break
            entries.append((time, key_of(encoded), self._from_bytes(data)))
        return entries

    def has_any(self, time: int) -> bool:
        """Whether the store has a value of any key at a time."""
        return any(True for _ in self._context.scan(self._prefix + time_component(time)))

    def read_many(self, slots: Sequence[tuple[Any, int]]) -> list[Any]:
        """The values of some keys and times in their order, None where there is none."""
        known = self._known
        missing = [slot for slot in slots if slot not in known]
        found: dict[tuple[Any, int], Any] = {}
        if missing:
            locations = self._context.locate_all([key for key, _ in missing])
            stored = self._context.get_many(
                [
                    self._prefix + time_component(time) + location[2]
                    for (_, time), location in zip(missing, locations, strict=True)
                ]
            )
            for slot, location, data in zip(missing, locations, stored, strict=True):
                found[slot] = None if data is None else self._from_bytes(data[location[3] :])
        return [known[slot] if slot in known else found[slot] for slot in slots]

    def write_many(self, slots: Sequence[tuple[Any, int]], values: Sequence[Any]) -> None:
        """Set the values of some keys and times; None removes. None of them can be taken then."""
        self._known.update(zip(slots, values, strict=True))

    def earliest(self) -> int | None:
        """The time of the first entry, None when there is none."""
        times = [time for (_, time), value in self._known.items() if value is not None]
        for time, encoded, _ in self._stored():
            if (self._context.key_of(encoded), time) not in self._known:
                times.append(time)
                break
        return min(times, default=None)

    def begin(self) -> None:
        self._known.clear()
        self.due = []
        self._limit = None
        self._changes = None

    def drain(self, builder: DeltaBuilder) -> None:
        """Write every entry that was set or removed in this epoch."""
        keys = [key for key, _ in self._known]
        locations = self._context.locate_all(keys)
        builder.add(
            self.schema,
            [location[0] for location in locations],
            [location[1] for location in locations],
            [encode_time(time) for _, time in self._known],
            self._all_to_bytes(keys, list(self._known.values())),
        )

    def _location(self, key: Any) -> Any:
        return self._context.locations.get(key) or self._context.locate(key)

    def _read(self, key: Any, time: int) -> Any:
        group, encoded, _, wrapped = self._location(key)
        where = self._prefix + time_component(time) + GROUPS[group] + component(encoded)
        data = self._context.get(where)
        return None if data is None else self._from_bytes(data[wrapped:])

    def _from_bytes(self, data: bytes) -> Any:
        value = self._format.from_bytes(data)
        from_cache = self._format.from_cache
        return value if from_cache is None else from_cache(value)

    def _stored(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Time, encoded key and encoded value of all in the store, the earliest first."""
        for where, data in self._context.scan(self._prefix):
            encoded, value = split_sub(where[_KEY:], data)
            yield read_time(where[_PREFIX:_TIME]), encoded, value

    def _stored_due(self, limit: int) -> Iterator[tuple[int, bytes]]:
        for time, encoded, _ in self._stored():
            if time > limit:
                return
            yield time, encoded
