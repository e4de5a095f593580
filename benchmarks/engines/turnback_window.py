"""Turnback counting per key and window: declared, or with an `AggregateFunction` per record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.engines import arguments, spark_query, spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import Result, check
from benchmarks.window_dataset import DISORDER_MS, SPARK_SCHEMA, WINDOW_MS, WindowDataset
from benchmarks.workload import PARALLELISM
from turnback import (
    CollectSink,
    DataStream,
    Duration,
    Row,
    StreamExecutionEnvironment,
    Time,
    WatermarkStrategy,
    count,
)
from turnback.api import WindowedStream
from turnback.functions import AggregateFunction, ProcessWindowFunction
from turnback.windows import TumblingEventTimeWindows

DECLARED = "turnback-declared"
FUNCTION = "turnback-function"


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Row, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Labelled(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Iterable[int]) -> Iterator[Row]:
        for n in elements:
            yield Row(key, context.window().start, n)


def declared(windows: WindowedStream) -> DataStream:
    return windows.aggregate(n=count())


def by_function(windows: WindowedStream) -> DataStream:
    return windows.aggregate(Count(), Labelled(), int, "post string, start bigint, n bigint")


COUNTING: dict[str, Callable[[WindowedStream], DataStream]] = {
    DECLARED: declared,
    FUNCTION: by_function,
}


def checksum(batch: pa.RecordBatch) -> pa.RecordBatch:
    """How many rows a batch has, and the sum of their counts."""
    total = pc.sum(batch.column("n")).as_py()
    return pa.record_batch({"rows": [batch.num_rows], "total": [total]})


def run(given: arguments.Arguments[WindowDataset]) -> Result:
    dataset, workload = given.dataset, given.dataset.workload
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    with turnback_job.local_directory("rocksdb") as local:
        env = StreamExecutionEnvironment.get_execution_environment(
            {"state.backend.local-dir": str(local)}, spark=spark, root=given.scratch / "turnback"
        )
        env.set_parallelism(PARALLELISM).set_state_backend("rocksdb").enable_checkpointing("10 ms")
        frame = spark_query.read(spark, dataset.batch_files, SPARK_SCHEMA)
        late = Duration.of_millis(DISORDER_MS)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(late)
        events = env.from_dataframe(frame, uid="events").assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner("at")
        )
        windows = events.uid("time").key_by("post")
        counts = COUNTING[given.variant](
            windows.window(TumblingEventTimeWindows.of(Time(WINDOW_MS)))
        )
        sums = counts.uid("count").map_batches(checksum, "rows bigint, total bigint").uid("sums")
        sink = CollectSink()
        sums.sink_to(sink).uid("out")
        report = env.execute("bench", bounded=True)
    timer.wait()
    check("records", sum(epoch.records for epoch in report.epochs), workload.records)
    check("batches", len(timer.seconds), workload.batches)
    check("rows", sum(row.rows for row in sink.results), sum(dataset.answer.keys))
    check("sum of counts", sum(row.total for row in sink.results), workload.records)
    return Result(
        engine=given.variant,
        records=workload.counted_records,
        seconds=tuple(timer.seconds[workload.warmup_batches :]),
        checkpoints=report.checkpoints,
        versions={"turnback": version("turnback"), **spark_query.versions(spark)},
    )


if __name__ == "__main__":
    run(arguments.parse_with(__doc__ or "", (DECLARED, FUNCTION), WindowDataset.load)).print()
