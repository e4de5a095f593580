"""Deleting jobs and savepoints over the API."""

import shutil

import pytest
from web_support import BEARER, TOKEN

from fake_job import Driver, FakeJob, dead
from turnback.job.status import JobState, StatusUpdate

TEAM = "team%2Fa%20job"


def error(response):
    return response.status_code, response.json()["error"]["kind"]


def end(world):
    world.likes.directory.write_status(JobState.CANCELED, world.likes.info.job_id, StatusUpdate())


def saved(world):
    return world.base / "saved" / "one"


def is_saved(world):
    return (saved(world) / "_metadata.json").is_file()


@pytest.fixture
def readable(world):
    """Without the job that cannot be read, which may need any savepoint."""
    shutil.rmtree(world.root / "broken")


def names(browser):
    return {row["name"] for row in browser.api("/jobs").json()}


def test_a_job_that_is_over_is_deleted_and_its_savepoints_are_kept(world, browser):
    assert error(browser.post("/jobs/likes/delete")) == (409, "JobInUseError")
    assert "likes" in names(browser)
    end(world)
    answer = browser.post("/jobs/likes/delete", {"savepoints": False})
    assert answer.status_code == 200
    deleted = answer.json()
    assert (deleted["job"], deleted["savepoints"]) == ("likes", [])
    assert deleted["kept"] == [str(saved(world))] and is_saved(world)
    assert deleted["files"] > 0
    assert "likes" not in names(browser)
    assert not (world.root / "likes").exists()
    assert error(browser.post("/jobs/likes/delete")) == (404, "JobNotFoundError")


def test_savepoints_go_with_their_job_only_if_that_is_said(world, browser, readable):
    end(world)
    deleted = browser.post("/jobs/likes/delete", {"savepoints": True}).json()
    assert (deleted["savepoints"], deleted["kept"]) == ([str(saved(world))], [])
    assert not is_saved(world)


def test_a_job_that_took_the_name_meanwhile_is_left_alone(world, browser):
    assert error(browser.post(f"/jobs/{TEAM}/delete", {"job_id": "another"})) == (409, "Conflict")
    assert "team/a job" in names(browser)
    id_ = browser.api(f"/jobs/{TEAM}").json()["summary"]["job_id"]
    assert browser.post(f"/jobs/{TEAM}/delete", {"job_id": id_}).status_code == 200
    assert "team/a job" not in names(browser)


def test_a_job_whose_directory_cannot_be_read_is_left_to_the_command_line(world, browser):
    answer = browser.post("/jobs/broken/delete")
    assert answer.status_code in (409, 500)
    assert (world.root / "broken" / "job.json").exists()


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        ("/jobs/nobody/delete", {}, (404, "JobNotFoundError")),
        ("/jobs/like/delete", {}, (404, "JobNotFoundError")),  # no beginning of a name
        ("/jobs/..%2F..%2Fsaved/delete", {}, (404, "JobNotFoundError")),
        ("/jobs/%2Fetc/delete", {}, (404, "JobNotFoundError")),
        ("/jobs/likes/delete", {"savepoints": "yes"}, (400, "BadRequest")),
        ("/jobs/likes/delete", {"force": True}, (400, "BadRequest")),
        ("/jobs/likes/savepoints/sp/delete", {}, (404, "NotFound")),
        ("/jobs/likes/savepoints/nice/delete", {}, (404, "NotFound")),  # its label
        ("/jobs/likes/savepoints/latest/delete", {}, (404, "NotFound")),
        ("/jobs/likes/savepoints/chk-2/delete", {}, (404, "NotFound")),
        ("/jobs/likes/savepoints/..%2F..%2Fsaved%2Fone/delete", {}, (404, "NotFound")),
        (f"/jobs/{TEAM}/savepoints/sp1/delete", {}, (404, "NotFound")),  # another job's
        ("/jobs/likes/savepoints/sp1/delete", {"path": "/etc"}, (400, "BadRequest")),
    ],
)
def test_wrong_names_and_bodies_delete_nothing(world, browser, path, body, wanted):
    assert error(browser.post(path, body)) == wanted
    assert names(browser) == {"likes", "team/a job", "broken"}
    assert is_saved(world)


def test_a_savepoint_is_deleted_also_while_its_job_runs(world, browser, readable):
    answer = browser.post("/jobs/likes/savepoints/sp1/delete")
    assert answer.status_code == 200
    assert answer.json() == {"job": "likes", "id": "sp1", "path": str(saved(world))}
    assert not is_saved(world)
    assert browser.api("/jobs/likes/savepoints").json() == []
    assert error(browser.post("/jobs/likes/savepoints/sp1/delete")) == (404, "NotFound")


def test_a_savepoint_that_a_job_needs_to_go_on_is_kept(world, browser, readable):
    """One that was started from it and has no checkpoint of its own yet."""
    FakeJob(world.root, "fork").attempt(snapshot=str(saved(world)))
    answer = browser.post("/jobs/likes/savepoints/sp1/delete")
    assert answer.status_code == 400
    assert "fork" in answer.json()["error"]["message"]
    assert is_saved(world)


def test_only_who_may_change_things_deletes(world):
    end(world)
    paths = ("/jobs/likes/delete", "/jobs/likes/savepoints/sp1/delete")
    for path in paths:
        assert world.browser().post(path, headers={}).status_code == 401
        cookie = {"Cookie": "turnback_8081=x", "X-Turnback": "1"}
        assert world.browser().post(path, headers=cookie).status_code == 401
        foreign = {**BEARER, "Origin": "http://evil.example"}
        assert world.browser().post(path, headers=foreign).status_code == 403
        assert error(world.browser(read_only=True).post(path)) == (403, "ReadOnly")
        assert world.browser().get(f"/api/v1{path}?token={TOKEN}").status_code == 405
    assert is_saved(world) and (world.root / "likes").is_dir()


def test_a_savepoint_that_an_unreadable_job_may_need_is_kept(world, browser):
    answer = browser.post("/jobs/likes/savepoints/sp1/delete")
    assert error(answer) == (400, "ConfigurationError")
    assert "broken" in answer.json()["error"]["message"]
    assert is_saved(world)


def test_a_job_whose_driver_died_can_be_deleted(world, browser):
    Driver(world.root, "gone", world.clock, process=dead()).attempt().say(JobState.RUNNING)
    assert browser.api("/jobs/gone").json()["summary"]["state"] == "LOST"
    assert browser.post("/jobs/gone/delete").status_code == 200
