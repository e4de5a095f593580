"""Turnback's `KeyedProcessFunction`, with state in RocksDB or in memory."""

from __future__ import annotations

from importlib.metadata import version

from benchmarks.engines import arguments, spark_query, spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import Result, check


def main() -> None:
    given = arguments.parse(__doc__, ("turnback-rocksdb", "turnback-hashmap"))
    dataset, workload = given.dataset, given.dataset.workload
    backend = given.variant.removeprefix("turnback-")
    root = given.scratch / "turnback"
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    counted = turnback_job.count(spark, root, backend, dataset.batch_files)
    timer.wait()
    spark.streams.removeListener(timer)
    check("records", counted, workload.records)
    check("batches", len(timer.seconds), workload.batches)
    # Untimed: the probe file holds every key once, with the count it must have by now.
    probed = turnback_job.check_state(spark, root, backend, dataset.batch_files_and_probe)
    check("probed keys", probed, workload.keys)
    Result(
        engine=given.variant,
        records=workload.counted_records,
        seconds=tuple(timer.seconds[workload.warmup_batches :]),
        checkpoints=len(timer.seconds),
        versions={"turnback": version("turnback"), **spark_query.versions(spark)},
    ).print()


if __name__ == "__main__":
    main()
