"""Two streams, read by one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnback.api.functions import checked_instance, name_of, output_type_of
from turnback.api.keys import Selector, common_keys, keyed_by
from turnback.core.errors import PlanError
from turnback.functions.base import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from turnback.functions.key_spec import KeySpec
from turnback.plan.graph import NodeKind

if TYPE_CHECKING:
    from turnback.api.stream import DataStream


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
