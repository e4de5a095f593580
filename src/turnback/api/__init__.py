from turnback.api.checkpoint_config import CheckpointConfig
from turnback.api.client import JobClient
from turnback.api.environment import StreamExecutionEnvironment
from turnback.api.savepoint import Savepoint, StateInfo
from turnback.api.savepoint_diff import SavepointDiff, StateDiff, diff
from turnback.api.savepoint_writer import SavepointWriter
from turnback.api.stream import DataStream, DataStreamSink, KeyedStream

__all__ = [
    "CheckpointConfig",
    "DataStream",
    "DataStreamSink",
    "JobClient",
    "KeyedStream",
    "Savepoint",
    "SavepointDiff",
    "SavepointWriter",
    "StateDiff",
    "StateInfo",
    "StreamExecutionEnvironment",
    "diff",
]
