"""A stream that every subtask gets, and streams connected with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnback.api.functions import checked_instance, name_of, output_type_of
from turnback.core.errors import PlanError, UnsupportedTypeError
from turnback.functions.base import TimerFunction
from turnback.functions.broadcast import (
    BroadcastOperator,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    TimedBroadcastOperator,
    numbered_type,
)
from turnback.functions.descriptors import MapStateDescriptor
from turnback.functions.key_spec import KeySpec
from turnback.functions.partitioning import Partitioning, Spread
from turnback.plan.graph import NodeKind

if TYPE_CHECKING:
    from turnback.api.stream import DataStream


class BroadcastStream:
    """A stream that every subtask gets, with the states that keep what is needed of it.

    Attributes:
        input_stream: The stream.
        broadcast_state_descriptors: The states.
    """

    def __init__(
        self,
        input_stream: DataStream,
        broadcast_state_descriptors: tuple[MapStateDescriptor[Any, Any], ...],
    ) -> None:
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise PlanError(
                    f"broadcast takes MapStateDescriptors, got {type(descriptor).__name__}"
                )
            if descriptor.ttl is not None:
                raise PlanError(
                    f"broadcast: the state {descriptor.name!r} has a time to live, which broadcast "
                    f"state cannot have; store times with its values"
                )
            try:
                descriptor.check()
            except UnsupportedTypeError as e:
                raise UnsupportedTypeError(f"broadcast: {e}") from None
        names = [descriptor.name for descriptor in broadcast_state_descriptors]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"broadcast has two states named {name!r}; rename one of them")
        self.input_stream = input_stream
        self.broadcast_state_descriptors = broadcast_state_descriptors


class BroadcastConnectedStream:
    """A stream, keyed or not, connected with a broadcast one."""

    def __init__(self, non_broadcast_stream: DataStream, broadcast_stream: BroadcastStream) -> None:
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream

    def process(
        self,
        func: BroadcastProcessFunction | KeyedBroadcastProcessFunction,
        output_type: Any = None,
    ) -> DataStream:
        """Turn each element of both into any number of others."""
        stream = self.non_broadcast_stream
        key: KeySpec | None = getattr(stream, "_key", None)
        wanted = BroadcastProcessFunction if key is None else KeyedBroadcastProcessFunction
        if key is None and isinstance(func, KeyedBroadcastProcessFunction):
            raise PlanError(
                f"{type(func).__name__} is a KeyedBroadcastProcessFunction; put key_by(...) before "
                f"connect"
            )
        function = checked_instance(func, wanted, "process")
        timed = isinstance(function, TimerFunction) and (
            type(function).on_timer is not TimerFunction.on_timer
        )
        operator = TimedBroadcastOperator if timed else BroadcastOperator
        descriptors = self.broadcast_stream.broadcast_state_descriptors
        node = stream._graph.add(
            NodeKind.BROADCAST_PROCESS,
            name_of(function),
            output_type_of(output_type, None, "process"),
            (stream._node, self._numbered()._node),
            keys=(key, None) if key is not None else (),
            function=operator(function, descriptors),
        )
        return stream._following(node)

    def _numbered(self) -> DataStream:
        """The broadcast stream, with what all subtasks need to put it into one order."""
        stream = self.broadcast_stream.input_stream
        type = numbered_type(stream.type)
        numbered = stream._graph.add(NodeKind.NUMBER, "broadcast", type, (stream._node,))
        return stream._following(numbered)._partitioned(Partitioning(Spread.BROADCAST))
