from __future__ import annotations

from typing import Any, Generic, TypeVar

from turnback.core import Serializer
from turnback.state.context import KeyContext
from turnback.state.schema import StateSchema
from turnback.state.single import SingleState

T = TypeVar("T")
R = TypeVar("R")


class AggregatingState(SingleState, Generic[T, R]):
    """One accumulator per key, to which every added element is aggregated."""

    __slots__ = ("_add", "_create", "_result")

    def __init__(
        self,
        context: KeyContext,
        schema: StateSchema,
        serializer: Serializer,
        aggregate_function: Any,
    ) -> None:
        super().__init__(context, schema, serializer)
        self._create = aggregate_function.create_accumulator
        self._add = aggregate_function.add
        self._result = aggregate_function.get_result

    def get(self) -> R | None:
        """The result for the current key, None when nothing was added."""
        accumulator = self._current()
        return None if accumulator is None else self._result(accumulator)

    def add(self, value: T) -> None:
        """Add an element to the accumulator of the current key."""
        accumulator = self._current()
        if accumulator is None:
            accumulator = self._create()
        key: Any = self._context.key
        result = self._add(value, accumulator)
        kept = result if type(result) is self._plain else self._keep(result)
        self._cache[key] = self._dirty[key] = kept
