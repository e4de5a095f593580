from __future__ import annotations

from typing import Any, Generic, TypeVar

from turnback.core import Serializer
from turnback.state.context import KeyContext
from turnback.state.schema import StateSchema
from turnback.state.single import SingleState

T = TypeVar("T")


class ReducingState(SingleState, Generic[T]):
    """One value per key, into which every added element is reduced."""

    __slots__ = ("_reduce",)

    def __init__(
        self,
        context: KeyContext,
        schema: StateSchema,
        serializer: Serializer,
        reduce_function: Any,
    ) -> None:
        super().__init__(context, schema, serializer)
        self._reduce = getattr(reduce_function, "reduce", reduce_function)

    def get(self) -> T | None:
        """The reduced value of the current key, None when nothing was added."""
        value: T | None = self._current()
        return value

    def add(self, value: T) -> None:
        """Reduce an element into the value of the current key."""
        key: Any = self._context.key
        current = self._current()
        if current is not None:
            value = self._reduce(current, value)
        kept = value if type(value) is self._plain else self._keep(value)
        self._cache[key] = self._dirty[key] = kept
