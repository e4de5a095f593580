"""Streams, and what can be done with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

from turnback.api.arguments import (
    as_function,
    checked_instance,
    name_of,
    output_type_of,
    returned_type,
)
from turnback.api.client import JobClient
from turnback.core.ids import check_uid
from turnback.errors import PlanError, TurnbackError, UnsupportedTypeError
from turnback.functions.aggregates import (
    Aggregate,
    Aggregation,
    Combination,
    RollingAggregate,
    plan_aggregation,
)
from turnback.functions.async_io import (
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncWait,
    check_async_function,
    check_retries,
)
from turnback.functions.base import (
    AggregateFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatJoinFunction,
    FlatMapFunction,
    Function,
    JoinFunction,
    KeyedBatchFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    TimerFunction,
    WindowFunction,
    declared_states,
    user_function,
)
from turnback.functions.broadcast import (
    BroadcastOperator,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    TimedBroadcastOperator,
    numbered_type,
)
from turnback.functions.descriptors import MapStateDescriptor
from turnback.functions.event_time import Duration, Time, WatermarkStrategy, as_milliseconds
from turnback.functions.operator_state import has_operator_state
from turnback.functions.partitioning import KeySpec, Partitioner, Partitioning, Spread
from turnback.plan.bad_records import (
    DEAD_LETTER,
    DEAD_LETTERS,
    MALFORMED,
    MALFORMED_RECORD,
    ErrorPolicy,
    policy_of,
)
from turnback.plan.graph import (
    SIDE_OUTPUT_KINDS,
    TOLERANT_KINDS,
    Node,
    NodeKind,
    StreamGraph,
    has_partitions,
    strategies_before,
)
from turnback.sinks.base import Sink
from turnback.sinks.memory import CollectSink, PrintSink
from turnback.timing.folded_windows import (
    CombinedWindows,
    PaneWindows,
    WindowAggregation,
    plan_window_aggregation,
)
from turnback.timing.joins import (
    CoGroupWindow,
    Interval,
    IntervalJoinOperator,
    IntervalJoinPlan,
    WindowJoinOperator,
    tagged_type,
)
from turnback.timing.triggers import CountEvictor, CountTrigger, Evictor, PurgingTrigger, Trigger
from turnback.timing.window_operator import WindowAccumulator, WindowOperator, WindowPlan
from turnback.timing.windows import GlobalWindows, TumblingEventTimeWindows, WindowAssigner
from turnback.values.columns import stream_columns
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo

if TYPE_CHECKING:
    from turnback.spark.batch_sink import BatchFunction


Selector = str | list[str] | tuple[str, ...] | KeySelector | Callable[[Any], Any]
"""A column, several in a list, or a function."""


def key_spec(type: TypeInfo, key: Sequence[Any], key_type: Any) -> KeySpec:
    """How elements get their key: from column names, or from one function."""
    parts = list(key)
    if len(parts) == 2 and not isinstance(parts[0], str):
        key_type = parts.pop()  # PyFlink gives it by position
    if key_type is not None and parts and isinstance(parts[0], str):
        raise PlanError("key_by: columns already have a type; omit key_type")
    if len(parts) == 1 and not isinstance(parts[0], str):
        return _function_key(parts[0], key_type)
    return _column_key(type, tuple(parts))


def _column_key(type: TypeInfo, columns: tuple[Any, ...]) -> KeySpec:
    known = dict(stream_columns(type))
    if not columns:
        raise PlanError("key_by needs at least one column name, or a function")
    for column in columns:
        if column not in list(known):
            raise PlanError(f"key_by: there is no column {column!r}; the columns are {list(known)}")
    return KeySpec(columns, None, tuple(known[column] for column in columns))


def _function_key(function: Any, key_type: Any) -> KeySpec:
    if isinstance(function, type) and issubclass(function, KeySelector):
        raise PlanError(f"key_by takes an instance; write {function.__name__}()")
    if not callable(function) and not isinstance(function, KeySelector):
        raise PlanError(f"key_by takes column names or a function, got {type(function).__name__}")
    if isinstance(function, KeySelector) and type(function).open is not KeySelector.open:
        raise PlanError("key_by: a KeySelector is not opened; prepare it in its constructor")
    declared = key_type if key_type is not None else returned_type(function)
    if declared is None or declared is Any:
        raise PlanError(
            "key_by with a function needs key_type=..., or a return annotation on the function; "
            "or name columns instead"
        )
    call = function.get_key if isinstance(function, KeySelector) else function
    return KeySpec((), call, (as_type(declared),))


def keyed_by(stream: DataStream, selector: Any, key_type: Any) -> DataStream:
    """A stream keyed by one selector: a column, a list of columns, or a function."""
    columns = [selector] if isinstance(selector, str) else selector
    if isinstance(columns, list | tuple):
        return stream.key_by(*columns)
    return stream.key_by(selector, key_type=key_type)


def common_keys(stream1: DataStream, stream2: DataStream) -> tuple[KeySpec, ...]:
    """How both streams are keyed, so that equal keys come together; empty if neither is."""
    keys = [stream1._key, stream2._key]
    known = [key for key in keys if key is not None]
    if len(known) == 1:
        which = "second" if keys[1] is None else "first"
        raise PlanError(f"the {which} of two connected streams has no key; key both or neither")
    if not known:
        return ()
    first, second = known
    if first.types != second.types:
        types = " and ".join(", ".join(map(str, key.types)) for key in known)
        raise PlanError(
            f"the keys of two connected streams must have the same type, but they are {types}; "
            "cast one of them"
        )
    by_columns = any(key.function is None for key in known)
    return tuple(replace(key, as_columns=by_columns and key.function is not None) for key in known)


class Named:
    """What every operator can be given: a uid, a name, a parallelism."""

    def __init__(self, graph: StreamGraph, node: Node) -> None:
        self._graph = graph
        self._node = node

    def uid(self, uid: str) -> Self:
        """Set the operator's identity: by it its state is found again, whatever else changes."""
        self._node.uid = check_uid(uid)
        return self

    def name(self, name: str) -> Self:
        """Set what people see."""
        if not isinstance(name, str) or not name:
            raise PlanError(f"a name must be a non-empty string, got {name!r}")
        self._node.name = name
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of instances of this operator."""
        if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
            raise PlanError(f"parallelism must be a whole number above 0, got {parallelism!r}")
        if self._node.kind is NodeKind.SOURCE:
            raise PlanError("Spark sets the parallelism of a source; set it on the next operator")
        self._node.parallelism = parallelism
        return self


class DataStreamSink(Named):
    """The end of a stream."""


_OURS = ("turnback.functions.", "turnback.timing.", "turnback.plan.")


class ErrorHandling(Named):
    """A stream whose operator can go on without elements at which its function fails."""

    def on_error(self, policy: str) -> Self:
        """Say what becomes of an element at which the function of this operator fails.

        Nothing of such an element stays: neither what the function has given for it, nor what it
        has done to state and timers. What it did elsewhere cannot be undone.

        Args:
            policy: "fail", the default: the attempt fails, and the restart strategy decides;
                "skip": the element is left out; "dead_letter": it goes to `dead_letters`.
        """
        chosen = policy_of(ErrorPolicy, "on_error", policy)
        node = self._node
        function = user_function(node.function)
        whole = isinstance(function, KeyedBatchFunction)
        ours = type(function).__module__.startswith(_OURS) and node.kind in SIDE_OUTPUT_KINDS
        if chosen is not ErrorPolicy.FAIL and (node.kind not in TOLERANT_KINDS or whole or ours):
            raise PlanError(
                f"{node.kind.value} {node.name!r} cannot skip an element: only functions of map, "
                "flat_map, filter and process that get one element at a time can; check "
                "elements in one of these before it"
            )
        if chosen is not ErrorPolicy.FAIL and has_operator_state(node.function):
            raise PlanError(
                f"{node.kind.value} {node.name!r} keeps operator state in its own attributes, "
                "where the effects of a failed element cannot be undone; check elements in a "
                "map before it"
            )
        node.on_error = chosen
        return self

    def dead_letters(self) -> DataStream:
        """What was left out here: a stream of rows, to be written somewhere.

        Of an operator with `on_error("dead_letter")` these are elements at which its function has
        failed: `operator`, `key` and `element` as text, `error`, `epoch`, `task`, `position` among
        the elements of the task, and `data`, by which `turnback redrive` feeds them back.

        Of a source with `on_malformed="dead_letter"` these are records that do not fit its schema:
        the uid of the `source`, the `place` they were read from (the file, or partition and
        offset), and the `text` of the record.
        """
        node = self._node
        if node.kind is NodeKind.TIMESTAMPS and node.inputs[0].kind is NodeKind.SOURCE:
            node = node.inputs[0]
        if node.kind is NodeKind.SOURCE:
            tag = OutputTag(MALFORMED, MALFORMED_RECORD)
        else:
            tag = OutputTag(DEAD_LETTERS, DEAD_LETTER)
        following: Any = self
        stream: DataStream = following._add(NodeKind.SIDE_OUTPUT, tag, tag, tag.type_info)
        stream._node.inputs = (node,)
        return stream.name("dead letters")


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
                    f"broadcast: the state {descriptor.name!r} has a time to live, which "
                    "broadcast state does not support; store times with its values"
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


_POLL_S = 0.02


class CloseableIterator(Iterator[Any]):
    """The elements of a stream as they are committed; ends with the job, and closing it ends it.

    Attributes:
        job: The job that runs.
    """

    def __init__(self, sink: CollectSink, job: JobClient) -> None:
        self.job = job
        self._sink = sink
        self._given = 0
        self._waiting: Iterator[Any] = iter(())
        self._is_closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next element; waits for it.

        Raises:
            JobFailedError: The job has failed for good.
        """
        while True:
            for element in self._waiting:
                return element
            if self._is_closed:
                raise StopIteration
            has_ended = self.job.done()
            self._waiting = iter(new := self._sink.results[self._given :])
            self._given += len(new)
            if not new and has_ended:
                self._is_closed = True
                self.job.result()
            elif not new:
                with suppress(TimeoutError, TurnbackError):  # raised once all elements are out
                    self.job.result(_POLL_S)

    def next(self) -> Any:
        """The next element; PyFlink's name."""
        return next(self)

    def close(self) -> None:
        """End the job if it still runs; what was not given out is dropped."""
        self._is_closed = True
        self._waiting = iter(())
        if not self.job.done():
            self.job.cancel()
            self.job.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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


