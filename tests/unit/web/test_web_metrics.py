from prometheus_client.parser import text_string_to_metric_families

from fake_job import schema
from turnback.job.directory import JobDirectory
from turnback.job.history import History, Restarting
from turnback.job.status import JobState, Metrics, StatusUpdate
from turnback.web.metrics import JOB_METRICS, OPERATOR_METRICS

JOB = "flink_jobmanager_job_"
OPERATOR = "flink_taskmanager_job_task_operator_"


def scrape(browser) -> dict[str, dict[str, float]]:
    """Values by metric and by the labels that are not ids."""
    response = browser.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(response.text):
        assert family.type == "gauge"  # as Flink's own reporter does, counters included
        for sample in family.samples:
            labels = [v for k, v in sample.labels.items() if k not in ("job_id", "operator_name")]
            found.setdefault(sample.name, {})["/".join(labels)] = sample.value
    return found


def test_a_running_job(world, browser):
    found = scrape(browser)
    values = {
        "totalNumberOfCheckpoints": 42,
        "numberOfCompletedCheckpoints": 41,
        "numberOfFailedCheckpoints": 1,
        "numberOfInProgressCheckpoints": 0,
        "lastCheckpointDuration": 30,
        "lastCheckpointSize": 200,
        "lastCheckpointFullSize": 2000,
        "lastCompletedCheckpointId": world.numbers[-1],
        "lastCheckpointRestoreTimestamp": world.likes.directory.attempt(1).started_ms,
        "numRestarts": 3,
        "fullRestarts": 3,
        "uptime": 60_000,
        "runningTime": 60_000,
        "downtime": 0,
    }
    assert {name: found[JOB + name]["likes"] for name in values} == values
    assert found["flink_jobmanager_numRunningJobs"] == {"": 1}
    assert found["turnback_savepoints"]["likes"] == 1
    operator = {"numRecordsIn": 10, "numRecordsOut": 7, "currentInputWatermark": 99}
    got = {name: v for name in operator for k, v in found[OPERATOR + name].items() if "count" in k}
    assert got == operator
    assert found["turnback_source_malformed_records"] == {"likes/events": 6}
    load = {"busy_ratio": 0.3, "busiest_task_ratio": 0.5, "skew": 1.9}
    for name, value in load.items():
        assert found[f"turnback_operator_{name}"] == {"likes/count": value}
    assert found["turnback_job_busy_ratio"]["likes"] == 0.9


def test_a_checkpoint_whose_numbers_are_not_recorded_yet(world, browser):
    newest = world.likes.checkpoint((schema(), {"dan": 5})).manifest.number
    update = StatusUpdate(checkpoint=newest)
    world.likes.directory.write_status(JobState.RUNNING, world.likes.info.job_id, update)
    found = scrape(browser)
    assert found[JOB + "lastCompletedCheckpointId"]["likes"] == newest
    assert found[JOB + "lastCheckpointDuration"]["likes"] == 30
    assert found[JOB + "lastCheckpointSize"]["likes"] == 200


def test_a_job_that_has_ended(browser):
    found = scrape(browser)
    name = "team/a job"
    for metric in ("uptime", "downtime", "lastCheckpointDuration", "lastCompletedCheckpointId"):
        assert found[JOB + metric][name] == -1
    assert found[JOB + "lastCheckpointRestoreTimestamp"][name] == -1
    assert found[JOB + "runningTime"][name] == 0
    assert found["turnback_job_busy_ratio"][name] == -1


def test_every_job_is_in_one_state(browser):
    states = scrape(browser)["turnback_job_state"]
    assert {key for key, value in states.items() if value == 1} == {
        "likes/RUNNING",
        "team/a job/FAILED",
        "broken/UNREADABLE",
    }
    assert "likes/LOST" in states


def test_a_job_that_cannot_be_read_does_not_hide_the_others(world, browser):
    (world.root / "team%2Fa%20job" / "program.json").write_bytes(b"{")
    (world.root / "team%2Fa%20job" / "status.json").write_bytes(b"{")
    found = scrape(browser)
    assert found["turnback_job_readable"] == {"broken": 0, "likes": 1, "team/a job": 0}
    assert set(found[JOB + "numRestarts"]) == {"likes"}


def test_a_job_that_restarts_is_down(world, browser):
    directory = world.likes.directory
    attempt = directory.status().attempt
    History(world.likes.storage, attempt + 1, world.clock).record(Restarting("boom", 10))
    directory.write_status(
        JobState.RESTARTING, world.likes.info.job_id, StatusUpdate(attempt=attempt + 1)
    )
    directory.record_attempt(attempt + 1)
    world.clock.advance(5_000)
    found = scrape(browser)
    assert found[JOB + "downtime"]["likes"] == 5_000
    assert found[JOB + "uptime"]["likes"] == 0


def test_hostile_names_are_escaped(world, browser):
    name = 'x"} evil 1 \\ {'
    directory = JobDirectory.locate(str(world.root), name, clock=world.clock)
    directory.write_status(
        JobState.RUNNING, directory.open().job_id, StatusUpdate(metrics=Metrics(completed=5))
    )
    assert scrape(browser)[JOB + "numberOfCompletedCheckpoints"][name] == 5


def test_the_tables_hold_what_is_shown(browser):
    shown = {name for name in scrape(browser) if name not in JOB_METRICS}
    assert shown - set(OPERATOR_METRICS) == {
        "flink_jobmanager_numRunningJobs",
        "turnback_job_state",
        "turnback_job_readable",
    }


def test_no_jobs_at_all(tmp_path):
    from web_support import TOKEN, Browser

    from turnback.views.jobs import Jobs
    from turnback.web.server import create_app
    from turnback.web.site import Site

    jobs = Jobs(str(tmp_path / "nothing"))
    browser = Browser(create_app(Site(jobs=jobs, token=TOKEN)))
    assert scrape(browser)["flink_jobmanager_numRunningJobs"] == {"": 0}
    assert browser.api("/jobs").json() == []
    assert browser.api("/savepoints").json() == []
