"""State of an operator's subtasks instead of its keys: what users implement, and its descriptors.

PyFlink has no `CheckpointedFunction`; the names are those of Flink's Java API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, Self

from turnback.functions.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
)


class OperatorStateStore(Protocol):
    """Where a function gets the state of its subtask.

    A handle is valid for as long as the function is, and can be used wherever the function is
    called. States are told apart by name, also from the keyed states of the same function.
    """

    def get_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        """A list that is split when the parallelism changes.

        The lists of all subtasks are put together, in the order of the subtasks, and each gets as
        many neighbouring elements as the others, or one more. Give it elements of bytes, and
        Turnback never looks inside them: what Flink calls raw state.
        """

    def get_union_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        """A list that is put together again with every start from a snapshot.

        Each subtask then has the elements of all of them, in the order of the subtasks. It is to
        keep what is its own: what all of them keep is there several times after the next start.
        """

    def get_broadcast_state(self, descriptor: MapStateDescriptor[Any, Any]) -> Any:
        """A map of which all subtasks have the same entries, which is up to the function.

        Snapshots are read as if they had that of the first subtask only.
        """


class FunctionInitializationContext(Protocol):
    """What a function learns in `initialize_state`, and where it gets its state."""

    def is_restored(self) -> bool:
        """Whether there are epochs before; also true of a function that is new in the job."""

    def get_restored_checkpoint_id(self) -> int | None:
        """The number of the last epoch before; None if there is none."""

    def get_operator_state_store(self) -> OperatorStateStore:
        """State of the subtask."""

    def get_keyed_state_store(self) -> Any:
        """State per key: has the methods of `RuntimeContext` that give states."""


class FunctionSnapshotContext(Protocol):
    """What a function learns in `snapshot_state`."""

    def get_checkpoint_id(self) -> int:
        """The number of the epoch that ends: every one of them can become a checkpoint."""

    def get_checkpoint_timestamp(self) -> int:
        """The time at which the epoch began, in milliseconds since 1970."""


class CheckpointedFunction(ABC):
    """A function with operator state, implemented in addition to `MapFunction` and the like.

    Its attributes are preserved if `snapshot_state` writes them to a state and `initialize_state`
    reads them from it::

        class Buffer(FlatMapFunction, CheckpointedFunction):
            def initialize_state(self, context):
                store = context.get_operator_state_store()
                self.saved = store.get_list_state(ListStateDescriptor("waiting", int))
                self.waiting = list(self.saved.get())

            def snapshot_state(self, context):
                self.saved.update(self.waiting)
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the states and read their content. Called once per instance, before `open`.

        Instances live only as long as their Python workers: a new one, a copy of the submitted
        function, is created with every start of a job, and whenever a task finds no instance that
        has run the last confirmed epoch. Get all states each time, whatever the value of
        `is_restored`.
        """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Update the states. Called at the end of every epoch.

        Writing an unchanged list costs nothing.
        """


def has_operator_state(function: Any) -> bool:
    """Whether a function has state of its subtask."""
    return isinstance(function, CheckpointedFunction)


class _OperatorStateDescriptor(StateDescriptor):
    """How a state of a subtask is stored; made from the descriptor that the user has given."""

    @classmethod
    def of(cls, descriptor: StateDescriptor) -> Self:
        made = object.__new__(cls)
        vars(made).update(vars(descriptor))
        return made


class SplitListStateDescriptor(_OperatorStateDescriptor):
    """A list that is split when the parallelism changes."""

    kind = "operator list"


class UnionListStateDescriptor(_OperatorStateDescriptor):
    """A list of which every subtask gets all elements."""

    kind = "union list"


class BroadcastStateDescriptor(_OperatorStateDescriptor):
    """A map that is the same in every subtask."""

    kind = "broadcast"
