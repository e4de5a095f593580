"""Files of a checkpoint stay while something else reads them."""

import threading
import time

import pytest

from coordinator_fakes import (
    HookedStorage,
    Job,
    ManualExecutors,
    RecordingCommitter,
    cut,
    memory,
    state_file,
    take_fence,
)
from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.retention import PinnedCheckpoint, PinnedFiles
from turnback.config.checkpointing import CheckpointSettings, ExternalizedCheckpointRetention
from turnback.errors import CheckpointError
from verification import verify

DELETE = ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION


def pin(job: Job) -> PinnedCheckpoint:
    future = job.coordinator.pin()
    job.coordinator.tick()
    return future.result(timeout=0)


def epoch(job: Job, number: int) -> None:
    job.epoch(number, [state_file(job.storage, f"state/1/{number}")])


def test_pinned_files_outlive_their_manifest_until_release() -> None:
    job = Job()
    epoch(job, 1)
    pinned = pin(job)
    assert pinned.manifest.trigger == "savepoint"
    for number in (2, 3):
        epoch(job, number)
        job.checkpoint()
    assert job.checkpoints() == [4]
    assert job.files() == ["state/1/1", "state/1/3"]
    pinned.release()
    assert job.files() == ["state/1/3"]
    pinned.release()


def test_a_checkpoint_that_is_there_already_is_pinned() -> None:
    job = Job()
    epoch(job, 1)
    job.checkpoint()
    with pin(job) as pinned:
        assert pinned.manifest.number == 2
        epoch(job, 2)
        job.checkpoint()
        assert job.files() == ["state/1/1", "state/1/2"]
    assert job.files() == ["state/1/2"]


def test_every_pin_counts() -> None:
    job = Job()
    epoch(job, 1)
    futures = [job.coordinator.pin() for _ in range(2)]
    job.coordinator.tick()
    first, second = (future.result(timeout=0) for future in futures)
    assert first.manifest is second.manifest
    epoch(job, 2)
    job.checkpoint()
    first.release()
    first.release()
    assert "state/1/1" in job.files()
    second.release()
    assert job.files() == ["state/1/2"]


def test_release_spares_what_a_checkpoint_still_references() -> None:
    job = Job()
    base = state_file(job.storage, "state/1/base")
    job.epoch(1, [base])
    pinned = pin(job)
    job.epoch(2, [base])
    job.checkpoint()
    pinned.release()
    assert job.files() == ["state/1/base"]
    assert verify(job.storage) == []


def test_the_clean_up_of_an_older_checkpoint_does_not_come_first() -> None:
    executors = ManualExecutors()
    job = Job(settings=CheckpointSettings(interval_ms=1_000, max_concurrent=3), executor=executors)
    epoch(job, 1)
    job.checkpoint()
    epoch(job, 2)
    future = job.coordinator.pin()
    job.coordinator.tick()
    epoch(job, 3)
    job.checkpoint()
    executors["manifest"].run()
    assert job.checkpoints() == [2, 3, 4]
    executors["commit"].tasks, rest = [], executors["commit"].tasks
    while not future.done():
        rest.pop(0)()
    assert job.checkpoints() == [4]  # its manifest went before it was complete
    assert "state/1/2" in job.files()
    for task in rest:
        task()
    executors.run()
    assert job.files() == ["state/1/2", "state/1/3"]
    future.result().release()
    executors.run()
    assert job.files() == ["state/1/3"]


def test_a_failed_checkpoint_holds_nothing() -> None:
    storage = HookedStorage(memory())
    job = Job(storage, CheckpointSettings(interval_ms=1_000, tolerable_failures=5))
    epoch(job, 1)
    storage.fail("put_if_absent", "checkpoints")
    future = job.coordinator.pin()
    job.coordinator.tick()
    assert future.exception(timeout=0) is not None
    storage.heal()
    epoch(job, 2)
    job.checkpoint()
    assert job.files() == ["state/1/2"]


def test_after_the_end_nothing_can_be_pinned() -> None:
    job = Job()
    waiting = job.coordinator.pin()
    job.coordinator.close()
    for future in (waiting, job.coordinator.pin()):
        with pytest.raises(CheckpointError, match="has ended"):
            future.result(timeout=0)


def test_cancellation_deletes_what_is_pinned_only_after_release() -> None:
    job = Job(settings=CheckpointSettings(interval_ms=1_000, retention=DELETE))
    epoch(job, 1)
    pinned = pin(job)
    epoch(job, 2)
    other = pin(job)
    job.coordinator.close(cancelled=True)
    assert job.checkpoints() == []
    assert job.files() == ["state/1/1", "state/1/2"]
    pinned.release()
    assert job.files() == ["state/1/2"]
    other.release()
    assert job.files() == []


def test_release_after_an_end_that_retains_deletes_nothing() -> None:
    job = Job()
    epoch(job, 1)
    pinned = pin(job)
    epoch(job, 2)
    job.checkpoint()
    job.coordinator.close(cancelled=True)
    pinned.release()
    assert job.files() == ["state/1/1", "state/1/2"]
    Job(job.storage, nonce="again")
    assert job.files() == ["state/1/2"]


def test_a_pin_survives_a_restart_of_the_job() -> None:
    storage, pins = memory(), PinnedFiles()
    first = start(storage, pins).start(thread=False)
    first.epoch_confirmed(cut(1, [state_file(storage, "state/1/1")]))
    future = first.pin()
    first.tick()
    until(future.done)
    first.epoch_confirmed(cut(2, [state_file(storage, "state/1/2")]))
    first.final()
    first.close()
    second = start(storage, pins).start(thread=False)
    second.epoch_confirmed(cut(3, [state_file(storage, "state/2/3")]))
    second.final()
    until(lambda: storage.list("state") == ["state/1/1", "state/2/3"])
    future.result().release()
    until(lambda: storage.list("state") == ["state/2/3"])
    second.close()


@pytest.mark.slow
def test_hammered_by_threads_no_pinned_file_is_ever_missing() -> None:
    storage = memory()
    coordinator = start(storage, PinnedFiles(), max_concurrent=3).start()
    stop = threading.Event()
    missing: list[str] = []
    pinned_count = [0] * 4

    def export(index: int) -> None:
        while not stop.is_set():
            try:
                pinned = coordinator.pin().result(timeout=20)
            except CheckpointError:
                return
            with pinned:
                for _ in range(3):
                    there = set(storage.list("state"))
                    missing.extend(set(pinned.manifest.files()) - there)
                    time.sleep(0.001)
            pinned_count[index] += 1

    threads = [threading.Thread(target=export, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    deadline, number = time.monotonic() + 3, 0
    while time.monotonic() < deadline:
        number += 1
        files = [state_file(storage, f"state/1/{number}-{part}") for part in range(3)]
        coordinator.epoch_confirmed(cut(number, files))
        time.sleep(0.001)
    stop.set()
    number += 1
    coordinator.epoch_confirmed(cut(number, [state_file(storage, "state/1/last")]))
    for thread in threads:
        thread.join(20)
    coordinator.final()
    coordinator.close()
    assert missing == []
    assert min(pinned_count) > 10
    assert verify(storage) == []
    assert storage.list("state") == ["state/1/last"]


def start(storage, pins: PinnedFiles, **options) -> CheckpointCoordinator:
    log = CheckpointLog(storage)
    take_fence(log, nonce=str(time.monotonic_ns()))
    return CheckpointCoordinator(
        log,
        CheckpointSettings(**{"interval_ms": 10} | options),
        {"sink": RecordingCommitter()},
        max_parallelism=128,
        pins=pins,
    )


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)
