"""Flink's savepoints while the stream goes on, and starts from them in new processes.

The job is SQL, so all of it runs in the JVM. A start from a savepoint has the rows of some keys
handed to this program instead of all to a sink: `table.exec.uid.generation` makes Flink find the
state again.
"""

# PyFlink is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import json
import time
from dataclasses import asdict
from platform import python_version

from pyflink.version import __version__ as flink_version

from benchmarks.engines import flink_sql, savepoint_arguments
from benchmarks.engines.flink_feed import FlinkFeed
from benchmarks.engines.flink_rest import FlinkRest
from benchmarks.engines.flink_sql import Running
from benchmarks.engines.savepoint_arguments import SAVE, SavepointArguments
from benchmarks.saved import EMPTY, FORMATS, Saved, directory_bytes

AHEAD = 3_000_000
"""Unread records in the directory: what Flink reports as read is some seconds behind."""
WARMUP_S, BEFORE_S = 3, 8
SETTLE_S = 0.5
DURING_S = 2
"""Least time over which records are counted: Flink's counters are a moment behind."""


def save(given: SavepointArguments) -> dict[str, object]:
    """Load the state, go on without end, and take a savepoint of each format meanwhile."""
    events = given.scratch / "events"
    events.mkdir()
    interval = {"execution.checkpointing.interval": "1 s"}
    job = flink_sql.start(given.scratch, events, FlinkRest(), interval)
    feed = FlinkFeed(given.dataset, events, AHEAD, job.read)
    feed.load()
    job.wait_until_read(feed.records)
    saved = [_take(given, job, feed, format) for format in FORMATS]
    job.client.cancel().result()
    given.dataset.write_check(given.check(EMPTY), given.dataset.counts(()) * 0)
    return {
        "savepoints": [asdict(each) for each in saved],
        "versions": {"flink": flink_version, "python": python_version()},
    }


def start(given: SavepointArguments) -> dict[str, object]:
    """Start another job; timed from its submission to its first row, which a checkpoint covers.

    The job first reads what the one before it had not read yet, then the batch that checks it.
    """
    empty = given.phase == EMPTY
    savepoint = None if empty else given.savepoint(given.phase)
    check_files, step = given.check(given.phase) / "csv", given.dataset.shape.check_step
    seconds = flink_sql.start_checked(given.scratch, check_files, savepoint, step, known=not empty)
    return {"seconds": seconds}


def _take(given: SavepointArguments, job: Running, feed: FlinkFeed, format: str) -> Saved:
    """Take a savepoint while there is always something to read."""
    with feed:
        time.sleep(WARMUP_S)
        before = _moment(job)
        time.sleep(BEFORE_S)
        rate_before = _rate(before, _moment(job))
    # What is in the directory now belongs to the savepoint, read or not: what comes later must
    # not. So nothing comes for a moment, in which the job still has enough to read.
    time.sleep(SETTLE_S)
    target = given.savepoint(format)
    batches = feed.batches
    start, started = _moment(job), time.monotonic()
    request = job.trigger_savepoint(target, format)
    time.sleep(SETTLE_S / 2)
    with feed:
        request.wait()
        seconds = time.monotonic() - started
        time.sleep(max(0, DURING_S - seconds))
        rate_during = _rate(start, _moment(job))
    given.dataset.write_check(given.check(format), given.dataset.csv_counts(range(batches)))
    return Saved(format, seconds, directory_bytes(target), rate_before, rate_during)


def _moment(job: Running) -> tuple[float, int]:
    return time.monotonic(), job.read()


def _rate(start: tuple[float, int], end: tuple[float, int]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def main() -> None:
    given = savepoint_arguments.parse(__doc__)
    run = save if given.phase == SAVE else start
    print(json.dumps(run(given)), flush=True)


if __name__ == "__main__":
    main()
