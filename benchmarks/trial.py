"""One run of one engine over one dataset."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import program
from benchmarks.dataset import Dataset
from benchmarks.engine import Engine
from benchmarks.result import Result


def run(engine: Engine, dataset: Dataset, timeout: float) -> Result:
    """Run `engine` over `dataset` in an empty directory that is thrown away afterwards."""
    if not engine.python.exists():
        raise program.ProgramFailedError("not installed: run sh benchmarks/setup_flink.sh")
    with tempfile.TemporaryDirectory(prefix="turnback-bench-") as scratch:
        arguments = ["--variant", engine.name, "--dataset", str(dataset.root.resolve())]
        arguments += ["--scratch", scratch]
        module = f"benchmarks.engines.{engine.module}"
        return Result.parse(program.run(module, arguments, Path(scratch), timeout, engine.python))
