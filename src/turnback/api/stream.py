"""Streams: what a program does with the elements of its sources."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, overload

from turnback.api.broadcast import BroadcastConnectedStream, BroadcastStream
from turnback.api.collected import CloseableIterator
from turnback.api.connected import ConnectedStreams
from turnback.api.functions import as_function, name_of, output_type_of
from turnback.api.joined import CoGroupedStreams, IntervalJoin, JoinedStreams
from turnback.api.keys import common_keys, key_spec
from turnback.api.named import DataStreamSink
from turnback.api.partitioned import Partitioned
from turnback.api.tolerant import Tolerant
from turnback.api.windowed import WindowedStream
from turnback.core.errors import PlanError
from turnback.functions.aggregates import Aggregate
from turnback.functions.aggregation import Aggregation, Combination, plan_aggregation
from turnback.functions.base import (
    FilterFunction,
    FlatMapFunction,
    KeyedBatchFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
)
from turnback.functions.event_time import WatermarkStrategy
from turnback.functions.key_spec import KeySpec
from turnback.functions.partitioning import Spread
from turnback.functions.rolling import RollingAggregate
from turnback.plan.graph import SIDE_OUTPUT_KINDS, Node, NodeKind, StreamGraph
from turnback.sinks.base import Sink
from turnback.sinks.memory import CollectSink, PrintSink
from turnback.timing.triggers import CountEvictor, CountTrigger, PurgingTrigger
from turnback.timing.window_aggregation import WindowAggregation
from turnback.timing.windows import GlobalWindows, WindowAssigner
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo

if TYPE_CHECKING:
    from turnback.spark.batch_sink import BatchFunction


def timestamps() -> None:
    """What operators that give timestamps are named after."""


class DataStream(Tolerant, Partitioned):
    """A stream of elements. Its methods record what to do; nothing runs before `execute`."""

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

        The function gets a `pyarrow.RecordBatch` and returns one, a table, or several of them.
        Batch boundaries mean nothing and may change from run to run.
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
        """Give elements their event time, and say how late they may be."""
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
        """Give every element a key: one or more column names, or a function.

        Args:
            *key: Column names, a `KeySelector`, or a function of the element.
            key_type: Type of what a key function returns; its annotation is used when left out.
        """
        return KeyedStream(self._graph, self._node, key_spec(self.type, key, key_type))

    def union(self, *streams: DataStream) -> DataStream:
        """All elements of this stream and of others of the same type."""
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
        """Let one function read this stream and another, which may be of another type."""
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
        """What the function of this stream sends to a side output: ``yield tag, element``."""
        if not isinstance(output_tag, OutputTag):
            raise PlanError(f"get_side_output takes an OutputTag, got {type(output_tag).__name__}")
        node = self._node
        function = self._node.function
        on_columns = isinstance(function, KeyedBatchFunction | WindowAggregation)
        if node.kind not in SIDE_OUTPUT_KINDS or on_columns:
            raise PlanError(
                f"{node.kind.value} {node.name!r} has no side outputs: only what process gives "
                f"has, with a function per element such as a ProcessFunction"
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
        """Hand each epoch to a function as a DataFrame, for any Spark writer.

        Called on the driver when the checkpoint is complete, as `function(frame, epoch)`. It has
        to be idempotent, with the help of `epoch.version`; see `SparkBatchSink`.
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
        """Run the program, and give out the elements of this stream as they are committed.

        For tests and for looking at small streams: all elements stay in memory.

        Args:
            job_execution_name: The job's identity: one of the same name goes on from its last
                checkpoint. Without a name the job has one of its own, and starts empty every time.
            limit: Give a list of the first so many elements, and end the job.

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
        job = env.execute_anew() if name is None else env.execute_async(name)
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

    That is also true of `map`, `flat_map` and `filter`. What they give is a stream without a key.
    """

    _key: KeySpec

    def __init__(self, graph: StreamGraph, node: Node, key: KeySpec) -> None:
        super().__init__(graph, node)
        self._key = key

    def process(  # type: ignore[override]
        self, func: KeyedProcessFunction | KeyedBatchFunction, output_type: Any = None
    ) -> DataStream:
        """Turn elements into any number of others, one by one or whole batches, with state."""
        function: Any = func
        if not isinstance(func, KeyedBatchFunction):
            function = as_function(func, KeyedProcessFunction, "process")
        type_ = output_type_of(output_type, None, "process")
        return self._add(NodeKind.KEYED_PROCESS, func, function, type_, self._key)

    def aggregate(self, **aggregates: Aggregate) -> AggregatedStream:
        """Aggregate the elements of each key: ``aggregate(views=count(), paid=sum_of("amount"))``.

        Gives one row per key that has changed in an epoch: the columns of the key, which is called
        ``key`` if a function gives it, and the aggregates. Elements are combined before the
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
        """Join with another keyed stream: the pairs of elements at most so far apart in time."""
        self._check_other(other_stream, "interval_join")
        if not isinstance(other_stream, KeyedStream):
            raise PlanError("interval_join takes a keyed stream; put key_by(...) on it")
        return IntervalJoin(self, other_stream)

    def window(self, window_assigner: WindowAssigner) -> WindowedStream:
        """Put the elements of each key into windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Put the elements of each key into windows of so many elements.

        Args:
            size: Number of elements in a window.
            slide: After so many elements a window of the last `size` fires; 0 for `size`.
        """
        windows = WindowedStream(self, GlobalWindows.create())
        if slide == 0:
            return windows.trigger(PurgingTrigger.of(CountTrigger.of(size)))
        return windows.evictor(CountEvictor.of(size)).trigger(CountTrigger.of(slide))

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        """Combine the elements of each key; gives the combination after every element."""
        function = as_function(func, ReduceFunction, "reduce")
        return self._add(NodeKind.REDUCE, func, function, self.type, self._key)

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """Add up a field, given by its number or name; gives the first element with the sum."""
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
            f"key_by decides where elements go, so {spread.value} would undo it; call it before "
            f"key_by, or on the stream that key_by was called on"
        )

    def uid(self, uid: str) -> Self:
        """Refused: key_by is no operator."""
        raise PlanError("key_by is no operator; give the uid to what follows it")

    def name(self, name: str) -> Self:
        """Refused: key_by is no operator."""
        raise PlanError("key_by is no operator; give the name to what follows it")

    def set_parallelism(self, parallelism: int) -> Self:
        """Refused: key_by is no operator."""
        raise PlanError("key_by is no operator; set the parallelism of what follows it")
