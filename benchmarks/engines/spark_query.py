"""Runs a streaming DataFrame over a dataset and checks what came out of it."""

from __future__ import annotations

from collections.abc import Callable
from platform import python_version
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.dataset import Answer, Dataset
from benchmarks.engines import spark_session
from benchmarks.engines.arguments import Arguments
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.records import SPARK_SCHEMA
from benchmarks.result import Result, check
from benchmarks.workload import PARALLELISM

Plan = Callable[[DataFrame], DataFrame]
Checksum = Callable[[Answer], tuple[int, int]]


def run(engine: str, arguments: Arguments[Dataset], plan: Plan, checksum: Checksum) -> Result:
    """Run `plan` (which yields columns post and n) into Spark's no-op sink, batch by batch."""
    expected = checksum(arguments.dataset.answer)
    return run_in_mode(engine, arguments, plan, expected, SPARK_SCHEMA, "update")


def run_in_mode(
    engine: str,
    arguments: Arguments[Any],
    plan: Plan,
    expected: tuple[int, int],
    schema: str,
    mode: str,
) -> Result:
    """Run a plan that must give so many rows with that sum of `n`, in one of Spark's modes."""
    spark = spark_session.start(engine, arguments.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    workload = arguments.dataset.workload
    # The checksum is taken by Spark as rows pass by; two additions a row, no extra job.
    observed = plan(read(spark, arguments.dataset.batch_files, schema)).observe(
        "check",
        sf.count(sf.lit(1)).alias("rows"),
        sf.coalesce(sf.sum("n"), sf.lit(0)).alias("total"),
    )
    query = (
        observed.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(arguments.scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    timer.wait()
    check("batches", len(timer.seconds), workload.batches)
    rows, total = expected
    check("emitted rows", sum(row["rows"] for row in timer.observed), rows)
    check("sum of emitted counts", sum(row["total"] for row in timer.observed), total)
    counted = tuple(timer.seconds[workload.warmup_batches :])
    return Result(engine, workload.counted_records, counted, len(timer.seconds), versions(spark))


def read(spark: SparkSession, files: str, schema: str = SPARK_SCHEMA) -> DataFrame:
    """The dataset as a stream, one batch of files per trigger."""
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", PARALLELISM)
    return stream.parquet(files)


def versions(spark: SparkSession) -> dict[str, str]:
    return {"spark": spark.version, "python": python_version()}
