from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Generic, TypeVar

from turnback.core import Serializer
from turnback.core.errors import StateError
from turnback.state.context import KeyContext
from turnback.state.delta import DeltaBuilder
from turnback.state.encode import encode_all
from turnback.state.layout import state_prefix
from turnback.state.schema import StateSchema

T = TypeVar("T")

_POSITION = Struct(">QI")


class ListState(Generic[T]):
    """A list per key, stored per element; an append reads and rewrites nothing.

    An element's position is the epoch and the number within it, so that positions sort in the
    order in which elements were added, provided epochs only ever rise along a job's history.
    """

    __slots__ = (
        "_added",
        "_cleared",
        "_context",
        "_decode",
        "_encode_all",
        "_prefix",
        "_stored",
        "schema",
    )

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        self.schema = schema
        self._context = context
        self._prefix = state_prefix(*schema.id)
        self._encode_all = serializer.encode_all
        self._decode = serializer.decode
        self._added: dict[Any, list[T]] = {}
        self._stored: dict[Any, list[T]] = {}
        self._cleared: dict[Any, None] = {}

    def get(self) -> list[T]:
        """The elements of the current key in the order they were added; a new list."""
        key = self._context.key
        stored = self._stored.get(key)
        if stored is None:
            stored = self._read()
        return stored + self._added.get(key, [])

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def add(self, value: T) -> None:
        """Append an element."""
        if value is None:
            raise self._no_null()
        key = self._context.key
        try:
            self._added[key].append(value)
        except KeyError:
            self._added[key] = [value]

    def add_all(self, values: Iterable[T]) -> None:
        """Append elements."""
        new = list(values)
        if None in new:
            raise self._no_null()
        if new:
            self._added.setdefault(self._context.key, []).extend(new)

    def update(self, values: Iterable[T] | None) -> None:
        """Replace the list; None or nothing clears it."""
        new = [] if values is None else list(values)
        if None in new:
            raise self._no_null()
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
        values += encode_all(self.schema, self._encode_all, owners, elements)
        builder.add(self.schema, groups, keys, subs, values)

    def _read(self) -> list[T]:
        context = self._context
        key = context.key
        _, _, suffix, wrapped = context.located.get(key) or context.locate(key)
        decode = self._decode
        stored = [decode(data[wrapped:]) for _, data in context.scan(self._prefix + suffix)]
        self._stored[key] = stored
        return stored

    def _no_null(self) -> StateError:
        return StateError(
            f"list state {self.schema.name!r} of operator {self.schema.uid!r} cannot hold None"
        )
