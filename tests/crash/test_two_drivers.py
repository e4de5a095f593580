"""Two drivers of one job: faults 17 to 19."""

import json

import pytest

from crash.conftest import MakePlace
from crash.driver import Driver
from crash.place import SINKS, Place
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest

pytestmark = pytest.mark.timeout(900)


def test_fault_17_started_together_one_wins(place: MakePlace) -> None:
    job = place(6)
    drivers = [job.start(ahead=True) for _ in range(2)]
    for driver in drivers:
        driver.until_ready()
    with job.watched():
        for driver in drivers:
            driver.go()
        statuses = [driver.wait() for driver in drivers]
    assert sorted(statuses) == [0, 1], [driver.errors for driver in drivers]
    winner, loser = sorted(drivers, key=lambda driver: driver.process.returncode)
    assert loser.report["error"] in ("FencedError", "JobInUseError")
    assert loser.report["checkpoints"] == 0
    # One that was fenced was attempt 1, and may have prepared output after the winner cleaned up.
    fenced = 1 if loser.report["error"] == "FencedError" else None
    job.assert_settled(winner.report, alive=fenced)


@pytest.mark.parametrize("point", ["before-manifest:2", "after-manifest:2"])
def test_fault_18_and_19_a_zombie_wakes_after_it_was_replaced(place: MakePlace, point: str) -> None:
    job = place(6)
    zombie = job.start(TURNBACK_STOP_AT=point)
    successor = job.start(ahead=True)
    zombie.until_running(zombie.is_stopped, "stop")
    job.assert_consistent()
    take_over(job, successor)
    attempt = job.latest().attempt
    files = {s: job.visible(s) for s in SINKS}
    log = CheckpointLog(job.storage).numbers()
    status = job.status
    with job.watched():
        zombie.resume()
        assert zombie.wait() == 1, zombie.errors
    assert zombie.report["error"] == "FencedError"
    assert zombie.report["attempts"] == 1
    assert {s: job.visible(s) for s in SINKS} == files
    assert not job.examine(), job.examine()
    assert CheckpointLog(job.storage).numbers() == log
    assert job.latest().attempt == attempt
    assert job.status == status
    assert successor.report["restored_from"] is not None


@pytest.mark.exhaustive
def test_fault_18_a_zombie_does_not_restart(place: MakePlace) -> None:
    """Paused within an epoch, a zombie fails of files that are gone: that is no reason to go on."""
    job = place(6)
    slow = job.base / "slow"
    zombie = job.start(
        *("--interval", "3600000", "--restarts", "3", "--at", "k00:2", "--slow", str(slow))
    )
    successor = job.start(ahead=True)
    zombie.until_running(slow.exists, "come to the element")
    zombie.pause()
    take_over(job, successor)
    log = CheckpointLog(job.storage).numbers()
    (job.base / "slow-no-longer").touch()
    zombie.resume()
    assert zombie.wait() == 1, zombie.errors
    assert zombie.report["error"] == "FencedError"
    assert CheckpointLog(job.storage).numbers() == log
    assert not job.examine(), job.examine()


def take_over(job: Place, successor: Driver) -> None:
    """Run a second driver to the end, as on another machine that cannot see the first one's."""
    log = CheckpointLog(job.storage)
    zombie = log.newest().attempt
    status = job.status
    status["process"]["host"] = "elsewhere"
    (job.job / "status.json").write_text(json.dumps(status))
    successor.go()
    assert successor.wait() == 0, successor.errors
    job.assert_settled(successor.report, alive=zombie)
    newer = [slot for slot in map(log.get, log.numbers()) if slot.attempt > zombie]
    assert any(isinstance(slot, Manifest) for slot in newer)
