"""Runs the job of one case at one size, and notes what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import records
from benchmarks.workload import PARALLELISM
from turnback import CollectSink, DataStream, Row, StreamExecutionEnvironment


@dataclass
class LimitTrial:
    """One case at one size: runs its job, and notes what that costs."""

    spark: SparkSession
    place: Path
    backend: str
    first_s: float = 0.0
    epoch_s: float = 0.0
    restore_s: float = 0.0
    max_parallelism: int | None = None
    _files: int = field(default=0, repr=False)
    _runs: int = field(default=0, repr=False)

    def feed(self, rows: pa.Table) -> None:
        """Add a file, which becomes an epoch."""
        (self.place / "in").mkdir(parents=True, exist_ok=True)
        path = self.place / "in" / f"{self._files:04d}.parquet"
        records.write_parquet(path, rows, self._files)
        self._files += 1

    def run(self, schema: str, build: Callable[[DataStream], DataStream]) -> list[Row]:
        """Process what is new; each further run has empty local stores, and so has to restore."""
        local = self.place / f"local-{self._runs}"
        env = StreamExecutionEnvironment.get_execution_environment(
            {"state.backend.local-dir": str(local)}, spark=self.spark, root=self.place / "jobs"
        )
        env.set_parallelism(PARALLELISM).set_state_backend(self.backend)
        if self.max_parallelism is not None:
            env.set_max_parallelism(self.max_parallelism)
        env.enable_checkpointing("10 ms")
        files = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        events = env.from_dataframe(files.parquet(str(self.place / "in")), uid="events")
        sink = CollectSink()
        build(events).sink_to(sink).uid("out")
        started = time.monotonic()
        report = env.execute("limit", bounded=True)
        seconds = [epoch.seconds for epoch in report.epochs]
        if self._runs:
            self.restore_s = time.monotonic() - started
        else:
            self.first_s = time.monotonic() - started - sum(seconds[1:])
            self.epoch_s = median(seconds[1:])
        self._runs += 1
        return list(sink.results)


Case = Callable[[LimitTrial, int], None]
"""Runs a trial of some size; raises `WrongAnswerError` if the answer is wrong."""
