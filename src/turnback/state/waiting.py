"""Keyed state in the order of time: timers, and whatever else has to wait for its time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from turnback.state.delta import DeltaBuilder
from turnback.state.schema import (
    GROUPS,
    HASHED,
    StateSchema,
    component,
    encode_time,
    read_time,
    split_sub,
    time_component,
)
from turnback.state.values import KeyContext, KeyedState
from turnback.types.serializer import Serializer

_PREFIX = 8
_TIME = _PREFIX + 8
_KEY = _TIME + 2

Entry = tuple[int, Any, Any]
"""A time, a key, and the value that the key has at that time."""


class WaitingState(KeyedState):
    """At most one value per key and time; the earliest of all keys are found without a search.

    What waits costs nothing: only entries that are due are read.

    Attributes:
        due: Times and encoded keys of what can be taken, the earliest first.
    """

    __slots__ = ("_known", "_limit", "due")

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        super().__init__(context, schema, serializer)
        self._known: dict[tuple[Any, int], Any] = {}
        self.due: list[tuple[int, bytes]] = []
        self._limit: int | None = None

    def get(self, time: int) -> Any:
        """The value of the current key at a time, None when there is none."""
        key = self._context.key
        try:
            return self._known[key, time]
        except KeyError:
            return self._read(key, time)

    def put(self, time: int, value: Any) -> None:
        """Set the value of the current key at a time."""
        key = self._context.key
        self._known[key, time] = value
        if self._limit is not None and time <= self._limit:
            heappush(self.due, (time, self._location(key)[1]))

    def remove(self, time: int) -> None:
        """Remove what the current key has at a time; nothing happens if that is nothing."""
        self._known[self._context.key, time] = None

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

    def earliest(self) -> int | None:
        """The time of the first entry, None when there is none."""
        times = [time for (_, time), value in self._known.items() if value is not None]
        for time, encoded in self._stored():
            if (self._context.key_of(encoded), time) not in self._known:
                times.append(time)
                break
        return min(times, default=None)

    def begin(self) -> None:
        self._known.clear()
        self.due, self._limit = [], None

    def drain(self, builder: DeltaBuilder) -> None:
        """Write every entry that was set or removed in this epoch."""
        locations = [self._location(key) for key, _ in self._known]
        values: list[bytes | None] = [
            None if value is None else self._format.to_bytes(self._to_cache(value))
            for value in self._known.values()
        ]
        builder.add(
            self.schema,
            [location[0] for location in locations],
            [location[1] for location in locations],
            [encode_time(time) for _, time in self._known],
            values,
        )

    def _location(self, key: Any) -> Any:
        return self._context.locations.get(key) or self._context.locate(key)

    def _read(self, key: Any, time: int) -> Any:
        group, encoded, _, wrapped = self._location(key)
        where = self._prefix + time_component(time) + GROUPS[group] + component(encoded)
        data = self._context.get(where)
        value = None if data is None else self._format.from_bytes(data[wrapped:])
        if value is not None and self._format.from_cache is not None:
            value = self._format.from_cache(value)
        return value

    def _stored(self) -> Iterator[tuple[int, bytes]]:
        """Time and encoded key of everything in the store, the earliest first."""
        for where, data in self._context.scan(self._prefix):
            rest = where[_KEY:]
            encoded = split_sub(rest, data)[0] if rest[0] == HASHED else rest[1:]
            yield read_time(where[_PREFIX:_TIME]), encoded

    def _stored_due(self, limit: int) -> Iterator[tuple[int, bytes]]:
        for time, encoded in self._stored():
            if time > limit:
                return
            yield time, encoded
