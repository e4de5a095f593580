"""Two streams, read by one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnback.api.functions import checked_instance, name_of, output_type_of
from turnback.core.errors import PlanError
from turnback.program.functions import KeySelector
from turnback.program.graph import KeySpec, NodeKind
from turnback.program.two_inputs import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)

if TYPE_CHECKING:
    from turnback.api.stream import DataStream

Selector = str | list[str] | tuple[str, ...] | KeySelector | Callable[[Any], Any]


class ConnectedStreams:
    """Two streams, of one type or two, whose elements one function gets, with the same state.

    Attributes:
        stream1: The first stream.
        stream2: The second stream.
    """

    def __init__(self, stream1: DataStream, stream2: DataStream) -> None:
        self.stream1 = stream1
        self.stream2 = stream2

    def key_by(
        self, key_selector1: Selector, key_selector2: Selector, key_type: Any = None
    ) -> ConnectedStreams:
        """Give the elements of both streams keys of one type.

        Args:
            key_selector1: A column name, several in a list, a `KeySelector` or a function.
            key_selector2: The same for the second stream.
            key_type: Type of what key functions return; their annotations are used when left out.
        """
        return ConnectedStreams(
            keyed_by(self.stream1, key_selector1, key_type),
            keyed_by(self.stream2, key_selector2, key_type),
        )

    def map(self, func: CoMapFunction, output_type: Any = None) -> DataStream:
        """Turn each element of either stream into one other, or none if it is None."""
        function = checked_instance(func, CoMapFunction, "map")
        type_ = output_type_of(output_type, function.map1, "map")
        return self._add(NodeKind.CO_MAP, function, type_)

    def flat_map(self, func: CoFlatMapFunction, output_type: Any = None) -> DataStream:
        """Turn each element of either stream into any number of others."""
        function = checked_instance(func, CoFlatMapFunction, "flat_map")
        return self._add(
            NodeKind.CO_FLAT_MAP, function, output_type_of(output_type, None, "flat_map")
        )

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: Any = None
    ) -> DataStream:
        """Turn each element of either stream into any number of others, with a context."""
        function = checked_instance(func, (CoProcessFunction, KeyedCoProcessFunction), "process")
        if isinstance(function, KeyedCoProcessFunction) and not self._keys():
            raise PlanError(
                f"{type(function).__name__} is a KeyedCoProcessFunction; put key_by(...) before "
                f"process"
            )
        return self._add(
            NodeKind.CO_PROCESS, function, output_type_of(output_type, None, "process")
        )

    def _add(self, kind: NodeKind, function: Any, type_: Any) -> DataStream:
        return self.stream1._add_two(self.stream2, kind, name_of(function), function, type_)

    def _keys(self) -> tuple[KeySpec, ...]:
        return common_keys(self.stream1, self.stream2)


def keyed_by(stream: DataStream, selector: Any, key_type: Any) -> DataStream:
    """A stream keyed by one selector: a column, a list of columns, or a function."""
    columns = [selector] if isinstance(selector, str) else selector
    if isinstance(columns, list | tuple):
        return stream.key_by(*columns)
    return stream.key_by(selector, key_type=key_type)


def common_keys(stream1: DataStream, stream2: DataStream) -> tuple[KeySpec, ...]:
    """How both streams are keyed, so that equal keys come together; empty if neither is."""
    keys = [getattr(each, "_key", None) for each in (stream1, stream2)]
    known = [key for key in keys if key is not None]
    if len(known) == 1:
        which = "second" if keys[1] is None else "first"
        raise PlanError(f"the {which} of two connected streams has no key; key both, or neither")
    if not known:
        return ()
    first, second = known
    if first.types != second.types:
        types = " and ".join(", ".join(map(str, key.types)) for key in known)
        raise PlanError(
            f"the keys of two connected streams must have one type, and they are {types}; cast one "
            f"of them"
        )
    by_columns = any(key.function is None for key in known)
    return tuple(replace(key, as_columns=by_columns and key.function is not None) for key in known)
