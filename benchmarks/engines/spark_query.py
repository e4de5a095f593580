"""Runs a streaming DataFrame over a dataset and checks what came out of it."""

from __future__ import annotations

from collections.abc import Callable
from platform import python_version

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.dataset import Answer
from benchmarks.engines import spark_session
from benchmarks.engines.arguments import Arguments
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.records import SPARK_SCHEMA
from benchmarks.result import Result, check
from benchmarks.workload import PARALLELISM

Plan = Callable[[DataFrame], DataFrame]
Checksum = Callable[[Answer], tuple[int, int]]


def run(engine: str, arguments: Arguments, plan: Plan, checksum: Checksum) -> Result:
    """Run `plan` (which yields columns post and n) into Spark's no-op sink, batch by batch."""
    spark = spark_session.start(engine, arguments.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    workload = arguments.dataset.workload
    # The checksum is taken by Spark as rows pass by; two additions a row, no extra job.
    observed = plan(read(spark, arguments.dataset.batch_files)).observe(
        "check",
        sf.count(sf.lit(1)).alias("rows"),
        sf.coalesce(sf.sum("n"), sf.lit(0)).alias("total"),
    )
    query = (
        observed.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(arguments.scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    timer.wait()
    check("batches", len(timer.seconds), workload.batches)
    rows, total = checksum(arguments.dataset.answer)
    check("emitted rows", sum(row["rows"] for row in timer.observed), rows)
    check("sum of emitted counts", sum(row["total"] for row in timer.observed), total)
    counted = tuple(timer.seconds[workload.warmup_batches :])
    return Result(engine, workload.counted_records, counted, len(timer.seconds), versions(spark))


def read(spark: SparkSession, files: str) -> DataFrame:
    """The dataset as a stream, one batch of files per trigger."""
    stream = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", PARALLELISM)
    return stream.parquet(files)


def versions(spark: SparkSession) -> dict[str, str]:
    return {"spark": spark.version, "python": python_version()}
