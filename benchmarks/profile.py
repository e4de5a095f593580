"""Where does the time of an epoch go? Turnback on RocksDB, the throughput data, epoch by epoch.

Runs the counting job as it is, with functions over whole batches, and with one that does nothing,
which leaves Spark's share (reading, shuffle, Arrow) and the fixed cost of an epoch.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.engines import spark_query, spark_session, turnback_batch
from benchmarks.engines.turnback_job import Count
from benchmarks.generate import prepare
from benchmarks.run import CACHE
from benchmarks.table import table
from benchmarks.workload import PARALLELISM, Workload
from turnback import KeyedProcessFunction, Row, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.functions import KeyedBatchFunction, KeyedColumns
from turnback.sinks import DiscardSink
from turnback.spark.engine import SparkEpochInput
from turnback.worker.message import Barrier

WORKLOAD = Workload("profile", keys=20_000, batch_records=500_000, batches=12, warmup_batches=6)


class BatchTotals(KeyedBatchFunction):
    """Gives every key of an epoch once, with its count."""

    count = ValueStateDescriptor("count", int)

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.Table:
        counts = state.read(self.count).fill_null(0).to_numpy() + np.bincount(state.index)
        state.write(self.count, counts)
        return pa.table({"post": state.keys, "n": counts})


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        return iter(())


class Stopwatch:
    """Stands in for `SparkEpochInput.run`, and notes what it and its slowest task took."""

    def __init__(self) -> None:
        self.run = SparkEpochInput.run
        self.jobs: list[dict[str, float]] = []

    def __call__(self, *arguments: Any) -> list[Barrier]:
        began = time.perf_counter()
        barriers = self.run(*arguments)
        tasks = [ack.seconds for barrier in barriers for ack in barrier.acks]
        steps = {step: max(task[step] for task in tasks) for step in tasks[0]}
        self.jobs.append({"job": time.perf_counter() - began, **steps})
        return barriers


FUNCTIONS: dict[str, KeyedProcessFunction | KeyedBatchFunction] = {
    "Count": Count(),
    "Count in batches": turnback_batch.Count(),
    "BatchTotals": BatchTotals(),
    "Nothing": Nothing(),
}


def measure(spark: Any, files: str, name: str) -> tuple[str, ...]:
    watch = Stopwatch()
    SparkEpochInput.run = lambda *arguments: watch(*arguments)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as root:
        env = StreamExecutionEnvironment.get_execution_environment(spark=spark, root=root)
        env.set_parallelism(PARALLELISM).enable_checkpointing("10 ms")
        stream = env.from_dataframe(spark_query.read(spark, files), uid="events")
        counts = (
            stream.key_by("post").process(FUNCTIONS[name], "post string, n bigint").uid("count")
        )
        counts.sink_to(DiscardSink()).uid("out")
        report = env.execute("profile", bounded=True)
    SparkEpochInput.run = watch.run  # type: ignore[method-assign]
    warm = WORKLOAD.warmup_batches
    whole = median(e.seconds for e in list(report.epochs)[warm:])
    steps = ("job", "open", "process", "snapshot")
    parts = [median(job[step] for job in watch.jobs[warm:]) for step in steps]
    return (name, *(f"{s:.3f} s" for s in (whole, *parts)))


def main() -> int:
    dataset = prepare(WORKLOAD, CACHE)
    with tempfile.TemporaryDirectory() as scratch:
        spark = spark_session.start("turnback-profile", Path(scratch))
        rows = [measure(spark, dataset.batch_files, name) for name in FUNCTIONS]
        spark.stop()
    print(f"{WORKLOAD.batch_records:,} records an epoch, median of the epochs after the first six.")
    print("In the slowest task: open (state to the last epoch), process, snapshot.\n")
    print(table(("function", "epoch", "Spark job", "open", "process", "snapshot"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
