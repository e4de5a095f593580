"""Kill -9 of the driver at each step of the protocol: faults 1 to 7."""

import math
import signal

import pytest

from crash.conftest import MakePlace
from crash.driver import Driver
from crash.place import SINKS, Place, after_epoch, of_epoch
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest

pytestmark = pytest.mark.timeout(900)

KILLED = -signal.SIGKILL


def kill(job: Place, point: str, *arguments: str) -> None:
    """Run a driver until it dies at a point; check what a reader sees then."""
    with job.watched():
        driver = job.start("--kill-driver", *arguments, TURNBACK_KILL_AT=point)
        assert driver.wait() == KILLED, driver.errors
    job.assert_consistent()


def finish(job: Place, driver: Driver) -> None:
    """Run the job again, without a kill point; check that all is as if nothing had been."""
    resumed = job.latest()
    with job.watched():
        driver.go()
        assert driver.wait() == 0, driver.errors
    assert driver.report["restored_from"] == resumed.name
    job.assert_settled(driver.report)


def test_fault_1_before_all_state_files_are_durable(place: MakePlace) -> None:
    job = place(6)
    successor = job.start(ahead=True)
    kill(job, "before-last-state-file:3")
    safe = job.latest()
    orphans = job.orphans()
    assert [file for file in orphans if file.startswith("state/")]
    unconfirmed = {s: after_epoch(job.staged(s), safe.epoch) for s in SINKS}
    assert all(after_epoch(job.visible(s), safe.epoch) == set() for s in SINKS)
    finish(job, successor)
    assert job.job_files().isdisjoint(orphans)
    assert all(unconfirmed[s].isdisjoint(job.visible(s)) for s in SINKS)


def test_fault_2_after_pre_commit_before_the_manifest(place: MakePlace) -> None:
    job = place(6)
    successor = job.start(ahead=True)
    kill(job, "before-manifest:3")
    prepared = {s: after_epoch(job.staged(s), job.latest().epoch) for s in SINKS}
    assert all(prepared.values())
    finish(job, successor)
    assert all(prepared[s].isdisjoint(job.visible(s)) for s in SINKS)


def test_fault_3_after_the_manifest_before_the_sink_commit(place: MakePlace) -> None:
    job = place(6)
    successor = job.start(ahead=True)
    kill(job, "after-manifest:3")
    epoch = job.latest().epoch
    prepared = {s: of_epoch(job.staged(s), epoch) for s in SINKS}
    assert all(prepared.values())
    assert all(job.newest(s) < epoch for s in SINKS)
    finish(job, successor)
    assert all(prepared[s] <= set(job.visible(s)) for s in SINKS)


def test_fault_4_between_the_commits_of_two_sinks(place: MakePlace) -> None:
    job = place(6)
    successor = job.start(ahead=True)
    kill(job, "between-sink-commits:3")
    epoch = job.latest().epoch
    first, second = sorted(SINKS, key=job.newest, reverse=True)
    assert job.newest(first) == epoch > job.newest(second)
    committed, prepared = job.visible(first), of_epoch(job.staged(second), epoch)
    assert prepared
    finish(job, successor)
    assert committed.items() <= job.visible(first).items()
    assert prepared <= set(job.visible(second))


def test_fault_5_after_the_sink_commit_before_it_is_recorded(place: MakePlace) -> None:
    job = place(6)
    hashmap = ("--backend", "hashmap")  # all others use rocksdb
    successor = job.start(*hashmap, ahead=True)
    kill(job, "after-sink-commit:3", *hashmap)
    epoch = job.latest().epoch
    assert all(job.newest(s) == epoch for s in SINKS)
    assert CheckpointLog(job.storage).committed() < job.latest().number
    committed = {s: job.visible(s) for s in SINKS}
    finish(job, successor)
    assert all(committed[s].items() <= job.visible(s).items() for s in SINKS)


def test_fault_6_during_compaction(place: MakePlace) -> None:
    job = place(10)
    successor = job.start("--retain", "2", ahead=True)
    kill(job, "during-merge", "--retain", "2")
    assert len(job.retained()) == 2
    assert not any("-merged-" in file for file in job.latest().files())
    half_done = job.orphans()
    assert [file for file in half_done if "-merged-" in file]
    finish(job, successor)
    assert job.job_files().isdisjoint(half_done)


@pytest.mark.parametrize("point", ["after-merged-manifest", "before-merged-files-go"])
def test_fault_6_after_compaction(place: MakePlace, point: str) -> None:
    """A checkpoint has the merged file; the files it replaces are still there, or going."""
    job = place(13)
    successor = job.start(ahead=True)
    kill(job, point)
    needed = set(job.latest().files())
    assert [file for file in needed if "-merged-" in file]
    replaced = {file for file in job.job_files() - needed if file.startswith("state/")}
    assert replaced
    still_referenced = replaced - job.orphans()
    assert bool(still_referenced) == (point == "after-merged-manifest")
    finish(job, successor)
    assert job.job_files().isdisjoint(replaced)


def test_fault_6_during_clean_up(place: MakePlace) -> None:
    job = place(13)
    successor = job.start("--retain", "2", ahead=True)
    kill(job, "during-cleanup:14", "--retain", "2")
    surplus = {file for file in job.orphans() if file.startswith("state/")}
    assert surplus, "nothing but offset files was being deleted"
    oldest = job.retained()[0]
    assert oldest.number < job.latest().number
    clone = job.clone("oldest")
    restored = go_back(clone, oldest)
    finish(job, successor)
    assert job.job_files().isdisjoint(surplus)
    assert restored.wait() == 0, restored.errors
    assert restored.report["restored_from"] == oldest.name
    clone.assert_settled(restored.report)


def go_back(job: Place, checkpoint: Manifest) -> Driver:
    """Start from an older checkpoint; what came after it is taken away from the readers."""
    for sink in SINKS:
        for name in after_epoch(job.visible(sink), checkpoint.epoch):
            (job.output / sink / name).unlink()
    return job.start("--start-from", str(checkpoint.number))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_replay_with_other_batches_writes_the_same(
    place: MakePlace, before: int, after: int
) -> None:
    """What a function does with an element does not depend on which others come with it."""
    files = 12
    job = place(files, apart=3)
    # So that several epochs are replayed.
    slow = ("--interval", "300", "--epoch-interval", "200")
    successor = job.start(*slow, "--files", str(after), ahead=True)
    kill(job, "before-manifest:2", *slow, "--files", str(before))
    left = files - job.latest().epoch * before
    assert left > 0
    finish(job, successor)
    assert len(successor.report["epochs"]) == math.ceil(left / after)


@pytest.mark.exhaustive
def test_fault_7_three_times_during_recovery(place: MakePlace) -> None:
    job = place(6)
    successor = job.start(ahead=True)
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
    finish(job, successor)
    assert settled() == 2
