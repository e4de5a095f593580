from .checkpoint_config import CheckpointConfig
from .client import JobClient
from .environment import StreamExecutionEnvironment
from .savepoint import Savepoint, StateInfo
from .savepoint_diff import SavepointDiff, StateDiff, diff
from .savepoint_writer import SavepointWriter
from .stream import DataStream, DataStreamSink, KeyedStream

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
