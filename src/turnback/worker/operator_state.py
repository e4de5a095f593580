"""Functions with state of their subtask: how they get it, and when they are made anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnback.core.errors import StateError, TurnbackError, UnsupportedTypeError
from turnback.functions.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
)
from turnback.functions.operator_state import (
    BroadcastStateDescriptor,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from turnback.plan.plan import Operator
from turnback.state.files import StateFile
from turnback.state.schema import StateSchema
from turnback.state.subtasks import OperatorStateBackend
from turnback.worker.context import TaskContext
from turnback.worker.message import Order, user_error

Confirmed = tuple[str, int, str | None]
"""The attempt of the driver and the number of an epoch, and the state file of a task in it."""


def ran(order: Order, written: StateFile | None) -> Confirmed:
    """What a task has run, once it has acknowledged an epoch."""
    return order.line, order.epoch, None if written is None else written.path


def confirmed_before(order: Order, partition: int) -> Confirmed:
    """What must have been run by a task whose functions are to go on as they are.

    Other attempts of a task may have run the epoch too, and what counts is told by its file.
    """
    last = order.epoch - 1
    paths = [file.path for file in order.files.get(partition, ()) if file.last_epoch == last]
    return order.line, last, paths[-1] if paths else None


class OperatorStateContext:
    """The `FunctionInitializationContext` of a function, and its `OperatorStateStore`."""

    def __init__(
        self, operator: Operator, backend: OperatorStateBackend, keyed: TaskContext, epoch: int
    ) -> None:
        self._operator = operator
        self._backend = backend
        self._keyed = keyed
        self._restored = epoch - 1
        self.is_open = True

    def is_restored(self) -> bool:
        return self._restored > 0

    def get_restored_checkpoint_id(self) -> int | None:
        return self._restored if self.is_restored() else None

    def get_operator_state_store(self) -> OperatorStateContext:
        return self

    def get_keyed_state_store(self) -> TaskContext:
        return self._keyed

    def get_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        self._check(descriptor, ListStateDescriptor, "get_list_state")
        return self._register(SplitListStateDescriptor.of(descriptor))

    def get_union_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        self._check(descriptor, ListStateDescriptor, "get_union_list_state")
        return self._register(UnionListStateDescriptor.of(descriptor))

    def get_broadcast_state(self, descriptor: MapStateDescriptor[Any, Any]) -> Any:
        self._check(descriptor, MapStateDescriptor, "get_broadcast_state")
        return self._register(BroadcastStateDescriptor.of(descriptor))

    def _check(self, given: Any, wanted: type[StateDescriptor], method: str) -> None:
        uid = self._operator.uid
        if not isinstance(given, wanted):
            raise StateError(
                f"operator {uid!r}: {method} takes a {wanted.__name__}, got {type(given).__name__}"
            )
        if not self.is_open:
            raise StateError(
                f"operator {uid!r} asks for the state {given.name!r} after initialize_state(); ask "
                f"for all states there, and keep the handles"
            )
        if given.ttl is not None:
            raise StateError(
                f"operator {uid!r}: the state {given.name!r} has a time to live, which operator "
                f"state cannot have; store times with its elements, or use keyed state"
            )

    def _register(self, descriptor: StateDescriptor) -> Any:
        try:
            descriptor.check()
        except UnsupportedTypeError as e:
            raise UnsupportedTypeError(f"operator {self._operator.uid!r}: {e}") from None
        return self._backend.register(descriptor)


class SnapshotContext:
    """The `FunctionSnapshotContext` of an epoch."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def get_checkpoint_id(self) -> int:
        return self._order.epoch

    def get_checkpoint_timestamp(self) -> int:
        return self._order.time.now_ms


def initialize(operator: Operator, context: OperatorStateContext) -> None:
    """Let a function get its state."""
    try:
        operator.function.initialize_state(context)
    except TurnbackError:
        raise  # it names the operator
    except Exception as e:
        raise user_error(e, operator.uid, operator.name, where="initialize_state()") from e
    context.is_open = False


def snapshot(operator: Operator, order: Order) -> None:
    """Let a function bring its state up to date, at the end of an epoch."""
    try:
        operator.function.snapshot_state(SnapshotContext(order))
    except TurnbackError:
        raise
    except Exception as e:
        raise user_error(e, operator.uid, operator.name, where="snapshot_state()") from e


def check_names(uid: str, keyed: Iterable[StateSchema], own: Iterable[StateSchema]) -> None:
    """Refuse a state per key and a state of the subtasks with one name."""
    for name in sorted({schema.name for schema in keyed} & {schema.name for schema in own}):
        raise StateError(
            f"operator {uid!r} has a state per key and a state of its subtasks that are both named "
            f"{name!r}; rename one of them"
        )
