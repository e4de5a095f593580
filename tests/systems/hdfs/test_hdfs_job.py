"""A job on Spark with its directory on HDFS, while its processes and the cluster are killed."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.driver import Driver
from services.hdfs import HdfsCluster
from turnback.checkpoint.log import CheckpointLog
from turnback.job.directory import JobDirectory
from verification import verify

JOB = Path(__file__).with_name("hdfs_job.py")
FILES = 14
KEYS = 4
EACH = 5
"""Numbers of a key in a file."""
EXPECTED = [(f"k{key}", n, n - 1) for key in range(KEYS) for n in range(FILES * EACH)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "in"
    directory.mkdir()
    for file in range(FILES):
        numbers = range(file * EACH, (file + 1) * EACH)
        rows = [json.dumps({"key": f"k{key}", "n": n}) for n in numbers for key in range(KEYS)]
        path = directory / f"{file:03}.json"
        path.write_text("\n".join(rows))
        os.utime(path, (file, file))  # Spark reads files in the order of their times
    return directory


class Place:
    """The job of a test: its drivers, and what it has written."""

    def __init__(self, root: str, source: Path, directory: Path, java: str) -> None:
        self.root = root
        self._source = source
        self._directory = directory
        self._java = java
        self._drivers: list[Driver] = []

    def start(self, **settings: object) -> Driver:
        environment = {
            "JDK_JAVA_OPTIONS": self._java,
            "SPARK_MASTER": "local[2]",
            "TURNBACK_CONF_PARALLELISM_DEFAULT": "2",
            "PYTHONPATH": f"{JOB.parent}:{Path(__file__).parents[3] / 'src'}",
        }
        place = self._directory / f"driver-{len(self._drivers)}"
        paths = {"root": self.root, "input": str(self._source), "output": "out"} | settings
        paths["output"] = str(self._directory / str(paths["output"]))
        arguments = [json.dumps(paths)]
        driver = Driver(arguments, place, place / "gate", environment, JOB)
        self._drivers.append(driver)
        return driver

    def rows(self, output: str = "out") -> list[tuple[str, int, int]]:
        """What an independent reader finds in the sink."""
        found = (self._directory / output).rglob("*.json")
        files = [path for path in found if not path.name.startswith((".", "_"))]
        rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        return [(row["key"], row["n"], row["before"]) for row in rows]

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()


@pytest.fixture
def place(hdfs: HdfsCluster, source: Path, tmp_path: Path, java: str) -> Iterator[Place]:
    made = Place(hdfs.root(), source, tmp_path, java)
    yield made
    made.close()


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
