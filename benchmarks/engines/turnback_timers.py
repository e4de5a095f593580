"""Small epochs of a job of Turnback, with or without a timer that waits for every key."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks import records
from benchmarks.engines import spark_query, spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import Result, check
from benchmarks.workload import PARALLELISM, SMALL_BATCH, SMALL_WARMUP
from turnback import (
    KeyedProcessFunction,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.sinks import DiscardSink

FAR = 10**15
LOAD_BATCH = 500_000


class Waiting(KeyedProcessFunction):
    """Counts, and sets a timer when it sees a key for the first time, if it is to."""

    seen = ValueStateDescriptor("seen", int)

    def __init__(self, *, sets_timers: bool) -> None:
        self.sets_timers = sets_timers

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n = self.seen.value() or 0
        if self.sets_timers and not n:
            ctx.timer_service().register_event_time_timer(FAR)
        self.seen.update(n + 1)
        yield Row(value.post, n + 1)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        yield Row("", 0)


def write(directory: Path, keys: int, epochs: int) -> int:
    """Write files that load all keys, and then touch some of them; returns their number."""
    directory.mkdir()
    random = np.random.default_rng(keys)
    loads = [
        np.arange(start, min(start + LOAD_BATCH, keys)) for start in range(0, keys, LOAD_BATCH)
    ]
    touched = [random.integers(0, keys, SMALL_BATCH) for _ in range(epochs + SMALL_WARMUP)]
    for position, batch in enumerate([*loads, *touched]):
        for part in range(PARALLELISM):
            mine = batch[part::PARALLELISM]
            rows = records.table(mine, np.full(len(mine), 1 + position))
            path = directory / f"batch-{position:04d}-{part}.parquet"
            records.write_parquet(path, rows, position * PARALLELISM + part)
    return len(loads)


def run(variant: str, keys: int, epochs: int, scratch: Path) -> Result:
    loads = write(scratch / "records", keys, epochs)
    spark = spark_session.start(variant, scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    with turnback_job.local_directory("rocksdb") as local:
        env = StreamExecutionEnvironment.get_execution_environment(
            {"state.backend.local-dir": str(local)}, spark=spark, root=scratch / "turnback"
        )
        env.set_parallelism(PARALLELISM).set_state_backend("rocksdb").enable_checkpointing("10 ms")
        events = env.from_dataframe(
            spark_query.read(spark, str(scratch / "records" / "*.parquet")), uid="events"
        )
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("amount")
        stamped = events.assign_timestamps_and_watermarks(strategy).uid("time")
        counts = stamped.key_by("post").process(
            Waiting(sets_timers=variant == "with"), "post string, n bigint"
        )
        counts.uid("count").sink_to(DiscardSink()).uid("out")
        report = env.execute("bench", bounded=True)
    timer.wait()
    check("batches", len(timer.seconds), loads + SMALL_WARMUP + epochs)
    seconds = tuple(timer.seconds[loads + SMALL_WARMUP :])
    versions = {"turnback": version("turnback"), **spark_query.versions(spark)}
    return Result(variant, epochs * SMALL_BATCH, seconds, report.checkpoints, versions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=("with", "without"), required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="an empty directory")
    given = parser.parse_args()
    run(given.variant, given.keys, given.epochs, given.scratch).print()
