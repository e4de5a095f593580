"""Spark writing a stream to a directory of Parquet files, in the JVM."""

from __future__ import annotations

from benchmarks.engines import arguments, spark_query, spark_session
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import Result, check
from benchmarks.window_dataset import SPARK_SCHEMA, WindowDataset

PARQUET = "spark-parquet"


def run(given: arguments.Arguments[WindowDataset]) -> Result:
    workload, out = given.dataset.workload, str(given.scratch / "out")
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    query = (
        spark_query.read(spark, given.dataset.batch_files, SPARK_SCHEMA)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(given.scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start(out)
    )
    query.awaitTermination()
    timer.wait()
    check("batches", len(timer.seconds), workload.batches)
    check("rows", spark.read.parquet(out).count(), workload.records)
    return Result(
        given.variant,
        workload.counted_records,
        tuple(timer.seconds[workload.warmup_batches :]),
        len(timer.seconds),
        spark_query.versions(spark),
    )


if __name__ == "__main__":
    run(arguments.parse_with(__doc__ or "", (PARQUET,), WindowDataset.load)).print()
