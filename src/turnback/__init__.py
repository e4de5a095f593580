"""Flink-grade state, checkpoints and savepoints for PySpark streaming."""

from turnback.api import (
    CheckpointConfig,
    DataStream,
    DataStreamSink,
    JobClient,
    KeyedStream,
    StreamExecutionEnvironment,
)
from turnback.coordinator import (
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedCheckpointRetention,
    RestartStrategies,
    SavepointFormat,
)
from turnback.core import Row, Types
from turnback.functions import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ReduceFunction,
    ReducingStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)
from turnback.runtime.job import ClaimMode
from turnback.sinks import CollectSink, DiscardSink, FileSink, PrintSink, TwoPhaseCommitSink

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointingMode",
    "ClaimMode",
    "CollectSink",
    "DataStream",
    "DataStreamSink",
    "DiscardSink",
    "ExternalizedCheckpointRetention",
    "FileSink",
    "FilterFunction",
    "FlatMapFunction",
    "JobClient",
    "KeySelector",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "PrintSink",
    "ProcessFunction",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "SavepointFormat",
    "StreamExecutionEnvironment",
    "TwoPhaseCommitSink",
    "Types",
    "ValueStateDescriptor",
]
