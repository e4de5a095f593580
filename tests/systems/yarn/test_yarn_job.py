"""A job on YARN with its directory on HDFS, in client and in cluster mode, whose processes die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from yarn_place import JOB, YarnPlace

from services.hdfs import HdfsCluster
from services.yarn import YarnCluster
from verification import verify

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def place(tmp_path: Path, yarn: YarnCluster, hdfs: HdfsCluster, java: str) -> Iterator[YarnPlace]:
    made = YarnPlace(tmp_path, yarn, hdfs, java)
    yield made
    made.close()


def test_client_mode(place: YarnPlace) -> None:
    place.feed()
    job = place.run()
    assert [found["name"] for found in place.ask("list")] == [JOB]
    place.in_mid_epoch(lambda: place.an_executor().kill())
    place.await_complete()
    place.in_mid_epoch(lambda: os.kill(job["driver"]["pid"], signal.SIGKILL))
    place.await_complete()
    assert "starts from checkpoint" in place.turnback("logs", JOB)
    taken = place.ask("savepoint", JOB)
    assert taken["path"].startswith(f"{place.root}-savepoints/")
    place.feed()
    place.await_complete()
    place.turnback("stop", JOB, "--yes")
    assert place.ask("status", JOB)["summary"]["state"] == "FINISHED"
    assert verify(place.storage) == []


def test_cluster_mode_counts_its_start_once(place: YarnPlace) -> None:
    place.feed()
    application = place.submit(fresh=True)
    print(place._yarn.state(application))
    place.await_complete()
    place.in_mid_epoch(lambda: place.master(application, 1).kill())
    place.await_complete()
    place.in_mid_epoch(lambda: place.master(application, 2).kill())
    place.await_complete()
    print(place.turnback("list", "--root", place.root))
    print(place.turnback("logs", JOB, "--root", place.root))
    print(place.attempts())
    place.turnback("savepoint", JOB)
    place.turnback("stop", JOB, "--yes")
