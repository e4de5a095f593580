"""Turnback's `KeyedProcessFunction`, with state in RocksDB or in memory."""

from __future__ import annotations

from importlib.metadata import version

from benchmarks.engines import arguments, spark_query, spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.engines.turnback_job import Place
from benchmarks.result import Result, check


def main() -> None:
    given = arguments.parse(__doc__, ("turnback-rocksdb", "turnback-hashmap"))
    backend = given.variant.removeprefix("turnback-")
    with turnback_job.local_directory(backend) as local:
        run(given, Place(backend, given.scratch / "turnback", local)).print()


def run(given: arguments.Arguments, place: Place) -> Result:
    dataset, workload = given.dataset, given.dataset.workload
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    counted = turnback_job.count(spark, place, dataset.batch_files)
    timer.wait()
    spark.streams.removeListener(timer)
    check("records", counted.records, workload.records)
    check("batches", len(timer.seconds), workload.batches)
    # Untimed: the probe file holds every key once, with the count it must have by now.
    probed = turnback_job.check_state(spark, place, dataset.batch_files_and_probe)
    check("probed keys", probed.records, workload.keys)
    return Result(
        engine=given.variant,
        records=workload.counted_records,
        seconds=tuple(timer.seconds[workload.warmup_batches :]),
        checkpoints=counted.checkpoints,
        versions={"turnback": version("turnback"), **spark_query.versions(spark)},
    )


if __name__ == "__main__":
    main()
