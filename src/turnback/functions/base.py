"""What users subclass; PyFlink's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from turnback.errors import PlanError
from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from turnback.functions.event_time import TimeDomain, TimerService
from turnback.values.hints import as_type
from turnback.values.typeinfo import Types

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class RuntimeContext(Protocol):
    """What a function learns about itself in `open`, and where it gets its state."""

    def get_task_name(self) -> str:
        """The operator's name."""

    def get_operator_uid(self) -> str:
        """The operator's uid."""

    def get_index_of_this_subtask(self) -> int:
        """The number of the task at hand, from 0.

        An operator without state may serve several tasks with one instance: ask again for each
        element rather than in `open`. Before the first shuffle Spark decides from epoch to epoch
        how many tasks there are, and their numbers may exceed those of the parallel subtasks.
        """

    def get_number_of_parallel_subtasks(self) -> int:
        """The operator's parallelism; see `get_index_of_this_subtask` on operators before it."""

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups, which bounds the parallelism."""

    def get_state(self, descriptor: ValueStateDescriptor[Any]) -> Any:
        """The handle of a value state."""

    def get_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        """The handle of a list state."""

    def get_map_state(self, descriptor: MapStateDescriptor[Any, Any]) -> Any:
        """The handle of a map state."""

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[Any]) -> Any:
        """The handle of a reducing state."""

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Any, Any, Any]) -> Any:
        """The handle of an aggregating state."""


class Function:
    """Base of all user functions.

    An instance is pickled on the driver and opened once in every Python worker that comes to run
    its operator; `close` is called when the worker gives it up or the job ends, and not at all when
    the worker is killed. Workers come and go: what an instance keeps in its own attributes is at
    most a cache.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once per instance before its first element."""

    def close(self) -> None:
        """Called once when the instance is given up in good order."""


class MapFunction(Function, ABC):
    """One element in, one element out."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the new element."""


class FlatMapFunction(Function, ABC):
    """One element in, any number out."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """Return or yield the new elements."""


class FilterFunction(Function, ABC):
    """Keeps the elements for which `filter` is true."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether to keep the element."""


class KeySelector(Function, ABC):
    """Computes the key of an element; must be deterministic."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key."""


class ReduceFunction(Function, ABC):
    """Combines two elements of one type into one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return the combination."""


class AggregateFunction(Function, ABC):
    """Folds elements into an accumulator."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return an empty accumulator."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with the value in it."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of the accumulator."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Return the union of two accumulators."""


class ProcessFunction(Function, ABC):
    """One element in, any number out, with a context."""

    class Context(Protocol):
        """Information about the current element."""

        def timestamp(self) -> int | None:
            """The element's event time in milliseconds, if it has one."""

        def timer_service(self) -> TimerService:
            """The current time; timers need a key, and an `on_timer`."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements, or nothing."""


class TimerFunction(Function):
    """Base of the functions over keyed streams that can have themselves called later."""

    class Context(ProcessFunction.Context, Protocol):
        """Information about the current element."""

        def get_current_key(self) -> Any:
            """The key of the element."""

    class OnTimerContext(Context, Protocol):
        """What is known about a timer that fires; its `timestamp` is the time it was set for."""

        def time_domain(self) -> TimeDomain:
            """Which clock it goes by."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Return or yield new elements when a timer of the current key fires, or nothing.

        Event time moves from element to element, whatever epochs the elements are in: before an
        element is processed, all timers fire that are due at its watermark.

        Args:
            timestamp: The time it was registered for, in milliseconds since 1970.
            ctx: An `OnTimerContext`.
        """
        return None


class KeyedProcessFunction(TimerFunction, ABC):
    """A function over a keyed stream, with state per key.

    State is obtained in `open` from the runtime context, or declared as class attributes::

        class Count(KeyedProcessFunction):
            count = ValueStateDescriptor("count", int)

    The planner knows declared state, and checks it before anything runs.
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements, or nothing.

        Called once per element and epoch, and again, with the previous state, when a task or an
        epoch is repeated. Side effects outside state and output are not undone.
        """


class KeyedStateStore(Protocol):
    """States of a window or of a key, to be asked for whenever they are needed.

    Each is kept as one value: lists and maps in it should be small.
    """

    def get_state(self, state_descriptor: ValueStateDescriptor[Any]) -> Any: ...

    def get_list_state(self, state_descriptor: ListStateDescriptor[Any]) -> Any: ...

    def get_map_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any: ...

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[Any]) -> Any: ...

    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor[Any, Any, Any]
    ) -> Any: ...


class ProcessWindowFunction(Function, ABC):
    """A function over all elements of a window of one key, or over their combined value."""

    class Context(Protocol):
        """Information about the window that fires."""

        def window(self) -> Any:
            """The window: its `start` and `end` in milliseconds since 1970."""

        def current_processing_time(self) -> int:
            """The clock's time, in milliseconds since 1970."""

        def current_watermark(self) -> int:
            """The current event time."""

        def window_state(self) -> KeyedStateStore:
            """The states of this window; they are deleted with it."""

        def global_state(self) -> KeyedStateStore:
            """The states of the key, for all its windows."""

    @abstractmethod
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        """Return or yield the results of a window.

        Args:
            key: The key.
            context: A `Context`.
            elements: The elements in order of arrival; only one if they were reduced or aggregated.
        """

    def clear(self, context: Any) -> None:
        """Called when the time of a window and the allowed lateness have passed.

        Its state is always deleted afterwards. Not called for windows that were merged into
        another.

        Args:
            context: A `Context`.
        """
        return