def timestamps() -> None:
    """What operators that give timestamps are named after."""


class DataStream(ErrorHandling, Partitioned):
    """A stream of elements. Its methods build the program; nothing runs before `execute`."""

    _key: KeySpec | None = None

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn each element into another."""
        function = as_function(func, MapFunction, "map")
        annotated = func.map if isinstance(func, MapFunction) else func
        type_ = output_type_of(output_type, annotated, "map")
        return self._add(NodeKind.MAP, func, function, type_, self._key)

    def flat_map(
        self, func: FlatMapFunction | Callable[[Any], Any], output_type: Any = None
    ) -> DataStream:
        """Turn each element into any number of others."""
        function = as_function(func, FlatMapFunction, "flat_map")
        type_ = output_type_of(output_type, None, "flat_map")
        return self._add(NodeKind.FLAT_MAP, func, function, type_, self._key)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keep the elements for which the function is true."""
        function = as_function(func, FilterFunction, "filter")
        return self._add(NodeKind.FILTER, func, function, self.type, self._key)

    def map_batches(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn Arrow record batches into others, without a Python object per element.

        The function receives a `pyarrow.RecordBatch` and returns one, a table, or several of them.
        Batch boundaries are arbitrary and may change from run to run.
        """
        if not callable(func):
            raise PlanError(f"map_batches takes a function, got {type(func).__name__}")
        wanted = self.type if output_type is None else as_type(output_type)
        return self._add(NodeKind.MAP_BATCHES, func, func, wanted)

    def process(self, func: ProcessFunction, output_type: Any = None) -> DataStream:
        """Turn each element into any number of others, with a context."""
        for keyed in (KeyedProcessFunction, KeyedBatchFunction):
            if isinstance(func, keyed):
                raise PlanError(
                    f"{type(func).__name__} is a {keyed.__name__}; put key_by(...) before process"
                )
        function = as_function(func, ProcessFunction, "process")
        type_ = output_type_of(output_type, None, "process")
        return self._add(NodeKind.PROCESS, func, function, type_)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Assign event timestamps to elements, and set how late they may be."""
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise PlanError(
                f"assign_timestamps_and_watermarks takes a WatermarkStrategy, got "
                f"{type(watermark_strategy).__name__}"
            )
        watermark_strategy.check(self.type)
        return self._add(NodeKind.TIMESTAMPS, timestamps, watermark_strategy, self.type)

    def key_by(
        self, *key: str | KeySelector | Callable[[Any], Any], key_type: Any = None
    ) -> KeyedStream:
        """Assign a key to every element: one or more column names, or a function.

        Args:
            *key: Column names, a `KeySelector`, or a function of the element.
            key_type: Type of the result of a key function; by default its annotation.
        """
        return KeyedStream(self._graph, self._node, key_spec(self.type, key, key_type))

    def union(self, *streams: DataStream) -> DataStream:
        """Combine this stream with others of the same type."""
        for other in streams:
            self._check_other(other, "union")
            if other.type != self.type:
                raise PlanError(
                    f"union takes streams of one type, got {self.type} and {other.type}; "
                    f"map one of them first"
                )
        nodes = (self._node, *(s._node for s in streams))
        node = self._graph.add(NodeKind.UNION, "union", self.type, nodes)
        return DataStream(self._graph, node)

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams: ...
    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...
    def connect(
        self, ds: DataStream | BroadcastStream
    ) -> ConnectedStreams | BroadcastConnectedStream:
        """Connect this stream with another, of the same or another type, for one function."""
        if isinstance(ds, BroadcastStream):
            self._check_other(ds.input_stream, "connect")
            return BroadcastConnectedStream(self, ds)
        self._check_other(ds, "connect")
        return ConnectedStreams(self, ds)

    def join(self, other_stream: DataStream) -> JoinedStreams:
        """Join with another stream, by key and window: the pairs of elements in both."""
        self._check_other(other_stream, "join")
        return JoinedStreams(self, other_stream)

    def co_group(self, other_stream: DataStream) -> CoGroupedStreams:
        """Group with another stream, by key and window: all elements of both."""
        self._check_other(other_stream, "co_group")
        return CoGroupedStreams(self, other_stream)

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """Get the elements that the function sends to a side output: ``yield tag, element``."""
        if not isinstance(output_tag, OutputTag):
            raise PlanError(f"get_side_output takes an OutputTag, got {type(output_tag).__name__}")
        node = self._node
        function = self._node.function
        on_columns = isinstance(function, KeyedBatchFunction | WindowAggregation)
        if node.kind not in SIDE_OUTPUT_KINDS or on_columns:
            raise PlanError(
                f"{node.kind.value} {node.name!r} has no side outputs: only process with a "
                "function per element, such as a ProcessFunction, has them"
            )
        return self._add(NodeKind.SIDE_OUTPUT, output_tag, output_tag, output_tag.type_info).name(
            output_tag.tag_id
        )

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Write the stream to a sink."""
        if not isinstance(sink, Sink):
            raise PlanError(
                f"sink_to takes a sink such as FileSink(...), got {type(sink).__name__}"
            )
        node = self._graph.add(NodeKind.SINK, name_of(sink), None, (self._node,), function=sink)
        return DataStreamSink(self._graph, node)

    def for_each_batch(self, function: BatchFunction) -> DataStreamSink:
        """Pass each epoch to a function as a DataFrame, for any Spark writer.

        Called on the driver when the checkpoint is complete, as `function(frame, epoch)`. It must
        be idempotent, using `epoch.version`; see `SparkBatchSink`.
        """
        from turnback.spark.batch_sink import SparkBatchSink

        return self.sink_to(SparkBatchSink(function)).name("for_each_batch")

    def print(self, prefix: str = "") -> DataStreamSink:
        """Print every element on the driver, once its checkpoint is complete."""
        return self.sink_to(PrintSink(prefix)).name("print")

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: None = None
    ) -> CloseableIterator: ...
    @overload
    def execute_and_collect(
        self, job_execution_name: str | None = None, *, limit: int
    ) -> list[Any]: ...
    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[Any]: ...
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Run the program, and return the elements of this stream as they are committed.

        For tests and for inspecting small streams: all elements stay in memory.

        Args:
            job_execution_name: The job's identity: a job of the same name resumes from its last
                checkpoint. Without a name each call is a separate job, which starts empty every
                time.
            limit: Return a list of this many elements, the first ones, and end the job.

        Returns:
            An iterator, which ends with the job; close it to end the job earlier.
        """
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise PlanError(f"execute_and_collect: limit must be a whole number, got {limit!r}")
        if limit is not None and limit < 1:
            raise PlanError(f"execute_and_collect: limit must be above 0, got {limit}")
        sink = CollectSink()
        self.sink_to(sink).uid("collect").name("collect")
        env = self._graph.environment
        name = job_execution_name
        job = env._execute_collect() if name is None else env.execute_async(name)
        elements = CloseableIterator(sink, job)
        if limit is None:
            return elements
        with elements:
            return list(islice(elements, limit))

    @property
    def type(self) -> TypeInfo:
        """The type of the elements."""
        assert self._node.type is not None
        return self._node.type

    def _add(
        self, kind: NodeKind, given: Any, function: Any, type: TypeInfo, key: KeySpec | None = None
    ) -> DataStream:
        name = name_of(given)
        inputs = (self._node,)
        node = self._graph.add(kind, name, type, inputs, key=key, function=function)
        return DataStream(self._graph, node)

    def _add_two(
        self, other: DataStream, kind: NodeKind, name: str, function: Any, type: TypeInfo
    ) -> DataStream:
        """What a function makes of this stream and another."""
        keys = common_keys(self, other)
        inputs = (self._node, other._node)
        node = self._graph.add(kind, name, type, inputs, keys=keys, function=function)
        return DataStream(self._graph, node)

    def _check_other(self, other: Any, method: str) -> None:
        if not isinstance(other, DataStream):
            raise PlanError(f"{method} takes streams, got {type(other).__name__}")
        if other._graph is not self._graph:
            raise PlanError(f"{method} takes streams of the same environment")

    def _without_key(self, spread: Spread) -> DataStream:
        return self

    def _following(self, node: Node) -> DataStream:
        return DataStream(self._graph, node)


class AggregatedStream(DataStream):
    """What an aggregation gives; its uid is also that of the operator that combines."""

    def uid(self, uid: str) -> Self:
        """Set the aggregation's identity: by it its state is found again."""
        (combination,) = super().uid(uid)._node.inputs
        combination.uid = f"{uid}-combine"
        return self


class KeyedStream(DataStream):
    """A stream whose elements have a key, so that functions on it have state per key.

    This includes functions of `map`, `flat_map` and `filter`. Their output is a stream without a
    key.
    """

    _key: KeySpec

    def __init__(self, graph: StreamGraph, node: Node, key: KeySpec) -> None:
        super().__init__(graph, node)
        self._key = key

    def process(  # type: ignore[override]
        self, func: KeyedProcessFunction | KeyedBatchFunction, output_type: Any = None
    ) -> DataStream:
        """Turn elements into any number of others, one by one or in batches, with state."""
        function: Any = func
        if not isinstance(func, KeyedBatchFunction):
            function = as_function(func, KeyedProcessFunction, "process")
        type_ = output_type_of(output_type, None, "process")
        return self._add(NodeKind.KEYED_PROCESS, func, function, type_, self._key)

    def aggregate(self, **aggregates: Aggregate) -> AggregatedStream:
        """Aggregate the elements of each key: ``aggregate(views=count(), paid=sum_of("amount"))``.

        Emits one row per key that has changed in an epoch: the columns of the key, called ``key``
        if it is computed by a function, and the aggregates. Elements are combined before the
        shuffle, on columns, so this is much faster than a function per element. Aggregates can be
        added and removed later: a new one counts from then on.
        """
        return self._combined(*plan_aggregation(self.type, self._key, aggregates))

    def _combined(
        self,
        combination: Combination,
        aggregation: Aggregation | WindowAggregation,
    ) -> AggregatedStream:
        node = self._graph.add(
            NodeKind.COMBINE, "combine", combination.type, (self._node,), function=combination
        )
        merged = DataStream(self._graph, node)._add(
            NodeKind.KEYED_PROCESS, aggregation, aggregation, aggregation.type, aggregation.key
        )
        return AggregatedStream(self._graph, merged._node)

    def interval_join(self, other_stream: KeyedStream) -> IntervalJoin:
        """Join with another keyed stream: pairs of elements within an interval of event time."""
        self._check_other(other_stream, "interval_join")
        if not isinstance(other_stream, KeyedStream):
            raise PlanError("interval_join takes a keyed stream; put key_by(...) on it")
        return IntervalJoin(self, other_stream)

    def window(self, window_assigner: WindowAssigner) -> WindowedStream:
        """Assign the elements of each key to windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Assign the elements of each key to windows with a number of elements.

        Args:
            size: Number of elements in a window.
            slide: Number of elements after which a window of the last `size` fires; 0 for `size`.
        """
        windows = WindowedStream(self, GlobalWindows.create())
        if slide == 0:
            return windows.trigger(PurgingTrigger.of(CountTrigger.of(size)))
        return windows.evictor(CountEvictor.of(size)).trigger(CountTrigger.of(slide))

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        """Combine the elements of each key; emits the combination after every element."""
        function = as_function(func, ReduceFunction, "reduce")
        return self._add(NodeKind.REDUCE, func, function, self.type, self._key)

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """Sum a field, given by its number or name; emits the first element with the sum."""
        return self._rolling("sum", position_to_sum)

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """The least value of a field so far, in the first element."""
        return self._rolling("min", position_to_min)

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """The greatest value of a field so far, in the first element."""
        return self._rolling("max", position_to_max)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """The element with the least value of a field so far; the first of several."""
        return self._rolling("min_by", position_to_min_by)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """The element with the greatest value of a field so far; the first of several."""
        return self._rolling("max_by", position_to_max_by)

    def _rolling(self, method: str, position: int | str) -> DataStream:
        return self.reduce(RollingAggregate(method, position, self.type)).name(method)

    def _without_key(self, spread: Spread) -> DataStream:
        raise PlanError(
            f"key_by decides where elements go, and {spread.value} would undo that; call it "
            "before key_by, or on the stream that key_by was called on"
        )

    def uid(self, uid: str) -> Self:
        """Refused: key_by is no operator."""
        raise PlanError("key_by is not an operator; give the uid to the operator after it")

    def name(self, name: str) -> Self:
        """Refused: key_by is no operator."""
        raise PlanError("key_by is not an operator; give the name to the operator after it")

    def set_parallelism(self, parallelism: int) -> Self:
        """Refused: key_by is no operator."""
        raise PlanError("key_by is not an operator; set the parallelism of the operator after it")


class WindowedStream:
    """The elements of each key, in windows. Its functions return a stream again."""

    def __init__(self, keyed: KeyedStream, assigner: WindowAssigner) -> None:
        if not isinstance(assigner, WindowAssigner):
            given = getattr(assigner, "__name__", type(assigner).__name__)
            raise PlanError(
                f"window takes windows such as TumblingEventTimeWindows.of(Time.minutes(5)), got "
                f"{given}"
            )
        self._keyed = keyed
        self._plan = WindowPlan(assigner, assigner.default_trigger(), keyed.type)

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Set the trigger that decides when windows fire."""
        return self._with(trigger=checked_instance(trigger, Trigger, "trigger"))

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Remove elements before or after a window fires.

        Windows then keep all elements, even if these are reduced or aggregated when they fire.
        """
        return self._with(evictor=checked_instance(evictor, Evictor, "evictor"))

    def allowed_lateness(self, time_ms: int | Duration) -> WindowedStream:
        """Accept elements for some time after a window ends; each fires the window again."""
        given = Duration(time_ms) if type(time_ms) is int else time_ms
        return self._with(lateness_ms=as_milliseconds(given, "allowed_lateness"))

    def side_output_late_data(self, output_tag: OutputTag) -> WindowedStream:
        """Send elements that are too late for all their windows to a side output."""
        return self._with(late=checked_instance(output_tag, OutputTag, "side_output_late_data"))

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: WindowFunction | ProcessWindowFunction | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Combine the elements of a window, which stores only their combination.

        Args:
            reduce_function: Combines two elements into one.
            window_function: Receives the combination; without it, the combination is the output.
            output_type: Type of the window function's output.
        """
        function = as_function(reduce_function, ReduceFunction, "reduce")
        folding = WindowAccumulator(self._keyed.type, reduce=function)
        return self._apply(folding, window_function, output_type, self._keyed.type, reduce_function)

    def aggregate(
        self,
        aggregate_function: AggregateFunction | None = None,
        window_function: WindowFunction | ProcessWindowFunction | None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """Aggregate the elements of a window, which stores only their accumulator.

        Instead of a function it accepts declared aggregates: ``aggregate(views=count())``. They
        emit one row per key and window: the columns of the key, ``window_start`` and ``window_end``
        as timestamps, and the aggregates. Elements are then combined before the shuffle, on
        columns.

        Args:
            aggregate_function: Folds elements into an accumulator; its `merge` is used by sessions,
                and by sliding windows, which share panes.
            window_function: Receives the result; without it, the result is the output.
            accumulator_type: Type of the accumulator, which is the stored value.
            output_type: Type of the result, or of the window function's output.
            **aggregates: Declared aggregates, by their names in the output.
        """
        if aggregates:
            given = (aggregate_function, window_function, accumulator_type, output_type)
            return self._declared(given, aggregates)
        if not isinstance(aggregate_function, AggregateFunction):
            raise PlanError(
                f"aggregate takes an AggregateFunction, or aggregates by name such as n=count(), "
                f"got {type(aggregate_function).__name__}"
            )
        if accumulator_type is None:
            accumulator_type = returned_type(aggregate_function.create_accumulator)
        if accumulator_type is None or accumulator_type is Any:
            raise PlanError("aggregate needs accumulator_type, the type of the accumulator")
        folding = WindowAccumulator(as_type(accumulator_type), aggregate=aggregate_function)
        if output_type is None and window_function is None:
            output_type = returned_type(aggregate_function.get_result)
        return self._apply(folding, window_function, output_type, None, aggregate_function)

    def process(
        self, process_window_function: ProcessWindowFunction, output_type: Any = None
    ) -> DataStream:
        """Pass all elements of a window to a function."""
        given = process_window_function
        function = checked_instance(given, ProcessWindowFunction, "process")
        return self._apply(None, function, output_type, None, function)

    def apply(self, window_function: WindowFunction, output_type: Any = None) -> DataStream:
        """Pass all elements of a window to a function."""
        function = checked_instance(window_function, WindowFunction, "apply")
        return self._apply(None, function, output_type, None, function)

    def _declared(self, given: Sequence[Any], aggregates: Mapping[str, Aggregate]) -> DataStream:
        if any(each is not None for each in given):
            raise PlanError(
                "aggregate takes either an AggregateFunction, with its arguments, or aggregates "
                "by name such as n=count(); an aggregate cannot be named aggregate_function, "
                "window_function, accumulator_type or output_type"
            )
        declared = plan_window_aggregation(self._plan, self._keyed._key, aggregates)
        combined = declared.combined if self._can_combine(aggregates) else None
        return self._run(declared.plan, declared.type, self.aggregate, combined)

    def _can_combine(self, aggregates: Mapping[str, Aggregate]) -> bool:
        """Whether elements can be aggregated as they come, and need not wait for others.

        Partitions are not in step with each other. An element that is ahead still falls into its
        window, but not into some of several, and not behind those that are to come before it.
        """
        node = self._keyed._node
        assigner = self._plan.assigner
        if len(strategies_before(node)) > 1:
            return False
        in_order = any(aggregate.in_order for aggregate in aggregates.values())
        tumbling = isinstance(assigner, TumblingEventTimeWindows)
        return not has_partitions(node) or (tumbling and not in_order)

    def _with(self, **changes: Any) -> WindowedStream:
        changed = WindowedStream(self._keyed, self._plan.assigner)
        changed._plan = replace(self._plan, **changes)
        return changed

    def _apply(
        self,
        folding: WindowAccumulator | None,
        function: Any,
        output_type: Any,
        default: TypeInfo | None,
        named_after: Any,
    ) -> DataStream:
        if function is not None:
            checked_instance(function, (WindowFunction, ProcessWindowFunction), "window_function")
            default = None
        if output_type is None and default is None:
            raise PlanError("windows need output_type, the type of their results")
        for each in (named_after, function):
            if has_operator_state(each):
                raise PlanError(
                    f"{type(each).__name__} is a CheckpointedFunction, but window functions have "
                    "no operator state; keep it in a process function before or after"
                )
        plan = replace(self._plan, folding=folding, function=function)
        type_ = default if output_type is None else as_type(output_type)
        assert type_ is not None
        return self._run(plan, type_, named_after)

    def _run(
        self,
        plan: WindowPlan,
        type_: TypeInfo,
        named_after: Any,
        combined: CombinedWindows | None = None,
    ) -> DataStream:
        """Choose how the windows are kept; nobody else does.

        Declared aggregates that need not wait for other partitions are combined before the
        shuffle. What is folded element by element is kept by pane, where windows overlap. All else
        is kept by window, with its elements where a function or an evictor wants them.
        """
        keyed = self._keyed
        if combined is not None:
            return keyed._combined(*combined)
        function: Function = PaneWindows.of(plan) or WindowOperator(plan)
        stream = keyed._add(NodeKind.KEYED_PROCESS, named_after, function, type_, keyed._key)
        return stream.name(name_of(named_after))


_ANY_TIME = -(2**62)


class IntervalJoin:
    """Two keyed streams whose elements are to be joined by time."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        self._left = left
        self._right = right

    def between(self, lower_bound: Time | Duration, upper_bound: Time | Duration) -> IntervalJoined:
        """Join elements if the right one is later than the left one by so much.

        Args:
            lower_bound: At least so much later; negative, if it may be earlier.
            upper_bound: At most so much later.
        """
        lower, upper = (
            as_milliseconds(bound, f"the {which} bound of an interval join", least=_ANY_TIME)
            for which, bound in (("lower", lower_bound), ("upper", upper_bound))
        )
        plan = IntervalJoinPlan(Interval(0, 0), (self._left.type, self._right.type))
        return IntervalJoined(self._left, self._right, plan.with_bounds(lower, upper))


class IntervalJoined:
    """Two keyed streams that are joined where elements are at most so far apart."""

    def __init__(self, left: KeyedStream, right: KeyedStream, plan: IntervalJoinPlan) -> None:
        self._left = left
        self._right = right
        self._plan = plan

    def lower_bound_exclusive(self) -> IntervalJoined:
        """Leave out pairs exactly at the lower bound."""
        bounds = self._plan.interval
        return self._with(self._plan.with_bounds(bounds.lower_ms + 1, bounds.upper_ms))

    def upper_bound_exclusive(self) -> IntervalJoined:
        """Leave out pairs exactly at the upper bound."""
        bounds = self._plan.interval
        return self._with(self._plan.with_bounds(bounds.lower_ms, bounds.upper_ms - 1))

    def side_output_left_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send left elements that are later than the watermark to a side output."""
        tag = checked_instance(output_tag, OutputTag, "side_output_left_late_data")
        return self._with(replace(self._plan, late_left=tag))

    def side_output_right_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send right elements that are later than the watermark to a side output."""
        tag = checked_instance(output_tag, OutputTag, "side_output_right_late_data")
        return self._with(replace(self._plan, late_right=tag))

    def process(
        self, process_join_function: ProcessJoinFunction, output_type: Any = None
    ) -> DataStream:
        """Give every pair to a function; what comes out has the later timestamp of the two."""
        given = process_join_function
        function = _stateless(checked_instance(given, ProcessJoinFunction, "process"))
        type_ = output_type_of(output_type, None, "process")
        operator = IntervalJoinOperator(replace(self._plan, function=function))
        return self._left._add_two(
            self._right, NodeKind.CO_PROCESS, name_of(function), operator, type_
        )

    def _with(self, plan: IntervalJoinPlan) -> IntervalJoined:
        return IntervalJoined(self._left, self._right, plan)


class JoinedStreams:
    """Two streams that are to be joined by key and window; `where` says how the first is keyed."""

    functions: tuple[type, ...] = (JoinFunction, FlatJoinFunction)

    def __init__(self, first: DataStream, second: DataStream) -> None:
        self._first = first
        self._second = second

    def where(self, key_selector: Selector, key_type: Any = None) -> JoinedWhere:
        """Say how the first stream is keyed: by a column, several in a list, or a function."""
        return JoinedWhere(
            keyed_by(self._first, key_selector, key_type), self._second, self.functions
        )


class CoGroupedStreams(JoinedStreams):
    """Two streams whose elements are to be grouped by key and window."""

    functions = (CoGroupFunction,)


@dataclass(frozen=True)
class _Sides:
    """Two streams, and the classes of functions that what becomes of them takes."""

    _first: DataStream
    _second: DataStream
    _functions: tuple[type, ...]


class JoinedWhere(_Sides):
    """Two streams of which the first is keyed."""

    def equal_to(self, key_selector: Selector, key_type: Any = None) -> JoinedKeyed:
        """Say how the second stream is keyed."""
        second = keyed_by(self._second, key_selector, key_type)
        return JoinedKeyed(self._first, second, self._functions)


class JoinedKeyed(_Sides):
    """Two keyed streams, to be put into windows."""

    def window(self, window_assigner: WindowAssigner) -> JoinedWindows:
        """Put the elements of both streams into windows."""
        assigner = checked_instance(window_assigner, WindowAssigner, "window")
        type_ = tagged_type(self._first.type, self._second.type)
        plan = WindowPlan(assigner, assigner.default_trigger(), type_)
        return JoinedWindows(self._first, self._second, self._functions, plan)


@dataclass(frozen=True)
class JoinedWindows(_Sides):
    """The elements of two streams in windows.

    Triggers, evictors and functions of a dynamic gap get elements as rows of three fields: the
    `number` of the stream, 1 or 2, and the element in `one` or in `two`.
    """

    _plan: WindowPlan

    def trigger(self, trigger: Trigger) -> JoinedWindows:
        """Set the trigger that decides when windows fire."""
        return self._with(trigger=checked_instance(trigger, Trigger, "trigger"))

    def evictor(self, evictor: Evictor) -> JoinedWindows:
        """Remove elements before or after a window fires."""
        return self._with(evictor=checked_instance(evictor, Evictor, "evictor"))

    def allowed_lateness(self, time_ms: int | Duration) -> JoinedWindows:
        """Accept elements for some time after a window ends; each fires the window again."""
        given = Duration(time_ms) if type(time_ms) is int else time_ms
        return self._with(lateness_ms=as_milliseconds(given, "allowed_lateness"))

    def apply(
        self,
        function: JoinFunction | FlatJoinFunction | CoGroupFunction | Callable[[Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Give the elements of each window to a function: by pairs, or all of them at once.

        A plain function takes the place of a `JoinFunction` or a `CoGroupFunction`.
        """
        given: Any = function
        if callable(given) and not isinstance(given, type):
            given = (_PlainCoGroup if CoGroupFunction in self._functions else _PlainJoin)(given)
        given = _stateless(checked_instance(given, self._functions, "apply"))
        annotated = given.join if isinstance(given, JoinFunction) else None
        type_ = output_type_of(output_type, annotated, "apply")
        operator = WindowJoinOperator(replace(self._plan, function=CoGroupWindow(given)))
        return self._first._add_two(
            self._second, NodeKind.CO_PROCESS, name_of(function), operator, type_
        )

    def _with(self, **changes: Any) -> JoinedWindows:
        return replace(self, _plan=replace(self._plan, **changes))


class _PlainJoin(JoinFunction):
    """A plain function of two elements."""

    join: Any = None

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.join = function


class _PlainCoGroup(CoGroupFunction):
    """A plain function of two lists."""

    co_group: Any = None

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.co_group = function


def _stateless(function: Any) -> Any:
    for descriptor in declared_states(function).values():
        raise PlanError(
            f"{type(function).__name__} declares the state {descriptor.name!r}, but join "
            "functions have no state; use connect(...) with a KeyedCoProcessFunction"
        )
    return function


class ConnectedStreams:
    """Two streams, of the same type or not, read by one function with shared state.

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
        """Assign keys of the same type to the elements of both streams.

        Args:
            key_selector1: A column name, several in a list, a `KeySelector` or a function.
            key_selector2: The same for the second stream.
            key_type: Type of the result of key functions; by default their annotations.
        """
        return ConnectedStreams(
            keyed_by(self.stream1, key_selector1, key_type),
            keyed_by(self.stream2, key_selector2, key_type),
        )

    def map(self, func: CoMapFunction, output_type: Any = None) -> DataStream:
        """Turn each element of either stream into another, or into none if the result is None."""
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


class AsyncDataStream:
    """Applies an `AsyncFunction` to a stream."""

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit the results of calls as they arrive.

        Where a strategy may yet give them timestamps, they come in the order of their elements.

        Args:
            data_stream: The stream.
            async_function: The function to call for each element.
            timeout: The longest time a call may take; 0 for no limit.
            capacity: How many calls may be in flight at once in a task.
            output_type: Type of the elements that calls return.
        """
        calls = _Calls(async_function, timeout, AsyncRetryStrategy.no_restart(), capacity)
        return calls.on(data_stream, output_type, ordered=False)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit the results of calls as they arrive, and retry failed calls.

        Args:
            data_stream: The stream.
            async_function: The function to call for each element.
            timeout: The longest time that all attempts of a call may take together.
            async_retry_strategy: Which calls are retried, and when.
            capacity: How many calls may be in flight at once in a task.
            output_type: Type of the elements that calls return.
        """
        calls = _Calls(async_function, timeout, async_retry_strategy, capacity)
        return calls.on(data_stream, output_type, ordered=False)

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit the results of calls in the order of the elements; see `unordered_wait`."""
        calls = _Calls(async_function, timeout, AsyncRetryStrategy.no_restart(), capacity)
        return calls.on(data_stream, output_type, ordered=True)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit the results in the order of the elements; see `unordered_wait_with_retry`."""
        calls = _Calls(async_function, timeout, async_retry_strategy, capacity)
        return calls.on(data_stream, output_type, ordered=True)


class _Calls(NamedTuple):
    """What is called for each element, and how."""

    function: AsyncFunction
    timeout: Duration
    retries: AsyncRetryStrategy
    capacity: int

    def on(self, stream: DataStream, output_type: Any, *, ordered: bool) -> DataStream:
        """The stream of what the calls return, if all of it can be used."""
        method = "ordered_wait" if ordered else "unordered_wait"
        if not isinstance(stream, DataStream):
            raise PlanError(f"{method} takes a stream, got {type(stream).__name__}")
        check_async_function(self.function, method)
        timeout_ms = as_milliseconds(self.timeout, f"the timeout of {method}")
        check_retries(self.retries, timeout_ms, method)
        capacity = self.capacity
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise PlanError(
                f"the capacity of {method} must be a whole number above 0, got {capacity!r}"
            )
        if output_type is None:
            raise PlanError(
                f"{method} needs output_type, the type of the elements that its calls return"
            )
        wait = AsyncWait(self.function, timeout_ms, capacity, self.retries, ordered)
        return stream._add(NodeKind.ASYNC_WAIT, self.function, wait, as_type(output_type))
