from __future__ import annotations

from typing import Any

from turnback.core.errors import StateError, UnsupportedTypeError
from turnback.functions import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from turnback.planner import Operator
from turnback.state import KeyedStateBackend


class PlainContext:
    """The context of an element without a key."""

    __slots__ = ()

    def timestamp(self) -> int | None:
        """The element's event time in milliseconds, if it has one."""
        return None


class KeyedContext(PlainContext):
    """The context of an element under its key."""

    __slots__ = ("_backend",)

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend

    def get_current_key(self) -> Any:
        """The key of the element."""
        return self._backend.declared_key()


class TaskContext:
    """The `RuntimeContext` a function is opened with."""

    def __init__(
        self,
        operator: Operator,
        partition: int,
        max_parallelism: int,
        backend: KeyedStateBackend | None,
    ) -> None:
        self._operator = operator
        self._partition = partition
        self._max_parallelism = max_parallelism
        self._backend = backend
        self._open = True

    def seal(self) -> None:
        """`open` is over: from now on the set of states is known."""
        self._open = False

    def get_task_name(self) -> str:
        """The operator's name."""
        return self._operator.name

    def get_operator_uid(self) -> str:
        """The operator's uid."""
        return self._operator.uid

    def get_index_of_this_subtask(self) -> int:
        """This instance's number, from 0."""
        return self._partition

    def get_number_of_parallel_subtasks(self) -> int:
        """How many instances the operator has."""
        return self._operator.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups."""
        return self._max_parallelism

    def get_state(self, descriptor: ValueStateDescriptor[Any]) -> Any:
        """The handle of a value state."""
        return self._register(descriptor, ValueStateDescriptor, "get_state")

    def get_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        """The handle of a list state."""
        return self._register(descriptor, ListStateDescriptor, "get_list_state")

    def get_map_state(self, descriptor: MapStateDescriptor[Any, Any]) -> Any:
        """The handle of a map state."""
        return self._register(descriptor, MapStateDescriptor, "get_map_state")

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[Any]) -> Any:
        """The handle of a reducing state."""
        return self._register(descriptor, ReducingStateDescriptor, "get_reducing_state")

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Any, Any, Any]) -> Any:
        """The handle of an aggregating state."""
        return self._register(descriptor, AggregatingStateDescriptor, "get_aggregating_state")

    def _register(
        self, descriptor: StateDescriptor, wanted: type[StateDescriptor], method: str
    ) -> Any:
        uid = self._operator.uid
        if not isinstance(descriptor, wanted):
            raise StateError(
                f"operator {uid!r}: {method} takes a {wanted.__name__}, "
                f"got {type(descriptor).__name__}"
            )
        if self._backend is None:
            raise StateError(
                f"operator {uid!r} asks for the keyed state {descriptor.name!r}, but its stream "
                f"has no key; put key_by(...) before it"
            )
        if not self._open:
            raise StateError(
                f"operator {uid!r} asks for the state {descriptor.name!r} after open(); "
                f"get every state in open()"
            )
        return self.register(descriptor)

    def register(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state of any kind."""
        assert self._backend is not None
        try:
            descriptor.check()
        except UnsupportedTypeError as e:
            raise UnsupportedTypeError(f"operator {self._operator.uid!r}: {e}") from None
        return self._backend.register(descriptor)
