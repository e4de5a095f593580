"""Where jobs come from and what became of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_job import START, Driver, dead, elsewhere
from manual_clock import ManualClock
from turnback.job.history import JobEnded, Restarting
from turnback.job.status import JobState
from turnback.views.jobs import Jobs
from turnback.views.timeline import Timeline, TimelineJob


def drawn(root: object, name: str, clock: ManualClock | None = None) -> Timeline:
    jobs = Jobs(str(root), clock=clock)
    return jobs.timeline(jobs.get(name))


def only(root: object, name: str = "wordcount") -> TimelineJob:
    (job,) = drawn(root, name).jobs
    return job


def test_a_job_that_never_ran_has_an_empty_line(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    timeline = drawn(tmp_path, "wordcount", driver.clock)
    assert (timeline.job, timeline.now_ms) == ("wordcount", START)
    assert only(tmp_path).attempts == ()
    assert only(tmp_path).state == "CREATED"


def test_attempts_end_as_they_say_or_when_the_next_begins(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.attempt().happens(Restarting("bad luck", 100))
    restarted = driver.clock.now_ms()
    driver.clock.advance(50)
    driver.attempt()
    driver.clock.advance(7_000)
    driver.attempt(checkpoint=2)
    third = driver.clock.now_ms() - 1_000
    first, second, last = only(tmp_path).attempts
    assert (first.state, first.ended_ms, first.cause) == ("RESTARTED", restarted, "bad luck")
    assert (second.state, second.ended_ms) == ("LOST", third)
    assert (last.state, last.started_ms, last.ended_ms) == ("RUNNING", third, None)
    assert first.started_from is second.started_from is None
    assert last.started_from is not None
    assert (last.started_from.kind, last.started_from.checkpoint) == ("checkpoint", 2)
    assert last.started_from.job == "wordcount"
    assert last.started_from.path == f"{driver.path}/checkpoints/chk-2.json"


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "CANCELED"])
def test_the_last_attempt_ends_with_the_job(tmp_path: Path, state: str) -> None:
    driver = Driver(tmp_path).attempt().happens(JobEnded(state, "why"))
    ended = driver.clock.now_ms()
    driver.clock.advance(99)
    driver.say(JobState(state))
    (attempt,) = only(tmp_path).attempts
    assert (attempt.state, attempt.ended_ms, attempt.cause) == (state, ended, "why")


def test_a_lost_job_ends_with_its_last_word(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=dead()).attempt()
    driver.clock.advance(500)
    driver.say(JobState.RUNNING)
    job = only(tmp_path)
    assert job.state == "LOST"
    assert (job.attempts[0].state, job.attempts[0].ended_ms) == ("LOST", driver.clock.now_ms())


def test_a_job_elsewhere_goes_on(tmp_path: Path) -> None:
    Driver(tmp_path, process=elsewhere()).attempt()
    (attempt,) = only(tmp_path).attempts
    assert (attempt.state, attempt.ended_ms) == ("RUNNING", None)


def test_a_clock_that_went_back_gives_no_attempt_a_negative_length(tmp_path: Path) -> None:
    driver = Driver(tmp_path).attempt()
    driver.clock.set_now_ms(START - 1_000_000)
    driver.attempt()
    first, second = only(tmp_path).attempts
    assert first.ended_ms == first.started_ms > second.started_ms


def test_forks_from_savepoints_and_checkpoints_are_one_family(tmp_path: Path) -> None:
    root = tmp_path / "all jobs"
    old = Driver(root, "old").attempt()
    chk = old.checkpoint()
    saved = old.savepoint(tmp_path / "sp 1", "sp-1", checkpoint=chk)
    job = Driver(root, "job").attempt(snapshot=saved)
    slot = f"{job.storage.uri}/checkpoints/chk-{job.checkpoint()}.json"
    Driver(root, "fork").attempt(snapshot=slot)
    Driver(root, "sibling").attempt(snapshot=saved)
    Driver(root, "stranger").attempt()
    assert [j.name for j in drawn(root, "job").jobs] == ["old", "job", "fork"]
    assert {j.name for j in drawn(root, "old").jobs} == {"old", "job", "fork", "sibling"}
    assert [j.name for j in drawn(root, "fork").jobs] == ["old", "job", "fork"]
    assert [j.name for j in drawn(root, "stranger").jobs] == ["stranger"]
    first, middle, last = drawn(root, "job").jobs
    assert [row.id for row in first.savepoints] == ["sp-1"]
    origin = middle.attempts[0].started_from
    assert origin is not None
    assert (origin.kind, origin.job, origin.savepoint) == ("savepoint", "old", "sp-1")
    assert (origin.checkpoint, origin.path) == (chk, str(tmp_path / "sp 1"))
    origin = last.attempts[0].started_from
    assert origin is not None
    assert (origin.kind, origin.job, origin.checkpoint) == ("checkpoint", "job", 2)


def test_ancestors_come_before_all_that_descend_from_them(tmp_path: Path) -> None:
    root = tmp_path / "jobs"
    places = {}
    for name in "abc":
        driver = Driver(root, name)
        for other in places.values():
            driver.attempt(snapshot=other)  # b from a; c from both
        places[name] = driver.savepoint(tmp_path / name, f"id-{name}")
    Driver(root, "d").attempt(snapshot=places["c"]).attempt(snapshot=places["a"])
    for name in "abcd":
        assert [job.name for job in drawn(root, name).jobs] == ["a", "b", "c", "d"]


def test_jobs_that_descend_from_each_other_end(tmp_path: Path) -> None:
    root = tmp_path / "jobs"
    a, b = Driver(root, "a"), Driver(root, "b")
    from_a, from_b = a.savepoint(tmp_path / "sa", "sa"), b.savepoint(tmp_path / "sb", "sb")
    a.attempt(snapshot=from_b).attempt(snapshot=from_a)
    b.attempt(snapshot=from_a).attempt(snapshot=from_b)
    assert {job.name for job in drawn(root, "a").jobs} == {"a", "b"}
    assert len(drawn(root, "a").jobs) == 2


def test_a_long_line_of_ancestors(tmp_path: Path) -> None:
    where = "memory://long-line-of-ancestors"
    saved = None
    for i in range(30):
        driver = Driver(f"{where}/jobs", f"{i:02}").attempt(snapshot=saved)
        saved = driver.savepoint(f"{where}/sp{i}", f"id-{i}")
    names = [f"{i:02}" for i in range(30)]
    for name in ("00", "15", "29"):
        assert [job.name for job in drawn(f"{where}/jobs", name).jobs] == names


def test_a_snapshot_that_nobody_knows_is_shown_without_its_job(tmp_path: Path) -> None:
    Driver(tmp_path).attempt(snapshot="file:///gone/sp/_metadata.json").attempt(
        snapshot="s3://bucket/jobs/other/checkpoints/chk-9.json"
    )
    first, second = only(tmp_path).attempts
    assert first.started_from is not None
    assert second.started_from is not None
    assert (first.started_from.kind, first.started_from.job) == ("savepoint", None)
    assert first.started_from.path == "/gone/sp"
    assert (second.started_from.kind, second.started_from.job) == ("checkpoint", None)
    assert second.started_from.checkpoint == 9


def test_without_records_of_attempts_the_history_tells(tmp_path: Path) -> None:
    driver = Driver(tmp_path).attempt().attempt(checkpoint=1).attempt(snapshot="file:///sp")
    for number in (1, 2, 3):
        (driver.path / f"attempts/{number}.json").write_bytes(b"damaged")
    first, second, third = only(tmp_path).attempts
    assert first.started_from is None
    assert second.started_from is not None
    assert third.started_from is not None
    assert (second.started_from.checkpoint, third.started_from.path) == (1, "/sp")
    assert first.started_ms == START + 1_000


def test_a_fork_whose_first_record_is_long_gone_is_still_one(tmp_path: Path) -> None:
    origin = Driver(tmp_path, "origin").attempt()
    fork = Driver(tmp_path, "fork").attempt(snapshot=f"{origin.path}/checkpoints/chk-3.json")
    fork.attempt(checkpoint=4)
    (fork.path / "attempts" / "1.json").unlink()
    assert [job.name for job in drawn(tmp_path, "origin").jobs] == ["origin", "fork"]


def test_a_damaged_relative_is_left_out(tmp_path: Path) -> None:
    root = tmp_path / "jobs"
    saved = Driver(root, "old").attempt().savepoint(tmp_path / "sp", "sp")
    Driver(root, "job").attempt(snapshot=saved)
    (root / "old/status.json").write_bytes(b"{")
    assert [job.name for job in drawn(root, "job").jobs] == ["job"]


def test_a_job_from_elsewhere_among_the_jobs_of_the_root(tmp_path: Path) -> None:
    outside = Driver(tmp_path / "outside", "job").attempt()
    slot = f"{outside.storage.uri}/checkpoints/chk-{outside.checkpoint()}.json"
    Driver(tmp_path / "root", "fork").attempt(snapshot=slot)
    jobs = Jobs(str(tmp_path / "root"))
    timeline = jobs.timeline(jobs.find(str(outside.path)))
    assert [job.name for job in timeline.jobs] == ["job", "fork"]
