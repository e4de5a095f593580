"""How to test a job: the functions of social_media.py, without Spark. Copy and change it."""

import pytest
from social_media import Totals

from turnback import FileSink
from turnback.testing import DriverCrash, JobHarness, source


def program(env):
    events = source(env, "events", "post string, kind string")
    totals = events.key_by("post").process(Totals(), "post string, views bigint, clicks bigint")
    totals.uid("totals").sink_to(FileSink("/dashboard", "json")).uid("dashboard")


@pytest.fixture
def job(tmp_path):
    with JobHarness(program, tmp_path) as harness:
        harness.push("events", ("cats", "view"), ("cats", "click"), ("dogs", "view"))
        yield harness


def test_it_counts(job):
    assert sorted(job.output("dashboard")) == [("cats", 1, 0), ("cats", 1, 1), ("dogs", 1, 0)]
    assert job.state("totals", "views") == {"cats": 1, "dogs": 1}
    assert job.state("totals", "clicks") == {"cats": 1}


def test_it_goes_on_after_its_driver_was_killed(job):
    job.crash_at("after-manifest")
    with pytest.raises(DriverCrash):
        job.push("events", ("cats", "view"))
    job.start()
    assert job.state("totals", "views") == {"cats": 2, "dogs": 1}
    assert len(job.output("dashboard")) == 4  # nothing is missing, nothing is there twice


def test_it_goes_on_after_a_task_has_failed(job):
    job.fail_task("totals", ConnectionError("no route"))
    job.push("events", ("cats", "view"))
    assert job.report.attempts == 2
    assert job.state("totals", "views") == {"cats": 2, "dogs": 1}


@pytest.mark.parametrize("parallelism", [1, 5])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_it_can_be_rescaled(job, parallelism, backend):
    job.restart(parallelism=parallelism, state_backend=backend)
    job.push("events", ("dogs", "click"))
    assert job.output("dashboard")[-1] == ("dogs", 1, 1)


def test_it_can_be_turned_back(job):
    savepoint = job.savepoint()
    job.push("events", ("cats", "view"))
    job.stop()
    job.start(start_from=savepoint)
    assert job.report.restored_from == savepoint.as_uri()
    job.push("events", ("cats", "click"))  # after what was pushed since the savepoint
    assert job.state("totals", "views") == {"cats": 2, "dogs": 1}
