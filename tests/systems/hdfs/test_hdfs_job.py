"""A job on Spark with its directory on HDFS, while its processes and the cluster are killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.hdfs import HdfsCluster
from systems.stored_job import EXPECTED, Place, write_source
from turnback.checkpoint.log import CheckpointLog
from turnback.job.directory import JobDirectory
from verification import verify


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "in")


@pytest.fixture
def place(hdfs: HdfsCluster, source: Path, tmp_path: Path, java: str) -> Iterator[Place]:
    made = Place(hdfs.root(), source, tmp_path, java)
    yield made
    made.close()


@pytest.mark.exhaustive
def test_a_job_killed_at_random_moments_is_exact(place: Place) -> None:
    moments = random.Random(7)
    for _ in range(2):
        before = len(place.rows())
        driver = place.start()
        driver.until_running(lambda before=before: len(place.rows()) > before, "go on")
        time.sleep(moments.uniform(0, 1))
        assert driver.process.poll() is None, "it was done before it was killed"
        driver.kill()
    last = place.start()
    assert last.wait() == 0, last.errors
    assert sorted(place.rows()) == EXPECTED
    storage = JobDirectory.locate(place.root, "numbers", {}).storage
    assert CheckpointLog(storage).latest().number > 3
    assert verify(storage) == []


def test_a_job_goes_on_when_the_cluster_has_crashed_and_is_back(
    place: Place, hdfs: HdfsCluster
) -> None:
    driver = place.start()
    driver.until_running(lambda: bool(place.rows()), "write anything")
    hdfs.crash()
    before = len(place.rows())
    time.sleep(2)
    hdfs.start()
    driver.until_running(lambda: len(place.rows()) > before, "go on")
    assert driver.wait() == 0, driver.errors
    assert sorted(place.rows()) == EXPECTED
    assert verify(JobDirectory.locate(place.root, "numbers", {}).storage) == []


@pytest.mark.exhaustive
def test_a_savepoint_on_hdfs_and_a_fork_of_it(place: Place) -> None:
    savepoint = f"{place.root}-savepoints/first"
    saving = place.start(save=savepoint)
    assert saving.wait() == 0, saving.errors
    saved = place.rows()
    assert saved
    fork = place.start(fork=savepoint, output="forked")
    assert fork.wait() == 0, fork.errors
    assert sorted(saved + place.rows("forked")) == EXPECTED
    assert place.rows() == saved
    for job in ("numbers", "forked"):
        assert verify(JobDirectory.locate(place.root, job, {}).storage) == []
