"""What other parts want to know of a configuration."""

from __future__ import annotations

from pathlib import Path

from turnback.config.backend import BACKENDS
from turnback.config.configuration import Configuration
from turnback.config.object_store import as_storage_options
from turnback.config.spark import SPARK_PREFIX
from turnback.coordinator.config import CheckpointStorage

_BACKEND = "state.backend.type"
_STORAGE = "execution.checkpointing.storage"


def storage_options(configuration: Configuration) -> dict[str, str]:
    """What is said of object stores, as `open_storage` takes it."""
    return as_storage_options(configuration.raw)


def spark_options(configuration: Configuration) -> dict[str, str]:
    """What is said to Spark, by Spark's names."""
    return {key: value for key, value in configuration.raw.items() if key.startswith(SPARK_PREFIX)}


def state_backend(configuration: Configuration) -> tuple[str, CheckpointStorage]:
    """The local store, and where checkpoints go.

    A classic pair says both; the key of the storage wins over it, unless the pair was named in a
    layer that comes later.
    """
    backend, paired = BACKENDS[configuration.value(_BACKEND)]
    storage: CheckpointStorage | None = configuration.value(_STORAGE)
    later = configuration.rank(_BACKEND) > configuration.rank(_STORAGE)
    if paired is not None and (storage is None or later):
        return backend, paired
    return backend, storage or CheckpointStorage.FILESYSTEM


def job_root(configuration: Configuration) -> str:
    """Where job directories are: an absolute path, or a URI."""
    return location(configuration.value("state.checkpoints.dir"))


def location(text: str) -> str:
    """A path made absolute, for it means the same everywhere; a URI as it is."""
    return text if "://" in text else str(Path(text).expanduser().absolute())
