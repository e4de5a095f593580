"""What a job has done: checkpoints, failures and savepoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_job import START, Driver, dead, done, elsewhere, failed, living, seen
from turnback.job.history import JobEnded, Restarting
from turnback.job.status import CheckpointInProgress, JobState, Metrics
from turnback.views.history import distribution
from turnback.views.jobs import Jobs
from turnback.views.model import CheckpointStatus

# -- checkpoints


def test_checkpoints_are_told_from_history_newest_first(driver: Driver) -> None:
    driver.attempt()
    first = driver.checkpoint(epoch=3)
    driver.happens(failed(5, after_ms=400))
    second = driver.checkpoint(epoch=6, waited_ms=100, sync_ms=15)
    driver.log.remove(first)
    history = seen(driver).checkpoints()
    newest, broken, oldest = history.rows
    assert (newest.number, newest.status, newest.epoch) == (second, "COMPLETED", 6)
    assert (newest.duration_ms, newest.sync_ms, newest.async_ms) == (165, 15, 50)
    assert newest.triggered_ms == driver.clock.now_ms() - 150
    assert (newest.delta_bytes, newest.full_bytes, newest.files) == (100, 1_000, 3)
    assert (newest.acknowledged, newest.tasks) == (4, 4)
    assert newest.path == f"{driver.path}/checkpoints/chk-{second}.json"
    assert Path(newest.path).is_file()
    assert (oldest.number, oldest.path) == (first, None)
    assert (broken.status, broken.number, broken.reason) == ("FAILED", None, "no space")
    assert (broken.duration_ms, broken.sync_ms, broken.path) == (400, None, None)
    assert (history.completed, history.failed, history.in_progress) == (2, 1, 0)
    assert history.duration_ms is not None
    assert (history.duration_ms.min, history.duration_ms.max) == (65, 165)
    assert history.duration_ms.mean == history.duration_ms.p50 == 115


def test_a_checkpoint_that_the_history_does_not_know_yet_is_seen_as_well(driver: Driver) -> None:
    driver.attempt()
    first = driver.checkpoint(epoch=3)
    second = driver.checkpoint(epoch=4, recorded=False)
    third = driver.checkpoint(epoch=5, recorded=False)
    Path(f"{driver.path}/checkpoints/chk-{third}.json").write_bytes(b"damaged")
    driver.log.remove(first)
    history = seen(driver).checkpoints()
    assert [row.number for row in history.rows] == [second, first]
    assert (history.rows[0].epoch, history.rows[0].duration_ms) == (4, None)
    assert history.rows[0].path == f"{driver.path}/checkpoints/chk-{second}.json"
    assert history.completed == 2
    assert [manifest.number for manifest in seen(driver).retained()] == [second]


def test_totals_count_checkpoints_that_are_not_listed_any_more(driver: Driver) -> None:
    driver.attempt()
    assert driver.history is not None
    for number in range(1, 9_001):
        driver.history.add(done(number, number))
        if number % 500 == 0:
            driver.history.flush()
    driver.happens(failed(7))
    past = seen(driver).checkpoints()
    assert (past.completed, past.failed) == (9_000, 1)
    assert past.forgotten == 9_001 - len(past.rows) > 0


def test_order_follows_the_numbers_not_the_clock(driver: Driver) -> None:
    driver.attempt()
    driver.checkpoint(epoch=1)
    driver.clock.set_now_ms(START - 10_000_000)
    driver.checkpoint(epoch=2)
    driver.attempt(checkpoint=3)
    driver.checkpoint(epoch=3)
    rows = seen(driver).checkpoints().rows
    assert [(row.attempt, row.epoch) for row in rows] == [(2, 3), (1, 2), (1, 1)]


def test_restores_are_counted(driver: Driver) -> None:
    driver.attempt().attempt(checkpoint=1).attempt(snapshot="file:///sp")
    assert seen(driver).checkpoints().restored == 2


def test_what_is_under_way_is_shown_while_a_driver_may_live(tmp_path: Path) -> None:
    under_way = (
        CheckpointInProgress(7, "periodic", START),
        CheckpointInProgress(8, "savepoint", START + 5),
    )
    metrics = Metrics(under_way=under_way)
    for name, process, shown in (("a", None, 2), ("b", elsewhere(), 2), ("c", dead(), 0)):
        driver = Driver(tmp_path, name, process=process).attempt()
        driver.say(JobState.RUNNING, metrics=metrics)
        history = seen(driver).checkpoints()
        assert history.in_progress == len(history.rows) == shown
        if shown:
            assert history.rows[0].status is CheckpointStatus.IN_PROGRESS
            assert (history.rows[0].epoch, history.rows[0].triggered_ms) == (8, START + 5)
            assert history.rows[0].attempt == 1
        driver.say(JobState.CANCELED, metrics=metrics)
        assert seen(driver).checkpoints().rows == ()


def test_a_history_that_cannot_be_read_leaves_the_rest(driver: Driver) -> None:
    driver.attempt()
    driver.checkpoint()
    driver.attempt()
    driver.checkpoint()
    (driver.path / "history/1-0.json").write_bytes(b"{")
    assert [row.attempt for row in seen(driver).checkpoints().rows] == [2]


def test_percentiles_are_interpolated() -> None:
    found = distribution([4, 1, None, 3, 2])
    assert found is not None
    assert (found.min, found.p50, found.max, found.mean) == (1, 2.5, 4, 2.5)
    assert found.p90 == pytest.approx(3.7)
    assert found.p99 == pytest.approx(3.97)
    assert distribution([]) is None
    assert distribution([None]) is None
    one = distribution([7])
    assert one is not None
    assert one.p50 == one.p99 == one.mean == 7


# -- failures


def test_failures_are_restarts_ends_and_deaths(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.attempt().happens(Restarting("out of luck", 500))
    at = driver.clock.now_ms()
    driver.attempt().happens(done(9))
    died = driver.clock.now_ms()
    driver.attempt().happens(JobEnded("FAILED", "for good")).say(JobState.FAILED)
    end, death, restart = seen(driver).failures()
    assert (restart.attempt, restart.kind, restart.cause) == (1, "restarting", "out of luck")
    assert (restart.at_ms, restart.delay_ms) == (at, 500)
    assert (death.attempt, death.kind, death.at_ms) == (2, "driver died", died)
    assert "pid" in death.cause
    assert (end.attempt, end.kind, end.cause) == (3, "failed", "for good")


def test_a_running_attempt_and_a_good_end_are_no_failures(driver: Driver) -> None:
    driver.attempt()
    assert seen(driver).failures() == []
    driver.happens(JobEnded("FINISHED")).say(JobState.FINISHED)
    assert seen(driver).failures() == []
    driver.attempt().happens(JobEnded("CANCELED")).say(JobState.CANCELED)
    assert seen(driver).failures() == []


def test_what_the_supervisor_said_of_a_dead_driver_is_a_failure(driver: Driver) -> None:
    driver.attempt()
    driver.say(JobState.FAILED, cause="the driver was killed by signal 9")
    (row,) = seen(driver).failures()
    assert (row.attempt, row.kind, row.cause) == (1, "failed", "the driver was killed by signal 9")
    driver.happens(JobEnded("FAILED", "out of disk"))
    (row,) = seen(driver).failures()
    assert row.cause == "out of disk"


def test_the_attempt_of_a_lost_job_has_died(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=dead()).attempt()
    driver.clock.advance(5_000)
    driver.say(JobState.RUNNING)
    (death,) = seen(driver).failures()
    assert (death.attempt, death.kind, death.at_ms) == (1, "driver died", driver.clock.now_ms())
    with living() as supervisor:
        driver.say(JobState.RUNNING, supervisor=supervisor)
        assert [row.kind for row in seen(driver).failures()] == ["driver died"]


def test_of_attempts_that_history_has_forgotten_nothing_is_claimed(driver: Driver) -> None:
    for _ in range(3):
        driver.attempt()
    for name in ("history/1-0.json", "history/2-0.json"):
        driver.storage.delete(name)
    assert seen(driver).failures() == []


# -- savepoints


def test_savepoints_say_whether_they_are_there_and_how_to_restore_them(
    driver: Driver, tmp_path: Path
) -> None:
    driver.runs(script=("my job.py", "--words", "a b"))
    driver.savepoint(tmp_path / "sp one", "id-1", checkpoint=2, label="before")
    driver.savepoint(tmp_path / "sp2", "id-2", checkpoint=5, scheduled=True)
    (tmp_path / "sp2/_metadata.json").unlink()
    newest, oldest = seen(driver).savepoints()
    assert (newest.id, newest.exists, newest.scheduled) == ("id-2", False, True)
    assert (oldest.id, oldest.exists, oldest.label) == ("id-1", True, "before")
    assert oldest.path == str(tmp_path / "sp one")
    assert oldest.restore == (f"turnback run -s '{tmp_path}/sp one' 'my job.py' --words 'a b'")


def test_where_the_script_is_not_known_a_name_stands_for_it(driver: Driver, tmp_path: Path) -> None:
    driver.savepoint(tmp_path / "sp", "id")
    assert seen(driver).savepoints()[0].restore == f"turnback run -s {tmp_path}/sp job.py"


def test_a_storage_that_does_not_answer_is_not_taken_for_a_savepoint_that_is_gone(
    driver: Driver, tmp_path: Path
) -> None:
    driver.savepoint(tmp_path / "sp", "id")
    (tmp_path / "sp/_metadata.json").unlink()
    (tmp_path / "sp/_metadata.json").symlink_to("elsewhere")
    assert seen(driver).savepoints()[0].exists is None


def test_savepoints_of_all_jobs_are_sorted_by_time(tmp_path: Path) -> None:
    for day, name in ((2, "a"), (3, "b"), (1, "c")):
        other = Driver(tmp_path / "root", name)
        other.clock.advance(day * 86_400_000)
        other.savepoint(tmp_path / f"sp-{name}", f"id-{name}")
    rows = Jobs(str(tmp_path / "root")).savepoints()
    assert [(row.job, row.id) for row in rows] == [("b", "id-b"), ("a", "id-a"), ("c", "id-c")]


def test_a_damaged_record_hides_no_other_savepoint(driver: Driver, tmp_path: Path) -> None:
    driver.savepoint(tmp_path / "sp1", "id-1")
    driver.savepoint(tmp_path / "sp2", "id-2")
    (driver.path / "savepoints/id-1.json").write_bytes(b"damaged")
    assert [row.id for row in seen(driver).savepoints()] == ["id-2"]
