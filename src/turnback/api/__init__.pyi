from .client import JobClient
from .environment import CheckpointConfig, StreamExecutionEnvironment
from .lookup import KeyState, look_up
from .savepoint import Savepoint, diff
from .savepoint_writer import SavepointWriter
from .streams import (
    AsyncDataStream,
    BroadcastConnectedStream,
    BroadcastStream,
    CloseableIterator,
    ConnectedStreams,
    DataStream,
    DataStreamSink,
    KeyedStream,
    WindowedStream,
)

__all__ = [
    "AsyncDataStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CheckpointConfig",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "JobClient",
    "KeyState",
    "KeyedStream",
    "Savepoint",
    "SavepointWriter",
    "StreamExecutionEnvironment",
    "WindowedStream",
    "diff",
    "look_up",
]
