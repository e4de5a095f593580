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
from .program.aggregates import (
    Aggregate,
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
from .program.async_io import AsyncFunction, AsyncRetryPredicate, AsyncRetryStrategy
from .program.broadcast import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedStateFunction,
    ReadOnlyBroadcastState,
)
from .program.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from .program.distinct import approx_distinct_of
from .program.functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBatchFunction,
    KeyedColumns,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    WindowFunction,
)
from .program.graph import OutputTag
from .program.groups import Groups
from .program.operator_state import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
)
from .program.partitioning import Partitioner
from .program.time import (
    Duration,
    Time,
    TimeDomain,
    TimerService,
    TimestampAssigner,
    WatermarkStrategy,
)
from .program.triggers import (
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
from .program.ttl import StateTtlConfig
from .program.two_inputs import (
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FlatJoinFunction,
    JoinFunction,
    KeyedCoProcessFunction,
    ProcessJoinFunction,
)
from .program.windows import (
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
from .state.collections import ListState, MapState
from .state.operator import BroadcastState
from .state.values import AggregatingState, ReducingState, ValueState
from .types.row import Row
from .types.typeinfo import Types

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
