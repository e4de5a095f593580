"""A driver that was replaced without knowing it."""

import pytest

from coordinator_fakes import (
    Job,
    ManualExecutors,
    memory,
    settings,
    state_file,
    take_fence,
)
from turnback.checkpoint.log import CheckpointLog
from turnback.config.checkpointing import CheckpointingMode
from turnback.errors import (
    FencedError,
)


def test_a_zombie_commits_nothing() -> None:
    job = Job()
    job.epoch(1)
    take_fence(CheckpointLog(job.storage), nonce="newer")
    job.checkpoint()
    assert job.sink.calls == []
    assert isinstance(job.coordinator.failure, FencedError)
    assert job.failures == [job.coordinator.failure]
    with pytest.raises(FencedError):
        job.epoch(2)
    with pytest.raises(FencedError):
        job.coordinator.final()
    job.coordinator.close()
    assert job.sink.calls == []
    assert job.sink.aborted == []
    assert job.checkpoints() == []


def test_fencing_is_not_a_tolerable_failure() -> None:
    job = Job(settings=settings(tolerable_failures=100))
    job.epoch(1)
    take_fence(CheckpointLog(job.storage), nonce="newer")
    job.checkpoint()
    assert isinstance(job.coordinator.failure, FencedError)


def test_a_zombie_deletes_nothing() -> None:
    executors = ManualExecutors()
    storage = memory()
    job = Job(storage, executor=executors)
    job.epoch(1, [state_file(storage, "state/1/a")])
    job.checkpoint()
    executors.run()
    job.epoch(2, [state_file(storage, "state/1/b")])
    job.checkpoint()
    executors["manifest"].run()
    take_fence(CheckpointLog(storage), nonce="newer")
    executors.run()
    assert job.checkpoints() == [2, 3]
    assert job.files() == ["state/1/a", "state/1/b"]
    assert isinstance(job.coordinator.failure, FencedError)


def test_an_at_least_once_zombie_commits_nothing() -> None:
    job = Job(settings=settings(mode=CheckpointingMode.AT_LEAST_ONCE))
    job.epoch(1)
    take_fence(CheckpointLog(job.storage), nonce="newer")
    with pytest.raises(FencedError):
        job.epoch(2)
    assert job.sink.visible == [b"t1"]


def test_who_waits_is_told_of_a_failure() -> None:
    executors = ManualExecutors()
    job = Job(executor=executors)
    job.epoch(1)
    job.checkpoint()
    asked = job.coordinator.trigger()
    take_fence(CheckpointLog(job.storage), nonce="newer")
    executors.run()
    with pytest.raises(FencedError):
        asked.result(0)


def test_a_zombie_rolls_nothing_back() -> None:
    executors = ManualExecutors()
    job = Job(executor=executors)
    job.epoch(1)
    job.checkpoint()
    job.epoch(2)
    take_fence(CheckpointLog(job.storage), nonce="newer")
    executors.run()
    job.coordinator.close()
    assert job.sink.aborted == []
    assert job.sink.calls == []
