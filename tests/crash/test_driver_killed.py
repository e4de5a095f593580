"""Kill -9 of the driver at each step of the protocol: faults 1 to 7."""

import signal

import pytest

from crash.conftest import MakePlace
from crash.driver import Driver
from crash.place import SINKS, Place, after_epoch, of_epoch
from turnback.coordinator import Manifest

pytestmark = pytest.mark.timeout(900)

KILLED = -signal.SIGKILL


def kill(place: Place, point: str, *arguments: str) -> None:
    """Run a driver until it dies at a point; check what a reader sees then."""
    with place.watched():
        driver = place.start("--kill-driver", *arguments, TURNBACK_KILL_AT=point)
        assert driver.wait() == KILLED, driver.errors
    assert driver.members() == []
    place.assert_consistent()


def finish(place: Place, *arguments: str) -> Driver:
    """Run the same command without the kill point; check that all is as if nothing had been."""
    resumed = place.latest()
    with place.watched():
        driver = place.start("--kill-driver", *arguments)
        assert driver.wait() == 0, driver.errors
    assert driver.report["restored_from"] == resumed.name
    place.assert_settled(driver.report)
    return driver


def test_fault_1_before_all_state_files_are_durable(place: MakePlace) -> None:
    job = place(6)
    kill(job, "before-state-file:7")
    safe = job.latest()
    orphans = job.orphans()
    unconfirmed = {s: after_epoch(job.staged(s), safe.epoch) for s in SINKS}
    assert all(after_epoch(job.visible(s), safe.epoch) == set() for s in SINKS)
    finish(job)
    assert job.job_files().isdisjoint(orphans)
    assert all(unconfirmed[s].isdisjoint(job.visible(s)) for s in SINKS)


def test_fault_2_after_pre_commit_before_the_manifest(place: MakePlace) -> None:
    job = place(6)
    kill(job, "before-manifest:3")
    prepared = {s: after_epoch(job.staged(s), job.latest().epoch) for s in SINKS}
    assert all(prepared.values())
    finish(job)
    assert all(prepared[s].isdisjoint(job.visible(s)) for s in SINKS)


def test_fault_3_after_the_manifest_before_the_sink_commit(place: MakePlace) -> None:
    job = place(6)
    kill(job, "after-manifest:3")
    epoch = job.latest().epoch
    prepared = {s: of_epoch(job.staged(s), epoch) for s in SINKS}
    assert all(prepared.values())
    assert all(job.newest(s) < epoch for s in SINKS)
    finish(job)
    assert all(prepared[s] <= set(job.visible(s)) for s in SINKS)


def test_fault_4_between_the_commits_of_two_sinks(place: MakePlace) -> None:
    job = place(6)
    kill(job, "between-sink-commits:3")
    epoch = job.latest().epoch
    first, second = sorted(SINKS, key=job.newest, reverse=True)
    assert job.newest(first) == epoch > job.newest(second)
    committed, prepared = job.visible(first), of_epoch(job.staged(second), epoch)
    assert prepared
    finish(job)
    assert committed.items() <= job.visible(first).items()
    assert prepared <= set(job.visible(second))


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_fault_5_after_the_sink_commit_before_it_is_recorded(
    place: MakePlace, backend: str
) -> None:
    job = place(6)
    kill(job, "after-sink-commit:3", "--backend", backend)
    epoch = job.latest().epoch
    assert all(job.newest(s) == epoch for s in SINKS)
    committed = {s: job.visible(s) for s in SINKS}
    finish(job, "--backend", backend)
    assert all(committed[s].items() <= job.visible(s).items() for s in SINKS)


def test_fault_6_during_compaction(place: MakePlace) -> None:
    job = place(10)
    kill(job, "during-merge", "--retain", "2")
    assert len(job.retained()) == 2
    assert not any("merged" in file for file in job.latest().files())
    half_done = job.orphans()
    finish(job, "--retain", "2")
    assert job.job_files().isdisjoint(half_done)


def test_fault_6_during_clean_up(place: MakePlace) -> None:
    job = place(13)
    kill(job, "during-cleanup:14", "--retain", "2")
    surplus = {file for file in job.orphans() if file.startswith("state/")}
    assert surplus, "nothing but offset files was being deleted"
    oldest = job.retained()[0]
    assert oldest.number < job.latest().number
    restore(job.clone("oldest"), oldest)
    finish(job, "--retain", "2")
    assert job.job_files().isdisjoint(surplus)


def restore(job: Place, checkpoint: Manifest) -> None:
    """Go back to an older checkpoint; what came after it is taken away from the readers."""
    for sink in SINKS:
        for name in after_epoch(job.visible(sink), checkpoint.epoch):
            (job.output / sink / name).unlink()
    driver = job.start("--start-from", str(checkpoint.number))
    assert driver.wait() == 0, driver.errors
    assert driver.report["restored_from"] == checkpoint.name
    job.assert_settled(driver.report)


def test_fault_7_three_times_during_recovery(place: MakePlace) -> None:
    job = place(6)
    kill(job, "after-manifest:2")
    promised = job.latest()
    prepared = {s: of_epoch(job.staged(s), promised.epoch) for s in SINKS}

    def settled() -> int:
        return sum(prepared[s] <= set(job.visible(s)) for s in SINKS)

    assert settled() == 0
    kill(job, "after-fence")
    assert settled() == 0
    kill(job, "during-recovery")
    assert settled() == 1
    kill(job, "before-first-epoch")
    assert settled() == 2
    assert job.latest() == promised
    finish(job)
    assert settled() == 2
