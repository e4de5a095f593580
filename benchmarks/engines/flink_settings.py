"""The settings all Flink jobs share, so that none is tuned better than another."""

# PyFlink is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

from pathlib import Path

from pyflink.common import Configuration

from benchmarks.dataset import Dataset
from benchmarks.engine import ENGINES
from benchmarks.window_dataset import WindowDataset
from benchmarks.workload import PARALLELISM


def common(scratch: Path) -> dict[str, str]:
    """RocksDB with incremental, exactly-once checkpoints; a failure ends the job."""
    return {
        "parallelism.default": str(PARALLELISM),
        "execution.runtime-mode": "STREAMING",
        "pipeline.object-reuse": "true",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": (scratch / "checkpoints").as_uri(),
        "taskmanager.memory.managed.size": "1g",
        "io.tmp.dirs": str(scratch),
        "restart-strategy.type": "none",
    }


def interval(engine: str, dataset: Dataset | WindowDataset) -> dict[str, str]:
    """Flink checkpoints by the clock: about once per batch at the engine's usual rate.

    The number it really completed is part of the result.
    """
    ms = max(1_000, 1_000 * dataset.workload.batch_records // ENGINES[engine].rate)
    return {"execution.checkpointing.interval": f"{ms} ms"}


def configuration(settings: dict[str, str]) -> Configuration:
    result = Configuration()
    for key, value in settings.items():
        result.set_string(key, value)
    return result
