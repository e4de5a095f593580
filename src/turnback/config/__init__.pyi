from .checkpointing import (
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedCheckpointRetention,
    SavepointFormat,
)
from .restart import RestartStrategies

__all__ = [
    "CheckpointStorage",
    "CheckpointingMode",
    "ExternalizedCheckpointRetention",
    "RestartStrategies",
    "SavepointFormat",
]
