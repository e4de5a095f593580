"""Turnback over a state of a given size: epochs, then recovery in a process that has nothing."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.engines import spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.engines.turnback_job import Place
from benchmarks.growth_dataset import PIECE, GrowthDataset
from benchmarks.job_memory import JobMemory
from benchmarks.result import check
from benchmarks.saved import directory_bytes


def load(dataset: GrowthDataset, scratch: Path, place: Place, piece: int) -> dict[str, object]:
    """Go on filling the state with its next piece, in large epochs."""
    spark = spark_session.start("turnback-growth", scratch)
    with JobMemory() as memory:
        ran = turnback_job.count(spark, place, dataset.load_files(piece + 1))
    check("records", ran.records, min(PIECE, dataset.growth.keys - piece * PIECE))
    return {"worker_bytes": memory.worker_bytes}


def touch(dataset: GrowthDataset, scratch: Path, place: Place) -> dict[str, object]:
    """Go on with small epochs, in new workers: what they need does not come from loading."""
    growth = dataset.growth
    spark = spark_session.start("turnback-growth", scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    with JobMemory() as memory:
        ran = turnback_job.count(spark, place, dataset.build_files)
    timer.wait()
    check("records", ran.records, growth.touched * (growth.warmup_epochs + growth.epochs))
    check("batches", len(timer.seconds), growth.warmup_epochs + growth.epochs)
    return {
        "seconds": timer.seconds[growth.warmup_epochs :],
        "worker_bytes": memory.worker_bytes,
        "driver_bytes": memory.driver_bytes,
        "jvm_bytes": memory.jvm_bytes,
        "state_bytes": directory_bytes(place.root),
    }


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
    parser.add_argument("phase", help="load-0, load-1, ..., then touch, then recover")
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    given = parser.parse_args()
    phase, _, piece = given.phase.partition("-")
    # Recovery is measured on a machine that has nothing; the phases before it share a machine.
    local = given.scratch / ("recovered" if phase == "recover" else "local")
    place = Place("rocksdb", given.scratch / "turnback", local)
    dataset = GrowthDataset.load(given.dataset)
    if phase == "load":
        done = load(dataset, given.scratch, place, int(piece))
    else:
        done = {"touch": touch, "recover": recover}[phase](dataset, given.scratch, place)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
