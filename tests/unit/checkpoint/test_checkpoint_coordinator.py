"""Checkpoints as they should be: when they are taken, and what is in them."""

import pytest

from coordinator_fakes import (
    HookedStorage,
    Job,
    ManualExecutors,
    memory,
    settings,
    state_file,
)
from turnback.config.checkpointing import CheckpointingMode, CheckpointSettings
from turnback.errors import (
    CheckpointError,
    SinkError,
)
from turnback.job.history import CheckpointStats, read_history


def test_a_checkpoint_holds_the_newest_epoch_and_all_transactions_since_the_last() -> None:
    job = Job()
    job.epoch(1)
    job.epoch(2)
    assert job.checkpoints() == []
    assert job.sink.visible == []
    job.checkpoint()
    manifest = job.log.latest()
    assert (manifest.number, manifest.epoch, manifest.parent) == (2, 2, None)
    assert manifest.transactions == {"sink": (b"t1", b"t2")}
    assert manifest.sources["source"].offset == '{"offset": 2}'
    assert job.sink.visible == [b"t1", b"t2"]
    assert job.log.committed() == 2

    job.epoch(3)
    job.checkpoint()
    manifest = job.log.latest()
    assert (manifest.number, manifest.parent) == (3, 2)
    assert manifest.transactions == {"sink": (b"t3",)}


def test_nothing_new_no_checkpoint() -> None:
    job = Job()
    job.checkpoint()
    assert job.checkpoints() == []
    job.epoch(1)
    job.checkpoint()
    job.checkpoint()
    assert job.checkpoints() == [2]
    # It is overdue, so the next epoch gets one at once.
    job.epoch(2)
    job.coordinator.tick()
    assert job.checkpoints() == [3]


def test_sinks_commit_only_after_the_manifest_is_durable() -> None:
    storage = HookedStorage(memory())
    job = Job(storage)
    job.epoch(1)
    storage.before = lambda operation, path: (
        pytest.fail("committed first")
        if operation == "put_if_absent" and job.sink.visible
        else None
    )
    job.checkpoint()
    assert job.sink.visible == [b"t1"]


def test_epochs_go_on_while_a_checkpoint_is_written() -> None:
    executors = ManualExecutors()
    job = Job(executor=executors)
    job.epoch(1)
    job.checkpoint()
    job.epoch(2)
    job.epoch(3)
    executors.run()
    assert job.log.latest().epoch == 1
    assert job.sink.visible == [b"t1"]
    job.checkpoint()
    executors.run()
    assert job.log.latest().transactions == {"sink": (b"t2", b"t3")}


def test_one_at_a_time_by_default() -> None:
    executors = ManualExecutors()
    job = Job(executor=executors)
    job.epoch(1)
    job.checkpoint()
    job.epoch(2)
    job.checkpoint()
    assert len(executors["manifest"].tasks) == 1
    executors.run()
    job.coordinator.tick()
    executors.run()
    assert job.log.latest().epoch == 2


def test_concurrent_checkpoints_carry_what_is_not_yet_committed_and_commit_it_once() -> None:
    executors = ManualExecutors()
    job = Job(settings=settings(max_concurrent=2), executor=executors)
    job.epoch(1)
    job.checkpoint()
    executors["manifest"].run()
    job.epoch(2)
    job.checkpoint()
    executors["manifest"].run()
    assert job.log.latest().transactions == {"sink": (b"t1", b"t2")}
    executors.run()
    assert job.sink.calls == [(b"t1",), (b"t2",)]


def test_at_least_once_commits_at_the_end_of_each_epoch() -> None:
    job = Job(settings=settings(mode=CheckpointingMode.AT_LEAST_ONCE))
    job.epoch(1)
    job.epoch(2)
    assert job.sink.visible == [b"t1", b"t2"]
    assert job.checkpoints() == []
    job.checkpoint()
    assert job.log.latest().transactions == {}
    assert job.log.latest().epoch == 2
    assert job.sink.calls == [(b"t1",), (b"t2",)]


def test_without_checkpoints_sinks_commit_every_epoch_and_nothing_is_kept() -> None:
    storage = memory()
    job = Job(storage, CheckpointSettings())
    job.epoch(1, [state_file(storage, "state/1/a")])
    job.epoch(2, [state_file(storage, "state/1/b")])
    job.checkpoint()
    assert job.coordinator.final() is None
    assert job.sink.visible == [b"t1", b"t2"]
    assert job.checkpoints() == []
    assert job.files() == ["state/1/b"]


def test_a_manual_checkpoint_does_not_wait_for_the_interval() -> None:
    job = Job()
    asked = job.coordinator.trigger()
    job.coordinator.tick()
    assert not asked.done()
    job.epoch(1)
    job.coordinator.tick()
    done = asked.result(0)
    assert (done.number, done.trigger) == (2, "manual")
    again = job.coordinator.trigger()
    job.coordinator.tick()
    assert again.result(0) is done


def test_final_covers_the_newest_epoch_and_is_taken_once() -> None:
    job = Job()
    assert job.coordinator.final() is None
    job.epoch(1)
    done = job.coordinator.final()
    assert (done.number, done.epoch, done.trigger) == (2, 1, "final")
    assert job.coordinator.final() is done
    assert job.sink.visible == [b"t1"]


def test_the_history_tells_sizes_and_durations() -> None:
    executors = ManualExecutors()
    storage = memory()
    job = Job(storage, executor=executors)
    a = state_file(storage, "state/1/a", b"x" * 10)
    job.epoch(1, [a])
    job.checkpoint()
    job.clock.advance(3)
    executors["manifest"].tasks.insert(0, lambda: None)
    executors["manifest"].run()
    job.clock.advance(5)
    executors.run()
    job.epoch(2, [a, state_file(storage, "state/1/b", b"x" * 7)])
    job.checkpoint()
    executors.run()
    job.coordinator.close()
    events = [r.event for r in read_history(storage)]
    assert events == [
        CheckpointStats(2, 1, "periodic", 3, 0, 5, 10, 1, 10, 1),
        CheckpointStats(3, 2, "periodic", 0, 0, 0, 7, 1, 17, 2),
    ]


def test_epochs_must_go_up_and_sinks_must_be_known() -> None:
    job = Job()
    job.epoch(5)
    with pytest.raises(CheckpointError, match=r"epoch 5 .* epoch 5"):
        job.epoch(5)
    with pytest.raises(SinkError, match="stranger"):
        job.epoch(6, transactions={"stranger": (b"x",)})


def test_tick_says_when_to_come_back() -> None:
    executors = ManualExecutors()
    job = Job(settings=settings(timeout_ms=5_000), executor=executors)
    assert job.coordinator.tick() is None
    job.clock.advance(400)
    job.epoch(1)
    assert job.coordinator.tick() == 0.6
    job.clock.advance(600)
    assert job.coordinator.tick() == 5
    job.clock.advance(1_000)
    assert job.coordinator.tick() == 4
