from .api.client import JobClient
from .api.environment import StreamExecutionEnvironment
from .api.lookup import look_up
from .api.savepoint import Savepoint, diff
from .api.savepoint_writer import SavepointWriter
from .api.streams import AsyncDataStream, DataStream, KeyedStream
from .config.checkpointing import CheckpointingMode
from .config.restart import RestartStrategies
from .connectors.files.sink import FileSink
from .functions.aggregates import count, max_of, mean_of, min_of, sum_of
from .functions.base import (
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
)
from .functions.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from .functions.event_time import Duration, Time, TimestampAssigner, WatermarkStrategy
from .job.run import ClaimMode
from .sinks.memory import CollectSink, PrintSink
from .values.row import Row
from .values.typeinfo import Types

__all__ = [
    "AsyncDataStream",
    "CheckpointingMode",
    "ClaimMode",
    "CollectSink",
    "DataStream",
    "Duration",
    "FileSink",
    "JobClient",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "OutputTag",
    "PrintSink",
    "ProcessFunction",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "Savepoint",
    "SavepointWriter",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "Time",
    "TimestampAssigner",
    "Types",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "count",
    "diff",
    "look_up",
    "max_of",
    "mean_of",
    "min_of",
    "sum_of",
]
