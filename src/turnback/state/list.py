from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Generic, TypeVar

from turnback.core import Serializer
from turnback.core.errors import StateError
from turnback.state.cachedform import CachedForm
from turnback.state.context import KeyContext
from turnback.state.delta import DeltaBuilder
from turnback.state.encode import encode_all, misfit
from turnback.state.layout import state_prefix
from turnback.state.schema import StateSchema

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
