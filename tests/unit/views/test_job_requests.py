"""What can be asked of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_job import START, Driver, dead, elsewhere, living, seen
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    JobNotRunningError,
    NotFoundError,
)
from turnback.job.history import AttemptStarted
from turnback.job.request import RequestKind, RequestOutcome, RequestProgress, RequestState
from turnback.job.status import JobState

# -- requests


def test_requests_go_from_waiting_to_their_end(driver: Driver) -> None:
    driver.say(JobState.RUNNING)
    job = seen(driver)
    row = job.submit(RequestKind.SAVEPOINT, target="/tmp/sp", label="l", note="n")
    assert (row.kind, row.state, row.savepoint) == ("savepoint", "WAITING", True)
    (request,) = driver.requests.open()
    assert (request.id, request.target, request.label, request.note) == (
        row.id,
        "/tmp/sp",
        "l",
        "n",
    )
    driver.requests.report(row.id, RequestProgress(1, 4, 100, 55))
    running = job.request(row.id)
    assert (running.state, running.done, running.total) == ("RUNNING", 1, 4)
    assert (running.bytes, running.started_ms) == (100, 55)
    driver.requests.finish(row.id, RequestOutcome(RequestState.COMPLETED, path="file:///tmp/a%20b"))
    ended = job.request(row.id)
    assert (ended.state, ended.path, ended.ended_ms) == ("COMPLETED", "/tmp/a b", START)
    later = job.submit(RequestKind.CANCEL)
    driver.requests.finish(later.id, RequestOutcome(RequestState.FAILED, error="no"))
    assert [(r.id, r.state, r.error) for r in job.requests()] == [
        (later.id, "FAILED", "no"),
        (row.id, "COMPLETED", None),
    ]


@pytest.mark.parametrize("id_", ["", "no", "../job", "a/b", "\0", "x" * 100, None, 7])
def test_a_request_that_is_not_there_is_not_found(driver: Driver, id_: object) -> None:
    with pytest.raises(NotFoundError):
        seen(driver).request(id_)  # type: ignore[arg-type]


def test_a_damaged_request_is_shown_as_such(driver: Driver) -> None:
    job = seen(driver.say(JobState.RUNNING))
    bad, good = job.submit(RequestKind.SAVEPOINT), job.submit(RequestKind.SAVEPOINT)
    (driver.path / f"ops/{bad.id}.json").write_bytes(b"damaged")
    first, second = job.requests()
    assert (first.id, first.state) == (good.id, "WAITING")
    assert (second.id, second.kind, second.created_ms) == (bad.id, "unreadable", START)
    assert second.error is not None
    assert bad.id in second.error
    # Looking is not serving: the driver, not we, ends what it cannot read.
    assert driver.requests.result(bad.id) is None


@pytest.mark.parametrize("state", [s for s in JobState if s.is_terminal])
def test_nothing_can_be_asked_of_a_job_that_ended(driver: Driver, state: JobState) -> None:
    driver.say(state)
    for kind in RequestKind:
        with pytest.raises(JobNotRunningError, match=rf"is {state.value}.*turnback run"):
            seen(driver).submit(kind)
    assert seen(driver).requests() == []


def test_nothing_can_be_asked_of_a_lost_job(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=dead()).say(JobState.RUNNING)
    with pytest.raises(JobNotRunningError, match=r"is LOST.*died.*turnback run"):
        seen(driver).submit(RequestKind.SAVEPOINT)
    with living() as supervisor:
        driver.say(JobState.RUNNING, supervisor=supervisor)
        assert seen(driver).submit(RequestKind.SAVEPOINT).state == "WAITING"


def test_nothing_can_be_asked_before_a_driver_has_spoken(driver: Driver) -> None:
    with pytest.raises(JobNotRunningError, match="never had"):
        seen(driver).submit(RequestKind.STOP)


def test_a_driver_elsewhere_can_be_asked(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=elsewhere()).say(JobState.RUNNING)
    driver.clock.advance(600_000)
    assert seen(driver).submit(RequestKind.STOP).state == "WAITING"


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, False),
        ({"state.savepoints.dir": "/sp"}, True),
        ({"execution.checkpointing.savepoint-dir": "/sp"}, True),
        ({"state.savepoints.dir": "/sp", "savepoints.on-stop": "false"}, False),
        ({"state.savepoints.dir": "/sp", "savepoints.on-stop": "true"}, True),
        ({"savepoints.on-stop": "true"}, False),
        ({"state.savepoints.dir": ""}, False),
    ],
)
def test_a_stop_takes_a_savepoint_if_configured(
    driver: Driver, settings: dict[str, str], taken: bool
) -> None:
    driver.runs(*((k, v, "code") for k, v in settings.items())).say(JobState.RUNNING)
    job = seen(driver)
    assert job.submit(RequestKind.STOP).savepoint is taken
    assert job.submit(RequestKind.STOP, savepoint=True).savepoint
    assert not job.submit(RequestKind.STOP, savepoint=False).savepoint
    assert not job.submit(RequestKind.CANCEL).savepoint
    assert job.submit(RequestKind.CANCEL, target="/there").savepoint
    assert job.submit(RequestKind.STOP, target="/there").savepoint
    assert job.submit(RequestKind.STOP, drain=True).savepoint


def test_a_setting_that_has_nothing_to_do_with_it_keeps_nobody_from_asking(driver: Driver) -> None:
    driver.runs(("savepoints.schedule.cron", "nonsense", "code")).say(JobState.RUNNING)
    assert seen(driver).submit(RequestKind.CANCEL).state == "WAITING"


def test_a_savepoint_is_written_as_configured(driver: Driver) -> None:
    driver.runs(("savepoints.format", "native", "code")).say(JobState.RUNNING)
    seen(driver).submit(RequestKind.SAVEPOINT)
    seen(driver).submit(RequestKind.SAVEPOINT, format=SavepointFormat.CANONICAL)
    types = [request.type for request in driver.requests.open()]
    assert sorted(types) == [SavepointFormat.CANONICAL, SavepointFormat.NATIVE]


@pytest.mark.parametrize(
    "what",
    [
        {"kind": RequestKind.SAVEPOINT, "target": "relative/dir"},
        {"kind": RequestKind.SAVEPOINT, "target": "/a/../b"},
        {"kind": RequestKind.CANCEL, "drain": True},
        {"kind": RequestKind.STOP, "savepoint": False, "target": "/a"},
        {"kind": RequestKind.SAVEPOINT, "label": "a\nb"},
        {"kind": RequestKind.STOP, "savepoint": False, "drain": True},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    driver: Driver, what: dict[str, object]
) -> None:
    driver.say(JobState.RUNNING)
    with pytest.raises(ConfigurationError):
        seen(driver).submit(**what)  # type: ignore[arg-type]
    assert seen(driver).requests() == []


# -- snapshots


def test_a_snapshot_by_name_and_never_by_path(driver: Driver, tmp_path: Path) -> None:
    driver.attempt()
    number = driver.checkpoint()
    job = seen(driver)
    for text in ("latest", f"chk-{number}", str(number)):
        assert job.snapshot(text).name == f"chk-{number}"
    other = Driver(tmp_path, "other").attempt()
    path = f"{other.path}/checkpoints/chk-{other.checkpoint()}.json"
    for text in (path, f"file://{path}", "../other/checkpoints/chk-2.json", "chk-99", "nothing"):
        with pytest.raises(CheckpointNotFoundError):
            job.snapshot(text)


def test_an_attempt_started_event_without_snapshot_is_no_restore(driver: Driver) -> None:
    driver.attempt().happens(AttemptStarted(None))
    assert seen(driver).checkpoints().restored == 0


def test_a_driver_that_died_after_its_job_had_ended_leaves_no_doubt(
    driver: Driver, tmp_path: Path
) -> None:
    """Whoever waits gets the answer that the driver could not give any more."""
    driver.say(JobState.RUNNING)
    job = seen(driver)
    stop = job.submit(RequestKind.STOP, savepoint=True)
    lost = job.submit(RequestKind.CANCEL, savepoint=True)
    plain = job.submit(RequestKind.CANCEL)
    driver.savepoint(tmp_path / "sp", stop.id)
    assert job.request(stop.id).state == "WAITING"
    driver.say(JobState.FINISHED)
    done = job.request(stop.id)
    assert (done.state, done.path) == ("COMPLETED", str(tmp_path / "sp"))
    assert job.request(plain.id).state == "COMPLETED"
    assert job.request(lost.id).state == "WAITING"  # its driver may be about to answer
    assert driver.requests.result(stop.id) is None  # looking is not serving
    (driver.path / "status.json").write_bytes(b"{")
    assert job.request(stop.id).state == "WAITING"
