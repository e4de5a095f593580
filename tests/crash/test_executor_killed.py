"""Failures below the driver, which Spark mends without a restart of the job: fault 11 and D4."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.conftest import MakePlace
from crash.driver import JAVA_OPTIONS, Driver, parent
from crash.place import Place
from services.spark import SparkCluster, spark_cluster

pytestmark = pytest.mark.timeout(900)

EPOCHS, TASKS = 8, 4
"""Two keyed levels of two partitions make four tasks with state an epoch."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with spark_cluster(directory, environment={"JDK_JAVA_OPTIONS": JAVA_OPTIONS}) as running:
        yield running


def start(job: Place, cluster: SparkCluster, *arguments: str) -> Driver:
    settings = [f"--conf={key}={value}" for key, value in cluster.settings.items()]
    return job.start("--master", cluster.master, *settings, *arguments)


def test_state_is_found_at_home_on_a_cluster(place: MakePlace, cluster: SparkCluster) -> None:
    job = place(EPOCHS)
    driver = start(job, cluster)
    assert driver.wait() == 0, driver.errors
    job.assert_settled(driver.report)
    found = driver.report["found"]
    print(f"found: {found}")
    assert sum(found.values()) == EPOCHS * TASKS
    # A store is built once where a partition comes to live, and once more after a merge.
    assert found["rebuilt"] <= 2 * TASKS * len(cluster.pids)
    assert found["home"] + found["caught-up"] >= EPOCHS * TASKS / 2


def test_fault_11_executor_killed_in_mid_epoch(place: MakePlace, cluster: SparkCluster) -> None:
    job = place(EPOCHS)
    marker = job.base / "marker"
    with job.watched():
        driver = start(job, cluster, "--at", "k00:5", "--slow", str(marker))
        driver.until_running(marker.exists, "come to the element")
        executor = parent(parent(int(marker.read_text())))
        before = cluster.executors()
        assert executor in before
        os.kill(executor, signal.SIGKILL)
        driver.until(lambda: executor not in cluster.executors(), "lose the executor")
        assert driver.wait() == 0, driver.errors
    assert driver.report["attempts"] == 1
    assert driver.report["epochs"] == list(range(1, EPOCHS + 1))
    assert not job.examine(), job.examine()
    job.assert_settled(driver.report)


def test_d4_a_task_that_fails_once_does_not_restart_the_job(place: MakePlace) -> None:
    job = place(6)
    marker: Path = job.base / "marker"
    driver = job.start("--master=local[2,4]", "--at", "k00:5", "--fail", str(marker))
    assert driver.wait() == 0, driver.errors
    assert marker.exists()
    assert driver.report["attempts"] == 1
    job.assert_settled(driver.report)
