"""Who is told of what happens to a job, and that it is told once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from receiver import Receiver

from fake_job import Driver, dead
from turnback.config.watchdog import AlertSettings
from turnback.job.alerts import AlertLog, Hooks, JobWatch, RememberedAlerts
from turnback.job.status import AttemptProgress, JobState, Metrics, WatchLimits

LIMITS = WatchLimits(heartbeat_ms=60_000, epoch_ms=600_000)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "jobs").attempt()


def watch(driver: Driver, receiver: Receiver) -> JobWatch:
    return JobWatch(driver.directory, Hooks(AlertSettings(webhook=receiver.address)), driver.clock)


def stalled(driver: Driver) -> Driver:
    since = driver.clock.now_ms() - 700_000
    metrics = Metrics(progress=AttemptProgress(epoch=9, since_ms=since))
    return driver.say(JobState.RUNNING, limits=LIMITS, metrics=metrics)


def well(driver: Driver) -> Driver:
    return driver.say(JobState.RUNNING, metrics=Metrics(), restarted_ms=())


def test_every_event_is_told_once(driver: Driver, receiver: Receiver) -> None:
    watching = watch(driver, receiver)

    def look_often() -> list[str]:
        for _ in range(3):
            watching.look()
            driver.clock.advance(1_000)
        return receiver.events

    assert look_often() == []
    stalled(driver)
    assert look_often() == ["stalled"]
    well(driver)
    assert look_often() == ["stalled", "recovered"]
    now = driver.clock.now_ms()
    driver.say(JobState.RESTARTING, restarted_ms=(now, now, now), cause="no route to host")
    assert look_often()[2:] == ["restart-loop"]
    driver.say(JobState.RUNNING)
    assert look_often()[3:] == []
    driver.clock.advance(700_000)
    well(driver)
    assert look_often()[3:] == ["recovered"]
    driver.say(JobState.FAILED, cause="division by zero\nat line 3")
    assert look_often()[4:] == ["failed"]
    driver.say(JobState.CREATED)
    assert look_often()[5:] == []
    driver.attempt()
    assert look_often()[5:] == ["recovered"]
    driver.say(JobState.CANCELED)
    assert look_often()[6:] == []
    bodies = [json.loads(body) for _, _, body in receiver.got]
    assert [body["text"] for body in bodies] == [
        "job 'wordcount' is STALLED: epoch 9 has been running for 11 min",
        "job 'wordcount' is RUNNING again",
        "job 'wordcount' has restarted 3 times in the last ten minutes: no route to host",
        "job 'wordcount' is RUNNING again",
        "job 'wordcount' is FAILED: division by zero",
        "job 'wordcount' is RUNNING again",
    ]
    assert bodies[4]["reason"] == "division by zero\nat line 3"
    assert bodies[4]["attempt"] == 1
    assert len({body["id"] for body in bodies}) == len(bodies)


def test_other_watchers_and_later_ones_do_not_repeat_it(driver: Driver, receiver: Receiver) -> None:
    stalled(driver)
    watches = [watch(driver, receiver) for _ in range(3)]
    for each in watches:
        each.look()
        each.look()
    assert receiver.events == ["stalled"]
    watch(driver, receiver).look(once=True)
    assert receiver.events == ["stalled"]
    well(driver)
    watches[2].look()
    watches[0].look()
    assert receiver.events == ["stalled", "recovered"]
    # the last one knew of none of these
    stalled(driver)
    for each in reversed(watches):
        each.look()
        each.look()
    assert receiver.events == ["stalled", "recovered", "stalled"]


def test_of_racing_watchers_one_tells(driver: Driver, receiver: Receiver) -> None:
    driver.say(JobState.FAILED, cause="x")
    watches = [watch(driver, receiver) for _ in range(8)]
    threads = [threading.Thread(target=each.look) for each in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert receiver.events == ["failed"]


class Killed(BaseException):
    """The watcher is gone."""


class DyingHooks(Hooks):
    def call(self, event: str, job: str, text: str, document: bytes) -> list[str]:
        raise Killed


def test_an_event_whose_watcher_is_killed_is_told_by_another(
    driver: Driver, receiver: Receiver
) -> None:
    driver.say(JobState.FAILED, cause="x")
    dying = JobWatch(driver.directory, DyingHooks(AlertSettings()), driver.clock)
    with pytest.raises(Killed):
        dying.look()
    _, claimed = AlertLog(driver.storage).last()
    others = [watch(driver, receiver) for _ in range(3)]
    assert [each.look() for each in others] == [None] * 3  # the first may be about to tell it
    driver.clock.advance(61_000)
    assert [each.look() for each in others] == [claimed, None, None]
    driver.clock.advance(61_000)
    assert [each.look() for each in (*others, watch(driver, receiver))] == [None] * 4
    assert receiver.events == ["failed"]


def test_the_same_again_in_another_attempt_is_news(driver: Driver, receiver: Receiver) -> None:
    watching = watch(driver, receiver)
    driver.say(JobState.FAILED, cause="x")
    watching.look()
    driver.attempt().say(JobState.FAILED, cause="x")
    watching.look()
    assert receiver.events == ["failed", "failed"]


def test_a_stall_of_a_moment_is_not_told(driver: Driver, receiver: Receiver) -> None:
    watching = watch(driver, receiver)
    stalled(driver)
    assert watching.look() is None
    well(driver)
    watching.look()
    stalled(driver)
    assert watching.look() is None
    assert receiver.events == []
    assert watch(driver, receiver).look(once=True) is not None


def test_a_lost_job_is_told_and_one_that_was_over_long_ago_is_not(
    tmp_path: Path, receiver: Receiver
) -> None:
    driver = Driver(tmp_path, process=dead()).say(JobState.RUNNING)
    late = Driver(tmp_path, "old", process=dead()).say(JobState.RUNNING)
    late.clock.advance(2 * 86_400_000)
    alert = watch(driver, receiver).look()
    assert alert is not None
    assert (alert.event, alert.state) == ("lost", "LOST")
    assert "Start the job again" in alert.text
    assert watch(late, receiver).look() is None
    assert receiver.events == ["lost"]


def test_a_job_that_ends_while_it_was_stalled_needs_nobody_any_more(
    driver: Driver, receiver: Receiver
) -> None:
    watching = watch(driver, receiver)
    stalled(driver)
    watching.look(once=True)
    driver.say(JobState.CANCELED)
    alert = watching.look()
    assert alert is not None
    assert (alert.event, alert.text) == ("recovered", "job 'wordcount' is CANCELED")


def test_secrets_in_a_cause_are_not_told(driver: Driver, receiver: Receiver) -> None:
    driver.say(JobState.FAILED, cause="cannot connect to postgres://u:hunter2@db/x")
    watch(driver, receiver).look()
    assert b"hunter2" not in receiver.got[0][2]


def test_only_the_newest_events_are_kept(driver: Driver) -> None:
    watching = JobWatch(driver.directory, Hooks(AlertSettings()), driver.clock)
    for _ in range(40):
        stalled(driver)
        watching.look(once=True)
        well(driver)
        watching.look()
    number, last = AlertLog(driver.storage).last()
    assert (number, last and last.event) == (80, "recovered")
    assert len(driver.storage.list("alerts")) == 2 * 50  # with a mark that it was told


def test_without_hooks_nothing_is_claimed(driver: Driver, receiver: Receiver) -> None:
    silent = JobWatch(driver.directory, Hooks(AlertSettings()), driver.clock, RememberedAlerts())
    driver.say(JobState.FAILED, cause="x")
    assert silent.look() is not None
    assert silent.look() is None
    assert driver.storage.list("alerts") == []
    assert watch(driver, receiver).look() is not None


def test_what_cannot_be_read_is_logged_once(
    driver: Driver, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    watching = watch(driver, receiver)
    driver.storage.put("status.json", b"{")
    for _ in range(3):
        assert watching.look() is None
    assert caplog.text.count("cannot watch") == 1
    driver.storage.delete("status.json")
    assert watching.look() is None
    driver.storage.put("status.json", b"{")
    watching.look()
    assert caplog.text.count("cannot watch") == 2


def test_watching_looks_a_last_time(driver: Driver, receiver: Receiver) -> None:
    with watch(driver, receiver).watching():
        driver.say(JobState.FAILED, cause="x")
    assert receiver.events == ["failed"]


def test_with_a_damaged_record_it_is_rather_told_twice(
    driver: Driver, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.say(JobState.FAILED, cause="x")
    watch(driver, receiver).look()
    driver.storage.put("alerts/1.json", b"x")
    for _ in range(2):
        watch(driver, receiver).look()
    assert receiver.events == ["failed", "failed"]
    assert "cannot read which alerts were sent" in caplog.text
