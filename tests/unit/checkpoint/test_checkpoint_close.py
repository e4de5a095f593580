"""The end of an attempt, and of a job that is cancelled."""

import pytest

from coordinator_fakes import (
    HookedStorage,
    Job,
    ManualExecutors,
    memory,
    settings,
    state_file,
    take_fence,
)
from turnback.checkpoint.log import CheckpointLog
from turnback.config.checkpointing import ExternalizedCheckpointRetention as Retain
from turnback.errors import (
    CheckpointError,
    StorageError,
)


def test_close_rolls_back_what_no_manifest_holds() -> None:
    job = Job()
    job.epoch(1)
    job.checkpoint()
    job.epoch(2)
    job.coordinator.close()
    job.coordinator.close()
    assert job.sink.aborted == [b"t2"]
    assert job.checkpoints() == [2]
    with pytest.raises(CheckpointError, match="ended"):
        job.coordinator.trigger().result(0)


def test_close_does_not_roll_back_what_a_manifest_may_hold() -> None:
    storage = HookedStorage(memory())
    job = Job(storage)
    storage.fail("put_if_absent", "chk-")
    job.epoch(1)
    job.checkpoint()
    job.coordinator.close()
    assert job.sink.aborted == []


def test_close_discards_a_checkpoint_that_is_not_being_written_yet() -> None:
    job = Job(executor=ManualExecutors())
    job.epoch(1)
    asked = job.coordinator.trigger()
    job.coordinator.tick()
    job.coordinator.close()
    with pytest.raises(CheckpointError, match="aborted"):
        asked.result(0)
    assert job.checkpoints() == []
    assert job.sink.aborted == [b"t1"]
    assert (job.coordinator.failure, job.coordinator.failed) == (None, 0)


def test_cancelling_keeps_the_checkpoints_unless_told_otherwise() -> None:
    job = Job()
    job.epoch(1)
    job.checkpoint()
    job.coordinator.close(cancelled=True)
    assert job.checkpoints() == [2]


def test_cancelling_can_delete_the_checkpoints() -> None:
    storage = memory()
    job = Job(storage, settings(retention=Retain.DELETE_ON_CANCELLATION))
    job.epoch(1, [state_file(storage, "state/1/a")])
    job.checkpoint()
    job.epoch(2, [state_file(storage, "state/1/a"), state_file(storage, "state/1/b")])
    job.coordinator.close(cancelled=True)
    assert job.checkpoints() == []
    assert job.files() == []
    assert job.sink.aborted == [b"t2"]
    assert take_fence(CheckpointLog(storage), nonce="x").number == 4


def test_an_end_that_is_no_cancellation_deletes_nothing() -> None:
    job = Job(settings=settings(retention=Retain.DELETE_ON_CANCELLATION))
    job.epoch(1)
    job.coordinator.final()
    job.coordinator.close()
    assert job.checkpoints() == [2]


def test_close_gives_durable_work_a_last_chance() -> None:
    job = Job(settings=settings(tolerable_failures=1))
    job.sink.broken = RuntimeError("down for a moment")
    job.epoch(1)
    job.checkpoint()
    job.epoch(2)
    job.sink.broken = None
    job.coordinator.close()
    assert job.sink.visible == [b"t1"]
    assert job.sink.aborted == [b"t2"]


def test_cancelling_with_a_write_of_unknown_outcome_settles_it_first() -> None:
    storage = HookedStorage(memory())
    job = Job(
        storage,
        settings(tolerable_failures=1, retention=Retain.DELETE_ON_CANCELLATION),
    )

    def lose(operation: str, path: str) -> None:
        if path.endswith("chk-2.json") and operation in ("put_if_absent", "get"):
            raise StorageError("connection reset")

    job.epoch(1, [state_file(storage, "state/1/a")])
    storage.after = lose
    job.checkpoint()
    storage.heal()
    job.epoch(2)
    job.coordinator.close(cancelled=True)
    assert job.sink.visible == [b"t1"]
    assert job.sink.aborted == [b"t2"]
    assert job.checkpoints() == []
    assert job.files() == []


def test_cancelling_rolls_back_what_turns_out_not_to_be_durable() -> None:
    storage = HookedStorage(memory())
    job = Job(
        storage,
        settings(tolerable_failures=1, retention=Retain.DELETE_ON_CANCELLATION),
    )
    storage.fail("put_if_absent", "chk-")
    job.epoch(1)
    job.checkpoint()
    storage.heal()
    job.coordinator.close(cancelled=True)
    assert job.sink.visible == []
    assert job.sink.aborted == [b"t1"]
