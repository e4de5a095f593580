"""Runs a counting job of Turnback over a dataset and checks the state it has come to."""

from __future__ import annotations

from importlib.metadata import version

from benchmarks.dataset import Dataset
from benchmarks.engines import spark_query, spark_session, turnback_job
from benchmarks.engines.arguments import Arguments
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.engines.turnback_job import Counting, Place
from benchmarks.result import Result, check


def run(given: Arguments[Dataset], counting: Counting, backend: str = "rocksdb") -> Result:
    """Time `counting` batch by batch, then go on from its last checkpoint over the probe file."""
    with turnback_job.local_directory(backend) as local:
        return _run(given, counting, Place(backend, given.scratch / "turnback", local))


def _run(given: Arguments[Dataset], counting: Counting, place: Place) -> Result:
    dataset, workload = given.dataset, given.dataset.workload
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    counted = turnback_job.count(spark, place, dataset.batch_files, counting)
    timer.wait()
    spark.streams.removeListener(timer)
    check("records", counted.records, workload.records)
    check("batches", len(timer.seconds), workload.batches)
    # Untimed: the probe file holds every key once, which counts it one further.
    files, expected = dataset.batch_files_and_probe, dataset.counts_after_probe()
    turnback_job.check_counts_from(spark, place, files, counting, expected)
    return Result(
        engine=given.variant,
        records=workload.counted_records,
        seconds=tuple(timer.seconds[workload.warmup_batches :]),
        checkpoints=counted.checkpoints,
        versions={"turnback": version("turnback"), **spark_query.versions(spark)},
    )
