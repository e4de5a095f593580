"""The engines that can be compared, and the program that runs each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.program import REPOSITORY

FLINK_PYTHON = REPOSITORY / ".venv-flink" / "bin" / "python"


@dataclass(frozen=True)
class Engine:
    """An engine under its name in the table.

    Attributes:
        module: The program, which takes the name as its variant.
        does: What it does per record, where that is not what the others do.
        epochs: Whether it works in epochs whose duration can be compared.
        slow: Whether a few batches take it minutes: enough to be warm, and too long for more.
    """

    name: str
    module: str
    python: Path = Path(sys.executable)
    does: str = "one read, one update, one row out per record"
    epochs: bool = True
    slow: bool = False


BASELINE = "turnback-rocksdb"

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(BASELINE, "turnback_count"),
        Engine("turnback-hashmap", "turnback_count"),
        Engine(
            "spark-group-by",
            "spark_group_by",
            does="JVM only, no user function; one row out per key and batch",
        ),
        Engine("spark-transform-with-state", "spark_transform_with_state", slow=True),
        Engine(
            "spark-transform-with-state-per-key",
            "spark_transform_with_state",
            does="one read and one update per key and batch; one row out per record",
            epochs=False,
            slow=True,
        ),
        Engine("pyflink-thread", "flink_count", FLINK_PYTHON, epochs=False, slow=True),
        Engine("pyflink-process", "flink_count", FLINK_PYTHON, epochs=False, slow=True),
    )
}
