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


@pytest.mark.exhaustive
def test_a_start_in_cluster_mode_counts_once(place: YarnPlace, yarn: YarnCluster) -> None:
    """YARN repeats the whole command, and a job that began afresh again would count again."""
    place.settings |= {
        "spark.executor.instances": "1",
        "spark.executor.cores": "2",
    }  # it is cheaper
    place.feed()
    application = place.submit(fresh=True)
    place.await_complete()
    place.in_mid_epoch(lambda: place.a_master(application).kill())
    place.await_complete()
    first, *later = place.attempts()
    assert first.checkpoint is None
    assert later and all(attempt.checkpoint is not None for attempt in later)
    assert {attempt.start_id for attempt in [first, *later]} == {application}
    # From outside, by nothing but the root.
    (found,) = place.ask("list", "-yid", application)
    assert (found["name"], found["state"]) == (JOB, "RUNNING")
    assert f"yarn logs -applicationId {application}" in place.turnback("logs", JOB, code=3)
    assert application in place.turnback("stop", JOB, "-yid", "application_1_1", "--yes", code=3)
    taken = place.ask("savepoint", JOB, "-yid", application)
    assert taken["path"].startswith(f"{place.root}-savepoints/")
    place.turnback("stop", JOB, "--yes")
    place.until(lambda: yarn.state(application) == "FINISHED", "end as an application")
    assert verify(place.storage) == []


@pytest.mark.exhaustive
def test_client_mode_and_then_cluster_mode_from_its_savepoint(
    place: YarnPlace, yarn: YarnCluster
) -> None:
    place.feed()
    job = place.run()
    application = place.ask("status", JOB)["summary"]["application"]
    assert application in yarn.applications()
    place.in_mid_epoch(lambda: place.an_executor().kill())
    place.await_complete()
    place.in_mid_epoch(lambda: os.kill(job["driver"]["pid"], signal.SIGKILL))
    place.await_complete()
    assert "starts from chk-" in place.turnback("logs", JOB)
    (found,) = place.ask("list")
    assert (found["name"], found["state"]) == (JOB, "RUNNING")
    place.ask("savepoint", JOB)
    place.feed()
    place.await_complete()
    saved = place.ask("stop", JOB, "--yes")["path"]
    assert place.ask("status", JOB)["summary"]["state"] == "FINISHED"
    place.feed()
    application = place.submit(start_from=saved)
    place.await_complete()
    for _ in range(2):
        place.in_mid_epoch(lambda: place.a_master(application).kill())
        place.await_complete()
    begun = [attempt for attempt in place.attempts() if attempt.start_id == application]
    assert [attempt.snapshot is None for attempt in begun[:1]] == [False]
    assert all(attempt.checkpoint is not None for attempt in begun[1:])
    place.turnback("stop", JOB, "--no-savepoint", "--yes")
    assert verify(place.storage) == []
