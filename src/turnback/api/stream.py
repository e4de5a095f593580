"""Streams: what a program does with the elements of its sources."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Self, overload

from turnback.api.broadcast import BroadcastConnectedStream, BroadcastStream
from turnback.api.collected import CloseableIterator
from turnback.api.connected import ConnectedStreams, common_keys
from turnback.api.functions import as_function, name_of, output_type_of, returned_type
from turnback.api.named import DataStreamSink, Named
from turnback.api.partitioned import Partitioned
from turnback.api.windowed import WindowedStream
from turnback.core.errors import PlanError
from turnback.program.aggregates import Aggregate
from turnback.program.aggregation import Aggregation, Combination, plan_aggregation
from turnback.program.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedBatchFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from turnback.program.graph import (
    SIDE_OUTPUT_KINDS,
    KeySpec,
    Node,
    NodeKind,
    OutputTag,
    StreamGraph,
)
from turnback.program.partitioning import Spread
from turnback.program.time import WatermarkStrategy
from turnback.program.triggers import CountEvictor, CountTrigger, PurgingTrigger
from turnback.program.window_aggregation import WindowAggregation
from turnback.program.windows import GlobalWindows, WindowAssigner
from turnback.sinks.base import Sink
from turnback.sinks.memory import CollectSink, PrintSink
from turnback.types.hints import as_type
from turnback.types.typeinfo import RowTypeInfo, TypeInfo


def timestamps() -> None:
    """What operators that give timestamps are named after."""


class DataStream(Named, Partitioned):
    """A stream of elements. Its methods record what to do; nothing runs before `execute`."""

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn each element into another."""
        function = as_function(func, MapFunction, "map")
        annotated = func.map if isinstance(func, MapFunction) else func
        type_ = output_type_of(output_type, annotated, "map")
        return self._add(NodeKind.MAP, func, function, type_)

    def flat_map(
        self, func: FlatMapFunction | Callable[[Any], Any], output_type: Any = None
    ) -> DataStream:
        """Turn each element into any number of others."""
        function = as_function(func, FlatMapFunction, "flat_map")
        type_ = output_type_of(output_type, None, "flat_map")
        return self._add(NodeKind.FLAT_MAP, func, function, type_)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keep the elements for which the function is true."""
        function = as_function(func, FilterFunction, "filter")
        return self._add(NodeKind.FILTER, func, function, self.type)

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
        parts: list[Any] = list(key)
        if len(parts) == 2 and not isinstance(parts[0], str):
            key_type = parts.pop()  # PyFlink gives it by position
        if key_type is not None and parts and isinstance(parts[0], str):
            raise PlanError("key_by: columns have their type already; leave key_type out")
        if len(parts) == 1 and not isinstance(parts[0], str):
            return KeyedStream(self._graph, self._node, self._function_key(parts[0], key_type))
        return KeyedStream(self._graph, self._node, self._column_key(tuple(parts)))

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

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """What the function of this stream sends to a side output: ``yield tag, element``."""
        if not isinstance(output_tag, OutputTag):
            raise PlanError(f"get_side_output takes an OutputTag, got {type(output_tag).__name__}")
        node, function = self._node, self._node.function
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
                checkpoint. Without a name the job starts empty every time.
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
        env, name = self._graph.environment, job_execution_name
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
        name, inputs = name_of(given), (self._node,)
        node = self._graph.add(kind, name, type, inputs, key=key, function=function)
        return DataStream(self._graph, node)

    def _add_two(
        self, other: DataStream, kind: NodeKind, name: str, function: Any, type: TypeInfo
    ) -> DataStream:
        """What a function makes of this stream and another."""
        keys, inputs = common_keys(self, other), (self._node, other._node)
        node = self._graph.add(kind, name, type, inputs, keys=keys, function=function)
        return DataStream(self._graph, node)

    def _check_other(self, other: Any, method: str) -> None:
        if not isinstance(other, DataStream):
            raise PlanError(f"{method} takes streams, got {type(other).__name__}")
        if other._graph is not self._graph:
            raise PlanError(f"{method} takes streams of the same environment")

    def _column_key(self, columns: tuple[Any, ...]) -> KeySpec:
        names = self.type.names if isinstance(self.type, RowTypeInfo) else ("value",)
        types = self.type.types if isinstance(self.type, RowTypeInfo) else (self.type,)
        if not columns:
            raise PlanError("key_by needs at least one column name, or a function")
        for column in columns:
            if column not in names:
                raise PlanError(f"key_by: there is no column {column!r}; there are {list(names)}")
        return KeySpec(tuple(columns), None, tuple(types[names.index(c)] for c in columns))

    def _function_key(self, function: Any, key_type: Any) -> KeySpec:
        if isinstance(function, type) and issubclass(function, KeySelector):
            raise PlanError(f"key_by takes an instance; write {function.__name__}()")
        if not callable(function) and not isinstance(function, KeySelector):
            raise PlanError(
                f"key_by takes column names or a function, got {type(function).__name__}"
            )
        if isinstance(function, KeySelector) and type(function).open is not KeySelector.open:
            raise PlanError("key_by: a KeySelector is not opened; prepare it in its constructor")
        declared = key_type if key_type is not None else returned_type(function)
        if declared is None or declared is Any:
            raise PlanError(
                "key_by with a function needs key_type=..., or a return annotation on the "
                "function; or name columns instead"
            )
        call = function.get_key if isinstance(function, KeySelector) else function
        return KeySpec((), call, (as_type(declared),))

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
    """A stream whose elements have a key, so that functions on it have state per key."""

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
