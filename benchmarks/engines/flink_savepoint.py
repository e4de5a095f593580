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
from pathlib import Path
from platform import python_version

from pyflink.common import Configuration, JobClient
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment, TableResult
from pyflink.version import __version__ as flink_version

from benchmarks.engines import savepoint_arguments
from benchmarks.engines.flink_check import FlinkCheck
from benchmarks.engines.flink_feed import FlinkFeed
from benchmarks.engines.flink_rest import FlinkRest
from benchmarks.engines.savepoint_arguments import SAVE, SavepointArguments
from benchmarks.saved import EMPTY, FORMATS, Saved, directory_bytes
from benchmarks.workload import PARALLELISM

QUERY = "SELECT post, COUNT(*) AS n FROM events GROUP BY post"
# PyFlink takes rows one by one, slowly: only those to be checked. A filter by the key alone would
# be moved before the aggregation, which would be another job; `n` is always positive.
CHECK_QUERY = (
    f"SELECT post, n FROM ({QUERY}) "
    "WHERE MOD(CAST(SUBSTRING(post FROM 6) AS BIGINT), {step}) < SIGN(n)"
)
OPERATOR = "GroupAggregate"
KEY_GROUPS = 128
AHEAD = 3_000_000
"""Unread records in the directory: what Flink reports as read is some seconds behind."""
WARMUP_S, BEFORE_S = 3, 8
SETTLE_S = 0.5
DURING_S = 2
"""Least time over which records are counted: Flink's counters are a moment behind."""
IDLE_S = 2
LOAD_S = 600


class Running:
    """The job while it counts, and how much it has read."""

    def __init__(self, client: JobClient, rest: FlinkRest) -> None:
        self.client = client
        self._rest = rest
        self._id = str(client.get_job_id())

    def read(self) -> int:
        return self._rest.records_read(self._id, OPERATOR)

    def wait_until_read(self, records: int) -> None:
        self._rest.wait_until_read(self._id, OPERATOR, records, LOAD_S)

    def wait_until_idle(self) -> None:
        before = -1
        while (read := self.read()) != before:
            before = read
            time.sleep(IDLE_S)


def save(given: SavepointArguments) -> dict[str, object]:
    """Load the state, go on without end, and take a savepoint of each format meanwhile."""
    rest = FlinkRest()
    events = given.scratch / "events"
    events.mkdir()
    tables = _tables(given, events, {**rest.settings, "execution.checkpointing.interval": "1 s"})
    tables.execute_sql(
        "CREATE TABLE counts (post STRING, n BIGINT) WITH ('connector' = 'blackhole')"
    )
    job = Running(_client(tables.execute_sql(f"INSERT INTO counts {QUERY}")), rest)
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

    Flink hands out rows when the checkpoint after them is complete. The job first reads what the
    one before it had not read yet, then the batch that checks it.
    """
    rest = FlinkRest()
    settings = {**rest.settings, "execution.checkpointing.interval": "200 ms"}
    if given.phase != EMPTY:
        (savepoint,) = given.savepoint(given.phase).iterdir()
        settings["execution.state-recovery.path"] = savepoint.as_uri()
    check_files = given.check(given.phase) / "csv"
    tables = _tables(given, check_files, settings)
    started = time.monotonic()
    result = tables.execute_sql(CHECK_QUERY.format(step=given.dataset.shape.check_step))
    job = Running(_client(result), rest)
    check = FlinkCheck(check_files, known=given.phase != EMPTY, wait_until_idle=job.wait_until_idle)
    return {"seconds": check.run(result) - started}


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
    target.mkdir(parents=True)
    batches = feed.batches
    types = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
    start, started = _moment(job), time.monotonic()
    future = job.client._j_job_client.triggerSavepoint(
        target.as_uri(), types.valueOf(format.upper())
    )
    time.sleep(SETTLE_S / 2)
    with feed:
        while not future.isDone():
            time.sleep(0.02)
        seconds = time.monotonic() - started
        time.sleep(max(0, DURING_S - seconds))
        rate_during = _rate(start, _moment(job))
    future.get()
    given.dataset.write_check(given.check(format), given.dataset.csv_counts(range(batches)))
    return Saved(format, seconds, directory_bytes(target), rate_before, rate_during)


def _moment(job: Running) -> tuple[float, int]:
    return time.monotonic(), job.read()


def _rate(start: tuple[float, int], end: tuple[float, int]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def _tables(given: SavepointArguments, events: Path, more: dict[str, str]) -> TableEnvironment:
    settings = {
        "parallelism.default": str(PARALLELISM),
        "pipeline.max-parallelism": str(KEY_GROUPS),
        "pipeline.object-reuse": "true",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": (given.scratch / "checkpoints").as_uri(),
        "taskmanager.memory.managed.size": "1g",
        "io.tmp.dirs": str(given.scratch),
        "restart-strategy.type": "none",
        "table.exec.uid.generation": "ALWAYS",
        **more,
    }
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance()
        .in_streaming_mode()
        .with_configuration(configuration)
        .build()
    )
    tables.execute_sql(
        "CREATE TABLE events (post STRING, kind STRING, amount BIGINT) WITH ("
        f"'connector' = 'filesystem', 'path' = '{events.as_uri()}', "
        "'source.monitor-interval' = '100 ms', 'format' = 'csv')"
    )
    return tables


def _client(result: TableResult) -> JobClient:
    client = result.get_job_client()
    assert client is not None
    return client


def main() -> None:
    given = savepoint_arguments.parse(__doc__)
    run = save if given.phase == SAVE else start
    print(json.dumps(run(given)), flush=True)


if __name__ == "__main__":
    main()
