import os

import pytest

from turnback.job.status import JobState, StatusUpdate


def say(world, log):
    world.likes.directory.write_status(
        JobState.RUNNING, world.likes.info.job_id, StatusUpdate(log=log)
    )


def test_the_end_of_the_log(world, browser):
    tail = browser.api("/jobs/likes/log?lines=3").json()
    assert tail == {"path": str(world.log), "lines": ["line 997", "line 998", "line 999"]}
    assert len(browser.api("/jobs/likes/log").json()["lines"]) == 200


def test_odd_bytes_and_very_long_logs(world, browser):
    world.log.write_bytes(b"x" * 3_000_000 + b"\nlast \xff <b>\r\n")
    assert browser.api("/jobs/likes/log").json()["lines"] == ["last \ufffd <b>"]
    world.log.write_bytes(b"")
    assert browser.api("/jobs/likes/log").json()["lines"] == []


@pytest.mark.parametrize("how", ["outside", "dots", "link", "linked directory", "relative", "fifo"])
def test_nothing_but_log_files_of_runs(world, browser, how):
    link = world.runs / "link"
    paths = {
        "outside": world.secret,
        "dots": world.runs / ".." / "secret.txt",
        "link": link,
        "linked directory": link / "secret.txt",
        "relative": "secret.txt",
        "fifo": link,
    }
    if how == "fifo":
        os.mkfifo(link)
    elif "link" in how:
        link.symlink_to(world.base if "directory" in how else world.secret)
    say(world, str(paths[how]))
    response = browser.api("/jobs/likes/log")
    assert response.status_code == 404
    assert "s3cret" not in response.text


@pytest.mark.parametrize("log", ["/nowhere/driver.log", "\0", "a" * 5_000, "~root/x"])
def test_a_log_that_is_elsewhere(world, browser, log):
    say(world, log)
    response = browser.api("/jobs/likes/log")
    assert response.status_code == 404
    assert response.json()["error"]["message"]


def test_no_log_at_all(world, browser):
    assert browser.api("/jobs/team%2Fa%20job/log").status_code == 404
    assert world.browser(runs_dir=None).api("/jobs/likes/log").status_code == 404
