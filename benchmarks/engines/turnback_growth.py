"""Turnback over a state of a given size: epochs, then recovery in a process that has nothing."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.engines import spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.engines.turnback_job import Place
from benchmarks.growth_dataset import GrowthDataset
from benchmarks.result import check
from benchmarks.worker_memory import WorkerMemory


def build(dataset: GrowthDataset, scratch: Path, place: Place) -> dict[str, object]:
    """Load the state and touch it, epoch by epoch."""
    growth = dataset.growth
    spark = spark_session.start("turnback-growth", scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    with WorkerMemory() as memory:
        ran = turnback_job.count(spark, place, dataset.build_files)
    timer.wait()
    check("records", ran.records, growth.records)
    warmup = growth.load_batches + growth.warmup_epochs
    check("batches", len(timer.seconds), warmup + growth.epochs)
    return {"seconds": timer.seconds[warmup:], "worker_bytes": memory.peak_bytes}


def recover(dataset: GrowthDataset, scratch: Path, place: Place) -> dict[str, object]:
    """Resume without local stores, and check the state with a batch of records.

    Spark is warmed up first: what is timed is from `execute` to the end of the bounded run.
    """
    spark = spark_session.start("turnback-growth", scratch)
    spark.range(10).groupBy("id").count().collect()
    started = time.monotonic()
    ran = turnback_job.check_state(spark, place, dataset.all_files)
    seconds = time.monotonic() - started
    check("records", ran.records, dataset.growth.touched)
    return {"recovery_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=("build", "recover"))
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    given = parser.parse_args()
    with turnback_job.local_directory("rocksdb") as local:
        place = Place("rocksdb", given.scratch / "turnback", local)
        phase = build if given.phase == "build" else recover
        dataset = GrowthDataset.load(given.dataset)
        print(json.dumps(phase(dataset, given.scratch, place)), flush=True)


if __name__ == "__main__":
    main()
