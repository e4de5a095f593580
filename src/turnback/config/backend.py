"""The names of the state backends, and what they stand for."""

from __future__ import annotations

from typing import Any

from turnback.coordinator.config import CheckpointStorage
from turnback.core.errors import ConfigurationError

BACKENDS: dict[str, tuple[str, CheckpointStorage | None]] = {
    "hashmap": ("hashmap", None),
    "rocksdb": ("rocksdb", None),
    "memory": ("hashmap", CheckpointStorage.JOBMANAGER),
    "jobmanager": ("hashmap", CheckpointStorage.JOBMANAGER),
    "filesystem": ("hashmap", CheckpointStorage.FILESYSTEM),
}
"""The local store of each name; and the storage of checkpoints, for Flink's classic pairs."""


def backend_name(key: str, value: Any) -> str:
    """Read the name of a backend."""
    if not isinstance(value, str) or value not in BACKENDS:
        raise ConfigurationError(
            f"{key}: unknown state backend {value!r}; there are {', '.join(BACKENDS)}"
        )
    return value
