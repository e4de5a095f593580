"""Failures below the driver, which Spark mends without a restart of the job: fault 11 and D4."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash import rows_job
from crash.conftest import MakePlace
from crash.driver import Driver, parent
from crash.place import Place
from services.kafka import KafkaBroker
from services.postgres import PASSWORD, PostgresServer
from services.spark import SparkCluster, spark_cluster
from verification import verify

pytestmark = pytest.mark.timeout(900)

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.quantile": "0.5",
}
EPOCHS, TASKS = 8, 4
"""Two keyed levels of two partitions make four tasks with state an epoch."""


@pytest.fixture(scope="module")
def cluster(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with spark_cluster(directory, environment={"JDK_JAVA_OPTIONS": java}) as running:
        yield running


def start(job: Place, cluster: SparkCluster, *arguments: str) -> Driver:
    settings = [f"--conf={key}={value}" for key, value in cluster.settings.items()]
    return job.start("--master", cluster.master, *settings, *arguments)


@pytest.mark.exhaustive
def test_state_is_found_at_home_on_a_cluster(on_spark: MakePlace, cluster: SparkCluster) -> None:
    job = on_spark(EPOCHS)
    driver = start(job, cluster)
    assert driver.wait() == 0, driver.errors
    job.assert_settled(driver.report)
    found = driver.report["found"]
    print(f"found: {found}")
    assert sum(found.values()) == EPOCHS * TASKS
    # A store is built once where a partition comes to live, and once more after a merge.
    assert found["rebuilt"] <= 2 * TASKS * len(cluster.pids)
    assert found["home"] + found["caught-up"] >= EPOCHS * TASKS / 2


def test_fault_11_executor_killed_in_mid_epoch(on_spark: MakePlace, cluster: SparkCluster) -> None:
    """In the second level, so that output of the first that others have read is lost as well.

    Spark makes it again. Whoever has read it before has read another attempt than whoever reads it
    now, so that the epoch has to be replayed.
    """
    job = on_spark(EPOCHS)
    marker = job.base / "marker"
    with job.watched():
        driver = start(job, cluster, "--where", "tally", "--at", "k00:5", "--slow", str(marker))
        driver.until_running(marker.exists, "come to the element")
        driver.until_running(lambda: first_tally_is_done(job), "end the task beside it")
        executor = executor_of(int(marker.read_text()))
        assert executor in cluster.executors()
        os.kill(executor, signal.SIGKILL)
        assert driver.wait() == 0, driver.errors
    assert "replaying epoch" in driver.log
    assert executor not in cluster.executors()
    assert driver.report["epochs"] == list(range(1, EPOCHS + 1))
    job.assert_settled(driver.report)


def first_tally_is_done(job: Place) -> bool:
    """Whether, in the newest epoch, one of the tasks of the second level has written its state."""
    epochs: dict[str, set[int]] = {"0": set(), "1": set()}
    for path in job.storage.list("state"):
        level, _, epoch, *_ = path.rpartition("/")[2].split("-")
        if epoch.isdecimal():  # else it is a merged file
            epochs[level].add(int(epoch))
    return bool(epochs["0"]) and max(epochs["0"]) in epochs["1"]


@pytest.mark.exhaustive
def test_fault_12_a_speculative_task_and_the_slow_one_both_write(
    on_spark: MakePlace, cluster: SparkCluster
) -> None:
    """What the loser writes, whenever that is, nobody ever sees; the next start removes it."""
    job = on_spark(EPOCHS)
    marker = job.base / "marker"
    settings = [f"--conf={key}={value}" for key, value in SPECULATION.items()]
    with job.watched():
        driver = start(job, cluster, *settings, "--at", "k00:5", "--slow", str(marker))
        driver.until_running(marker.exists, "come to the element")
        assert driver.wait() == 0, driver.errors
    tried = list(job.base.glob("marker.*"))
    assert len(tried) == 2, "no other worker has tried the element"
    assert driver.report["attempts"] == 1
    assert not job.examine(), job.examine()
    assert verify(job.storage) == []
    again = job.start()
    assert again.wait() == 0, again.errors
    job.assert_settled(again.report)


def test_rows_that_a_task_and_its_copy_both_prepare_come_once(
    java: str,
    cluster: SparkCluster,
    postgres: PostgresServer,
    kafka: KafkaBroker,
    tmp_path: Path,
) -> None:
    """In a table and in a topic, also if the first one dies with its executor after that."""
    topic = kafka.create_topic()
    expected = rows_job.write_input(tmp_path / "input")
    (tmp_path / "marks").mkdir()
    once = f"numbers (key, n) WHERE n = {rows_job.LOST - 1}"
    postgres.run(
        "DROP TABLE IF EXISTS numbers",
        "CREATE TABLE numbers (key text, n bigint)",
        # What the lost executor has prepared is in the way of its task's next attempt.
        f"CREATE UNIQUE INDEX ON {once}",
    )
    settings = [f"--conf={key}={value}" for key, value in SPECULATION.items()]
    to_kafka = ("--kafka", kafka.servers, "--topic", topic)
    driver = start_rows(tmp_path, cluster, postgres, java, *settings, *to_kafka)
    try:
        assert driver.wait() == 0, driver.errors
    finally:
        driver.kill()
    marks = {path.name for path in (tmp_path / "marks").iterdir()}
    before, after, lost = (
        {mark.partition("-")[2] for mark in marks if mark.startswith(f"{epoch}-")}
        for epoch in (rows_job.BEFORE, rows_job.AFTER, rows_job.LOST)
    )
    assert before == {"first", "copy-began", "copy-prepared", "first-prepared"}
    assert after == {"first", "first-prepared", "copy-began"}  # and then Spark ended it
    assert lost == {"first", "first-prepared"}
    assert sorted(postgres.query("SELECT key, n FROM numbers")) == expected
    records = [json.loads(value) for _, value in kafka.read(topic)]
    assert sorted((record["key"], record["n"]) for record in records) == expected
    assert postgres.prepared() == []


def start_rows(
    base: Path, cluster: SparkCluster, postgres: PostgresServer, java: str, *arguments: str
) -> Driver:
    settings = [f"--conf={key}={value}" for key, value in cluster.settings.items()]
    return Driver(
        [
            *("--master", cluster.master, "--base", str(base), *settings),
            *("--dsn", postgres.dsn, *arguments),
        ],
        base / "driver",
        base / "gate",
        {"JDK_JAVA_OPTIONS": java, "ROWS_PASSWORD": PASSWORD},
        Path(rows_job.__file__),
    )


@pytest.fixture
def expected(tmp_path: Path) -> list[tuple[str, int]]:
    """What a table is to have; the input and a place for marks are there."""
    (tmp_path / "marks").mkdir()
    return rows_job.write_input(tmp_path / "input")


@pytest.mark.exhaustive
def test_executors_killed_while_they_prepare_rows(
    java: str,
    cluster: SparkCluster,
    postgres: PostgresServer,
    tmp_path: Path,
    expected: list[tuple[str, int]],
) -> None:
    """Once before the server is asked to, and once before it has answered."""
    postgres.run("CREATE TABLE prepared_rows (key text, n bigint)")
    driver = start_rows(
        tmp_path, cluster, postgres, java, "--scene", "prepare", "--table", "prepared_rows"
    )
    try:
        assert driver.wait() == 0, driver.errors
    finally:
        driver.kill()
    marks = {path.name for path in (tmp_path / "marks").iterdir()}
    assert marks == {str(rows_job.BEFORE), str(rows_job.AFTER)}
    assert sorted(postgres.query("SELECT key, n FROM prepared_rows")) == expected
    assert postgres.prepared() == []


def test_an_executor_killed_between_two_commits_of_a_checkpoint(
    java: str,
    cluster: SparkCluster,
    postgres: PostgresServer,
    tmp_path: Path,
    expected: list[tuple[str, int]],
) -> None:
    """The driver commits one task's rows; the other's follow when the executor is gone."""
    marks = tmp_path / "marks"
    scene = ("--scene", "commit", "--interval", "100 ms", "--table", "committed_rows")
    postgres.run("CREATE TABLE committed_rows (key text, n bigint)")
    driver = start_rows(tmp_path, cluster, postgres, java, *scene)
    try:
        driver.until_running((marks / "committed").exists, "commit anything")
        driver.until_running((marks / "task-waits").exists, "come to the epoch beside it")
        executor = executor_of(int((marks / "task-waits").read_text()))
        assert executor in cluster.executors()
        some = postgres.query("SELECT key, n FROM committed_rows")
        assert some
        assert not (marks / "committed-more").exists()
        os.kill(executor, signal.SIGKILL)
        (marks / "killed").touch()
        assert driver.wait() == 0, driver.errors
    finally:
        driver.kill()
    assert sorted(postgres.query("SELECT key, n FROM committed_rows")) == expected
    assert postgres.prepared() == []


def executor_of(worker: int) -> int:
    """The executor that a Python worker works for: there is a daemon in between."""
    return parent(parent(worker))


@pytest.mark.exhaustive
def test_d4_a_task_that_fails_once_does_not_restart_the_job(on_spark: MakePlace) -> None:
    job = on_spark(6)
    marker = job.base / "marker"
    driver = job.start("--master=local[2,4]", "--at", "k00:5", "--fail", str(marker))
    assert driver.wait() == 0, driver.errors
    assert marker.exists()
    job.assert_settled(driver.report)
