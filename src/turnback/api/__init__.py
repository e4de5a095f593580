from turnback.api.checkpoint_config import CheckpointConfig
from turnback.api.client import JobClient
from turnback.api.environment import StreamExecutionEnvironment
from turnback.api.stream import DataStream, DataStreamSink, KeyedStream

__all__ = [
    "CheckpointConfig",
    "DataStream",
    "DataStreamSink",
    "JobClient",
    "KeyedStream",
    "StreamExecutionEnvironment",
]
