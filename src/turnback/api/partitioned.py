"""What a user can say about where the elements of a stream go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from turnback.api.broadcast import BroadcastStream
from turnback.api.functions import name_of
from turnback.core.errors import PlanError
from turnback.functions.base import KeySelector
from turnback.functions.descriptors import MapStateDescriptor
from turnback.functions.partitioning import Partitioner, Partitioning, Spread
from turnback.plan.graph import NodeKind

if TYPE_CHECKING:
    from turnback.api.stream import DataStream


class Partitioned(ABC):
    """The part of `DataStream` that spreads elements over the subtasks of the next operator.

    All of it goes through Spark's shuffle, except `forward`. Nothing is left to chance: an epoch
    that is run again sends elements of one task in the order in which that task has them.
    """

    def rebalance(self) -> DataStream:
        """Give every subtask of the next operator as many elements, one after the other."""
        return self._partitioned(Partitioning(Spread.REBALANCE))

    def rescale(self) -> DataStream:
        """The same as `rebalance`: in Spark's shuffle no subtask is nearer than another."""
        return self._partitioned(Partitioning(Spread.RESCALE))

    def shuffle(self) -> DataStream:
        """The same as `rebalance`: evenly, but not at random, so that a replay sends all alike."""
        return self._partitioned(Partitioning(Spread.SHUFFLE))

    def forward(self) -> DataStream:
        """Leave elements in their task; the next operator needs the parallelism of this one."""
        return self._partitioned(Partitioning(Spread.FORWARD))

    def partition_custom(
        self,
        partitioner: Partitioner | Callable[[Any, int], int],
        key_selector: KeySelector | Callable[[Any], Any],
    ) -> DataStream:
        """Send elements where a function says. For state per key use `key_by`.

        Args:
            partitioner: Gives the number of the subtask, for a key and the number of subtasks.
            key_selector: Gives the key of an element.
        """
        partition = _method(partitioner, Partitioner, "partition", "partitioner")
        key = _method(key_selector, KeySelector, "get_key", "key_selector")
        return self._partitioned(Partitioning(Spread.CUSTOM, partition, key))

    @overload
    def broadcast(self) -> DataStream: ...
    @overload
    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor[Any, Any],
        *other_broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> BroadcastStream: ...
    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor[Any, Any] | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> DataStream | BroadcastStream:
        """Give every element to all subtasks of the next operator.

        With descriptors it becomes a stream that others can `connect` with, for a function that
        keeps what it needs of it in broadcast state.
        """
        if broadcast_state_descriptor is None:
            return self._partitioned(Partitioning(Spread.BROADCAST))
        descriptors = (broadcast_state_descriptor, *other_broadcast_state_descriptors)
        return BroadcastStream(self._without_key(Spread.BROADCAST), descriptors)

    def _partitioned(self, how: Partitioning) -> DataStream:
        stream = self._without_key(how.spread)
        name = how.spread.value
        inputs = (stream._node,)
        node = stream._graph.add(NodeKind.PARTITION, name, stream.type, inputs, function=how)
        return stream._following(node)

    @abstractmethod
    def _without_key(self, spread: Spread) -> DataStream:
        """The stream itself; refused if it has a key, which decides where elements go."""


def _method(given: Any, wanted: type, method: str, argument: str) -> Callable[..., Any]:
    """The method of an instance of a class, or the plain function in its place."""
    if isinstance(given, wanted):
        found: Callable[..., Any] = getattr(given, method)
        return found
    if not callable(given) or isinstance(given, type):
        raise PlanError(
            f"partition_custom: {argument} must be a {wanted.__name__} or a function, got "
            f"{name_of(given)}"
        )
    return given  # type: ignore[no-any-return]
