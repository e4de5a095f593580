"""The count in Flink SQL, all of it in the JVM, over files that appear in a directory."""

# PyFlink is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import time
from pathlib import Path

from pyflink.common import JobClient
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment, TableResult

from benchmarks.engines import flink_settings
from benchmarks.engines.flink_check import FlinkCheck
from benchmarks.engines.flink_rest import FlinkRest

QUERY = "SELECT post, COUNT(*) AS n FROM events GROUP BY post"
# PyFlink takes rows one by one, slowly: only those to be checked. A filter by the key alone would
# be moved before the aggregation, which would be another job; `n` is always positive.
CHECK_QUERY = (
    f"SELECT post, n FROM ({QUERY}) "
    "WHERE MOD(CAST(SUBSTRING(post FROM 6) AS BIGINT), {step}) < SIGN(n)"
)
OPERATOR = "GroupAggregate"
KEY_GROUPS = 128
IDLE_S = 2
LOAD_S = 600


class Running:
    """The job while it counts, and how much it has read."""

    def __init__(self, result: TableResult, rest: FlinkRest) -> None:
        client = result.get_job_client()
        assert client is not None
        self.client: JobClient = client
        self._rest = rest
        self._id = str(client.get_job_id())

    def read(self) -> int:
        return self._rest.records_read(self._id, OPERATOR)

    def checkpoints(self) -> int:
        return self._rest.checkpoints(self._id)

    def wait_until_read(self, records: int) -> None:
        self._rest.wait_until_read(self._id, OPERATOR, records, LOAD_S)

    def wait_until_idle(self) -> None:
        before = -1
        while (read := self.read()) != before:
            before = read
            time.sleep(IDLE_S)

    def trigger_savepoint(self, target: Path, format: str) -> SavepointRequest:
        types = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
        target.mkdir(parents=True)
        return SavepointRequest(
            self.client._j_job_client.triggerSavepoint(
                target.as_uri(), types.valueOf(format.upper())
            )
        )


class SavepointRequest:
    """PyFlink's `trigger_savepoint` has no format: this is the Java method's future."""

    def __init__(self, future: object) -> None:
        self._future = future

    def wait(self) -> None:
        """Return when the savepoint is complete; raises if it failed."""
        while not self._future.isDone():  # type: ignore[attr-defined]
            time.sleep(0.02)
        self._future.get()  # type: ignore[attr-defined]


def start(scratch: Path, events: Path, rest: FlinkRest, more: dict[str, str]) -> Running:
    """Start the count over the files in `events`; rows go nowhere."""
    tables = _tables(scratch, events, {**rest.settings, **more})
    tables.execute_sql(
        "CREATE TABLE counts (post STRING, n BIGINT) WITH ('connector' = 'blackhole')"
    )
    return Running(tables.execute_sql(f"INSERT INTO counts {QUERY}"), rest)


def start_checked(
    scratch: Path, events: Path, savepoint: Path | None, step: int, *, known: bool
) -> float:
    """Start another job from a savepoint, if any, and check the counts of every `step`th key.

    Returns:
        Seconds from its submission to its first row, which Flink hands out when the checkpoint
        after it is complete.
    """
    rest = FlinkRest()
    settings = {**rest.settings, "execution.checkpointing.interval": "200 ms"}
    if savepoint is not None:
        (directory,) = savepoint.iterdir()
        settings["execution.state-recovery.path"] = directory.as_uri()
    tables = _tables(scratch, events, settings)
    started = time.monotonic()
    result = tables.execute_sql(CHECK_QUERY.format(step=step))
    job = Running(result, rest)
    check = FlinkCheck(events, known=known, wait_until_idle=job.wait_until_idle)
    return check.run(result) - started


def _tables(scratch: Path, events: Path, more: dict[str, str]) -> TableEnvironment:
    settings = {
        **flink_settings.common(scratch),
        "pipeline.max-parallelism": str(KEY_GROUPS),
        "table.exec.uid.generation": "ALWAYS",
        **more,
    }
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance()
        .in_streaming_mode()
        .with_configuration(flink_settings.configuration(settings))
        .build()
    )
    tables.execute_sql(
        "CREATE TABLE events (post STRING, kind STRING, amount BIGINT) WITH ("
        f"'connector' = 'filesystem', 'path' = '{events.as_uri()}', "
        "'source.monitor-interval' = '100 ms', 'format' = 'csv')"
    )
    return tables
