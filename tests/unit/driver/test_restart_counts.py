"""A job that only tries to run does not look as if it ran."""

from __future__ import annotations

import pytest

from fake_job import Driver, seen
from manual_clock import ManualClock
from turnback.driver.runner import Restarts
from turnback.job.status import JobState, Status
from turnback.views.history import grouped_failures
from turnback.views.model import FailureRow


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


def test_a_first_attempt_runs_at_once(clock: ManualClock) -> None:
    restarts = Restarts(clock)
    assert restarts.begin() is JobState.CREATED
    assert restarts.run() is JobState.RUNNING
    assert not restarts.prove(has_epoch=True)
    assert restarts.update().restarts == 0


@pytest.mark.parametrize("how", ["epoch", "time"])
def test_one_after_a_failure_has_to_prove_itself(clock: ManualClock, how: str) -> None:
    restarts = Restarts(clock)
    restarts.run()
    for number in (1, 2):
        update = restarts.count("boom")
        assert (update.restarts, update.cause) == (number, "boom")
        assert restarts.begin() is restarts.run() is JobState.RESTARTING
        assert not restarts.prove(has_epoch=False)
        restarts.end()
        assert not restarts.prove(has_epoch=True)  # too late
    restarts.run()
    if how == "time":
        clock.advance(60_000)
    assert restarts.prove(has_epoch=how == "epoch")
    assert restarts.state is JobState.RUNNING
    assert not restarts.prove(has_epoch=True)  # that is known by now
    assert len(restarts.update().restarted_ms) == 2


def test_a_driver_goes_on_counting_where_a_dead_one_has_left_off(tmp_path: object) -> None:
    driver = Driver(tmp_path, "likes", ManualClock(1_000_000))
    driver.attempt().say(JobState.RUNNING, restarts=2, restarted_ms=(5, 6), cause="old")
    status = driver.directory.status()
    assert isinstance(status, Status)
    restarts = Restarts(ManualClock(7))
    restarts.take_over(status, status.job_id)
    update = restarts.update()
    assert (update.restarts, update.restarted_ms) == (3, (5, 6, 7))
    assert update.cause == "its driver died"
    assert restarts.begin() is JobState.RESTARTING
    other = Restarts(ManualClock(7))
    other.take_over(status, "another job")
    other.take_over(None, status.job_id)
    assert other.number == 0


def test_many_restarts_are_a_problem_also_while_it_runs(tmp_path: object) -> None:
    clock = ManualClock(10_000_000)
    driver = Driver(tmp_path, "likes", clock).attempt()
    now = clock.now_ms()
    times = (now - 700_000, now - 500_000, now - 1_000)
    driver.say(JobState.RUNNING, restarts=3, restarted_ms=times, cause="boom\nat line 3")
    summary = seen(driver).summary()
    assert (summary.recent_restarts, summary.problem, summary.cause) == (2, None, None)
    driver.say(JobState.RUNNING, restarts=4, restarted_ms=(*times, now))
    summary = seen(driver).summary()
    assert summary.problem == "restarted 3 times in the last ten minutes: boom"
    driver.say(JobState.RESTARTING)
    summary = seen(driver).summary()
    assert (summary.state, summary.problem, summary.cause) == (
        "RESTARTING",
        None,
        "boom\nat line 3",
    )


def test_equal_failures_are_one_row() -> None:
    def row(attempt: int, cause: str, kind: str = "restarting") -> FailureRow:
        return FailureRow(attempt=attempt, at_ms=attempt * 10, kind=kind, cause=cause)

    rows = [row(5, "epoch 7: boom"), row(4, "other"), row(3, "epoch 6: boom"), row(2, "other", "x")]
    first, second, third = grouped_failures(rows)
    assert (first.attempt, first.count, first.first_ms, first.at_ms) == (5, 2, 30, 50)
    assert first.cause == "epoch 7: boom"
    assert (second.count, third.kind) == (1, "x")
