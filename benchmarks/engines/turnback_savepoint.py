"""Turnback's savepoints while the stream goes on, and starts from them in new processes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version

import pyarrow.compute as pc
from pyarrow import parquet

from benchmarks.engines import savepoint_arguments, spark_query, spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.engines.savepoint_arguments import SAVE, SavepointArguments
from benchmarks.engines.turnback_job import Place
from benchmarks.result import check
from benchmarks.saved import CANONICAL, EMPTY, FORMATS, Saved, Span, directory_bytes, rate
from turnback import JobClient
from turnback.config import SavepointFormat
from turnback.snapshot.directory import SavepointDirectory

WARMUP_EPOCHS = 5
EPOCHS_BEFORE = 10


def save(given: SavepointArguments, place: Place) -> dict[str, object]:
    """Load the state, go on without end, and take a savepoint of each format meanwhile."""
    dataset = given.dataset
    spark = spark_session.start("turnback-savepoint", given.scratch)
    loaded = turnback_job.count(spark, place, dataset.load_files)
    check("records", loaded.records, dataset.shape.keys)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    client = turnback_job.go_on(spark, place, dataset.all_files)
    _wait_for_epochs(client, WARMUP_EPOCHS)
    taken = {format: _take(client, given, format) for format in FORMATS}
    _wait_for_epochs(client, 1)
    client.cancel()
    report = client.result()
    timer.wait()
    first = report.epochs[0].number
    for format in FORMATS:
        _check_savepoint(given, format, first)
    dataset.write_check(given.check(EMPTY), dataset.counts(()) * 0)
    return {
        "savepoints": [asdict(_measured(given, f, timer.spans, *taken[f])) for f in FORMATS],
        "versions": {"turnback": version("turnback"), **spark_query.versions(spark)},
    }


def start(given: SavepointArguments, place: Place) -> dict[str, object]:
    """Start another job, with Spark warmed up: timed from `execute` to the end of its one epoch."""
    spark = spark_session.start("turnback-savepoint", given.scratch)
    spark.range(10).groupBy("id").count().collect()
    savepoint = None if given.phase == EMPTY else given.savepoint(given.phase)
    files = str(given.check(given.phase) / "parquet" / "*")
    started = time.monotonic()
    ran = turnback_job.start_from(spark, place, files, savepoint)
    seconds = time.monotonic() - started
    check("records", ran.records, given.dataset.shape.checked)
    return {"seconds": seconds}


def _take(client: JobClient, given: SavepointArguments, format: str) -> tuple[float, float]:
    """Take a savepoint after enough epochs without one; when it was asked for, and was there."""
    # One epoch may still overlap the savepoint before, and one may have to end yet.
    _wait_for_epochs(client, EPOCHS_BEFORE + 2)
    started = time.time()
    client.trigger_savepoint(given.savepoint(format), SavepointFormat(format)).result()
    ended = time.time()
    if len(client.report.epochs) >= given.dataset.shape.batches:
        raise RuntimeError("the input ended before the savepoint was complete")
    return started, ended


def _wait_for_epochs(client: JobClient, number: int) -> None:
    wanted = len(client.report.epochs) + number
    while len(client.report.epochs) < wanted:
        if client.done():
            client.result()
            raise RuntimeError("the job has ended by itself")
        time.sleep(0.02)


def _measured(
    given: SavepointArguments, format: str, spans: Sequence[Span], started: float, ended: float
) -> Saved:
    before = [span for span in spans if span.end <= started][-EPOCHS_BEFORE:]
    return Saved(
        format=format,
        seconds=ended - started,
        bytes=directory_bytes(given.savepoint(format)),
        rate_before=rate(before),
        rate_during=rate(span for span in spans if span.overlaps(started, ended)),
    )


def _check_savepoint(given: SavepointArguments, format: str, first_epoch: int) -> None:
    """Check what can be read off the files, and write the batch that checks the rest.

    An epoch is a batch, so the number of the savepoint's epoch says which counts it holds.
    """
    directory = given.savepoint(format)
    batches = SavepointDirectory.locate(directory).load().epoch - first_epoch + 1
    counts = given.dataset.counts(range(batches))
    given.dataset.write_check(given.check(format), counts)
    if format == CANONICAL:
        values = parquet.read_table(directory / "state" / "count" / "count", columns=["value"])
        check("keys in the savepoint", values.num_rows, given.dataset.shape.keys)
        check("sum of counts", pc.sum(values["value"]).as_py(), int(counts.sum()))


def main() -> None:
    given = savepoint_arguments.parse(__doc__)
    place = Place("rocksdb", given.scratch / f"job-{given.phase}", given.scratch / given.phase)
    run = save if given.phase == SAVE else start
    print(json.dumps(run(given, place)), flush=True)


if __name__ == "__main__":
    main()
