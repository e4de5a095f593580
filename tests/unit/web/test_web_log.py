import asyncio
import os
import tracemalloc

import pytest

from turnback.job.status import JobState, StatusUpdate
from turnback.web.api import Call
from turnback.web.logs import Severity, download, search_log


def say(world, log):
    world.likes.directory.write_status(
        JobState.RUNNING, world.likes.info.job_id, StatusUpdate(log=log)
    )


def test_the_end_of_the_log(world, browser):
    tail = browser.api("/jobs/likes/log?lines=3").json()
    assert (tail["path"], tail["lines"]) == (str(world.log), ["line 997", "line 998", "line 999"])
    assert (tail["matches"], tail["end"], tail["size"]) == (None, 8_890, 8_890)
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


def lines(browser, query):
    answer = browser.api(f"/jobs/likes/log?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()["lines"]


MIXED = """\
printed by the program
2026-11-17 16:38:25,518 INFO    turnback.driver.runner: attempt 2 starts
2026-11-17 16:38:26,000 WARNING turnback.spark: slow Straße
  and why
printed in between
20:17:41 ERROR TaskSetManager: lost
\tat java.lang.Thread
Caused by: nothing
{"time": "2026", "level": "CRITICAL", "message": "as json"}
printed after it
Traceback (most recent call last):
  File "job.py", line 1
ValueError: boom
printed at last
DEBUG:root:small talk
"""


def test_lines_are_found_by_text_and_level(world, browser):
    world.log.write_text(MIXED)
    all_lines = MIXED.splitlines()
    assert lines(browser, "text=PRINTED&lines=2") == ["printed after it", "printed at last"]
    assert browser.api("/jobs/likes/log?text=PRINTED&lines=2").json()["matches"] == 4
    assert lines(browser, "text=STRASSE") == []
    assert lines(browser, "text=stra%C3%9Fe") == [all_lines[2]]
    errors = [*all_lines[5:9], *all_lines[10:13]]
    assert lines(browser, "level=ERROR") == errors
    assert lines(browser, "level=WARNING") == [*all_lines[2:4], *errors]
    assert lines(browser, "level=INFO") == all_lines[:-1]
    assert lines(browser, "level=DEBUG") == all_lines
    assert lines(browser, "level=ERROR&text=boom") == ["ValueError: boom"]
    assert browser.api("/jobs/likes/log?level=ERROR&text=x y").json()["matches"] == 0


def test_a_search_goes_on_where_it_ended(world, browser):
    world.log.write_text("ERROR: one\n")
    end = browser.api("/jobs/likes/log?level=ERROR").json()["end"]
    with world.log.open("a") as file:
        file.write("  of one\nINFO: no\nERROR: two")
    part = browser.api(f"/jobs/likes/log?level=ERROR&after={end}").json()
    assert (part["lines"], part["unended"]) == (["  of one", "ERROR: two"], True)
    with world.log.open("a") as file:
        file.write(" and more\n")
    part = browser.api(f"/jobs/likes/log?level=ERROR&after={part['end']}").json()
    assert (part["lines"], part["unended"]) == (["ERROR: two and more"], False)
    again = browser.api(f"/jobs/likes/log?level=ERROR&after={part['end']}").json()
    assert (again["lines"], again["end"]) == ([], part["end"])
    world.log.write_text("ERROR: begun anew\n")  # shorter than what was read of the old one
    part = browser.api(f"/jobs/likes/log?level=ERROR&after={part['end']}").json()
    assert (part["start"], part["lines"]) == (0, ["ERROR: begun anew"])


@pytest.mark.parametrize(
    "query",
    ["level=error", "level=LOUD", "level=", "after=-1", "after=1e3", f"after={10**20}", "regex=."],
)
def test_a_wrong_level_or_position_is_refused(browser, query):
    answer = browser.api(f"/jobs/likes/log?{query}")
    assert answer.status_code == 400
    assert "parameter" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_big_log_is_searched_and_sent_in_parts(world, browser):
    """The memory for it is a small part of what it takes up on disk."""
    line = b"2026-11-17 16:38:25,518 INFO    turnback: nothing of interest " + b"x" * 1_000 + b"\n"
    with world.log.open("wb") as file:
        file.write(b"ERROR: first " + b"y" * 3_000_000 + b"\n")
        for _ in range(40):
            file.write(line * 1_000)
        file.write(b"ERROR: last\n")
    size = world.log.stat().st_size
    assert size > 40_000_000
    tracemalloc.start()
    try:
        part = search_log(world.log, 100, 1_000_000, level=Severity.ERROR)
        response = download(Call(world.site(), {"job": "likes"}))
        sent = asyncio.run(received(response))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert part.matches == 2
    assert part.lines[0].startswith("ERROR: first yyy") and part.lines[0].endswith("[...]")
    assert part.lines[1] == "ERROR: last"
    assert sent == size
    assert most < size / 4
    near = search_log(world.log, 100, 1_000_000, level=Severity.ERROR, within=1_000_000)
    assert (near.lines, near.start > 0) == (("ERROR: last",), True)


async def received(response) -> int:
    size = 0
    async for block in response.body_iterator:
        size += len(block)
    return size


def test_the_whole_log_is_downloaded(world, browser):
    answer = browser.api("/jobs/likes/log/download")
    assert answer.content == world.log.read_bytes()
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''likes.log"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    say(world, str(world.secret))
    assert browser.api("/jobs/likes/log/download").status_code == 404
    assert browser.api("/jobs/team%2Fa%20job/log/download").status_code == 404
    assert browser.api("/jobs/nobody/log/download").status_code == 404
    outside = world.browser(host="0.0.0.0", allowed_hosts=["jobs.example"])
    assert outside.api("/jobs/likes/log/download").status_code == 401