class WindowFunction(Function, ABC):
    """A function over all elements of a window of one key; the older form of it."""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        """Return or yield the results of a window."""


class KeyedColumns(Protocol):
    """The keys of a batch, each once, and their state as columns.

    Attributes:
        keys: The distinct keys, in the order in which they come up first; structs if the key has
            several columns.
        index: For every element of the batch, where its key is in `keys`. So
            ``np.bincount(index)`` counts the elements of each key.
    """

    keys: pa.Array
    index: np.ndarray[Any, np.dtype[np.intp]]

    def read(self, state: Any) -> pa.Array:
        """The values of a state in the order of `keys`, null where a key has none.

        Rows come as structs. Of a reducing state it is what has been reduced so far, of an
        aggregating state the accumulator.

        Args:
            state: What the function has declared as a value, reducing or aggregating state.
        """

    def write(self, state: Any, values: Any, where: Any = None) -> None:
        """Set the values of a state; null removes. What is written is there for later reads.

        Args:
            state: What the function has declared as a value, reducing or aggregating state.
            values: One for every key, in the order of `keys`: an Arrow or NumPy array, a list, a
                pandas or Polars Series (in pandas NaN is null). For rows an array of structs, a
                record batch, a table, a data frame or a dict, with one column per field.
            where: One truth value for every key: the others are left as they are.
        """


class KeyedBatchFunction(Function, ABC):
    """A function over whole batches of a keyed stream, with the state of all their keys as columns.

    State is declared or obtained as in `KeyedProcessFunction`, and is the same state: either kind
    of function can replace the other under the same uid. It cannot use map and list state.

    Attributes:
        columns: The columns it reads, None for all. Other columns may be missing in a batch: they
            are not even read from the source if nothing else needs them.
    """

    columns: Sequence[str] | None = None

    @abstractmethod
    def process_batch(
        self, batch: pa.RecordBatch, state: KeyedColumns
    ) -> pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None:
        """Return or yield the new elements as Arrow batches or tables, or nothing.

        Called in every task once per epoch with all elements of the task, in order; more often if
        these need much memory, and not at all if there are none. The end of an epoch is arbitrary
        and changes from run to run: a reproducible result must not depend on it. Called again, with
        the previous state, when a task or an epoch is repeated.
        """


def user_function(function: Any) -> Any:
    """What the user has written, inside of what runs it."""
    return getattr(function, "wrapped", function)


def needs_closing(function: Any) -> bool:
    """Whether a function has a `close` of its own."""
    return isinstance(function, Function) and type(function).close is not Function.close


def declared_states(function: Any) -> dict[str, StateDescriptor]:
    """The states a function declares as class attributes, by attribute name."""
    states: dict[str, StateDescriptor] = {}
    for cls in reversed(type(user_function(function)).__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, StateDescriptor):
                states[name] = value
            else:
                states.pop(name, None)
    return states


class CoMapFunction(Function, ABC):
    """One element of either stream in, one element out; None for none.

    After `key_by` both methods have the same state per key.
    """

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """Return the new element for one of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """Return the new element for one of the second stream."""


class CoFlatMapFunction(Function, ABC):
    """One element of either stream in, any number out.

    After `key_by` both methods have the same state per key.
    """

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the first stream."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the second stream."""


class CoProcessFunction(Function, ABC):
    """One element of either stream in, any number out, with a context.

    After `key_by` both methods have the same state per key; timers need a `KeyedCoProcessFunction`.
    """

    Context = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for an element of the first stream, or nothing."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for an element of the second stream, or nothing."""


class KeyedCoProcessFunction(TimerFunction, ABC):
    """A function over two keyed streams, with state and timers per key that both share.

    State is obtained or declared as in `KeyedProcessFunction`. With an `on_timer`, elements of both
    streams are processed in the order of their watermarks, those of the first stream before those
    of the second; an element that is ahead of the other stream waits for it. Without it, they are
    processed as they arrive.
    """

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for an element of the first stream, or nothing."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for an element of the second stream, or nothing."""


class ProcessJoinFunction(Function, ABC):
    """A function over pairs of elements of one key that an interval join has found."""

    class Context(Protocol):
        """What is known about the pair at hand."""

        def get_left_timestamp(self) -> int:
            """The event time of the left element, in milliseconds since 1970."""

        def get_right_timestamp(self) -> int:
            """The event time of the right element."""

        def get_timestamp(self) -> int:
            """The event time of what comes out: the later one of both."""

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for a pair, or nothing.

        Called once for every pair, when the second one of it is processed.
        """


class JoinFunction(Function, ABC):
    """One new element for each pair of elements of one key and one window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """Return the new element."""


class FlatJoinFunction(Function, ABC):
    """Any number of new elements for each pair of elements of one key and one window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        """Return or yield the new elements, or nothing."""


class CoGroupFunction(Function, ABC):
    """A function over all elements of two streams of one key and one window."""

    @abstractmethod
    def co_group(self, first: list[Any], second: list[Any]) -> Iterable[Any] | None:
        """Return or yield the new elements of a window; one of the lists may be empty."""


class OutputTag:
    """Names a side output: ``yield tag, element`` in a process function sends an element there.

    Args:
        tag_id: Its name; two tags with the same name are the same side output.
        type_info: Type of its elements; by default any object, pickled.
    """

    __slots__ = ("tag_id", "type_info")

    def __init__(self, tag_id: str, type_info: Any = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            raise PlanError(f"the name of a side output must be a non-empty string, got {tag_id!r}")
        self.tag_id = tag_id
        self.type_info = Types.PICKLED_BYTE_ARRAY() if type_info is None else as_type(type_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r}, {self.type_info})"
