from .api.async_stream import AsyncDataStream
from .api.broadcast import BroadcastConnectedStream, BroadcastStream
from .api.checkpoint_config import CheckpointConfig
from .api.client import JobClient
from .api.collected import CloseableIterator
from .api.connected import ConnectedStreams
from .api.environment import StreamExecutionEnvironment
from .api.lookup import KeyState, look_up
from .api.named import DataStreamSink
from .api.savepoint import Savepoint, diff
from .api.savepoint_writer import SavepointWriter
from .api.stream import DataStream, KeyedStream
from .api.windowed import WindowedStream
from .config.checkpointing import (
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedCheckpointRetention,
)
from .config.restart import RestartStrategies
from .config.savepoints import SavepointFormat
from .connectors.files.sink import FileSink
from .connectors.kafka.records import KafkaRecordSerializationSchema, KafkaTopicSelector
from .connectors.kafka.sink import DeliveryGuarantee, KafkaSink
from .connectors.kafka.source import KafkaOffsetsInitializer, KafkaSource, KafkaTopicPartition
from .connectors.kinesis.source import KinesisOffsetsInitializer, KinesisSource
from .connectors.rabbitmq.source import RabbitMQOffsetsInitializer, RabbitMQSource
from .connectors.redis import RedisSink
from .connectors.sql.mysql import MySqlSink
from .connectors.sql.postgres import PostgresSink
from .connectors.tables.delta import DeltaSink
from .connectors.tables.iceberg import IcebergSink
from .driver.job import ClaimMode
from .functions.aggregates import (
    Aggregate,
    approx_distinct_of,
    count,
    count_of,
    first_of,
    last_of,
    list_of,
    max_of,
    mean_of,
    min_of,
    stddev_of,
    sum_of,
    variance_of,
)
from .functions.async_io import AsyncFunction, AsyncRetryPredicate, AsyncRetryStrategy
from .functions.base import (
    AggregateFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatJoinFunction,
    FlatMapFunction,
    JoinFunction,
    KeyedBatchFunction,
    KeyedColumns,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    WindowFunction,
)
from .functions.broadcast import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedStateFunction,
    ReadOnlyBroadcastState,
)
from .functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from .functions.event_time import (
    Duration,
    Time,
    TimeDomain,
    TimerService,
    TimestampAssigner,
    WatermarkStrategy,
)
from .functions.groups import Groups
from .functions.operator_state import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
)
from .functions.partitioning import Partitioner
from .functions.ttl import StateTtlConfig
from .sinks.idempotent import IdempotentSink
from .sinks.memory import CollectSink, DiscardSink, PrintSink
from .sinks.schemas import (
    DeserializationSchema,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    SerializationSchema,
    SimpleStringSchema,
)
from .sinks.two_phase import TwoPhaseCommitSink
from .sinks.write_ahead import StagedOutput, WriteAheadSink
from .spark.batch_sink import BatchEpoch, SparkBatchSink
from .state.list_and_map import ListState, MapState
from .state.subtasks import BroadcastState
from .state.values import AggregatingState, ReducingState, ValueState
from .timing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeTrigger,
    Evictor,
    ProcessingTimeTrigger,
    PurgingTrigger,
    TimeEvictor,
    Trigger,
    TriggerResult,
)
from .timing.windows import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from .values.row import Row
from .values.typeinfo import Types

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BatchEpoch",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointedFunction",
    "CheckpointingMode",
    "ClaimMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectSink",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DataStream",
    "DataStreamSink",
    "DeliveryGuarantee",
    "DeltaSink",
    "DeserializationSchema",
    "DiscardSink",
    "Duration",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "ExternalizedCheckpointRetention",
    "FileSink",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GlobalWindows",
    "Groups",
    "IcebergSink",
    "IdempotentSink",
    "JobClient",
    "JoinFunction",
    "JsonRowDeserializationSchema",
    "JsonRowSerializationSchema",
    "KafkaOffsetsInitializer",
    "KafkaRecordSerializationSchema",
    "KafkaSink",
    "KafkaSource",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
    "KeySelector",
    "KeyState",
    "KeyedBatchFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedColumns",
    "KeyedProcessFunction",
    "KeyedStateFunction",
    "KeyedStream",
    "KinesisOffsetsInitializer",
    "KinesisSource",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MySqlSink",
    "OperatorStateStore",
    "OutputTag",
    "Partitioner",
    "PostgresSink",
    "PrintSink",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "RabbitMQOffsetsInitializer",
    "RabbitMQSource",
    "ReadOnlyBroadcastState",
    "RedisSink",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "Savepoint",
    "SavepointFormat",
    "SavepointWriter",
    "SerializationSchema",
    "SimpleStringSchema",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SparkBatchSink",
    "StagedOutput",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "Time",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "TimestampAssigner",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TwoPhaseCommitSink",
    "Types",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
    "WriteAheadSink",
    "approx_distinct_of",
    "count",
    "count_of",
    "diff",
    "first_of",
    "last_of",
    "list_of",
    "look_up",
    "max_of",
    "mean_of",
    "min_of",
    "stddev_of",
    "sum_of",
    "variance_of",
]
