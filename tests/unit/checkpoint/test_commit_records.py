"""What is recorded of commits is each sink's own, and only ever goes up."""

from __future__ import annotations

import msgspec
import pytest

from coordinator_fakes import (
    HookedStorage,
    Job,
    ManualExecutors,
    RecordingCommitter,
    memory,
    take_fence,
)
from turnback.checkpoint.log import CheckpointLog
from turnback.config.checkpointing import CheckpointSettings
from turnback.errors import CheckpointError, CorruptFileError, NotFoundError
from turnback.storage.envelope import seal

OLD = seal("committed", 1, b'{"number":4}')


@pytest.fixture
def storage():
    return HookedStorage(memory())


def two_sinks(**options) -> tuple[Job, RecordingCommitter, RecordingCommitter]:
    good, bad = RecordingCommitter(), RecordingCommitter()
    bad.broken = ConnectionError("the database is down")
    options = {"settings": CheckpointSettings(interval_ms=1_000, tolerable_failures=9)} | options
    return Job(committers={"bad": bad, "good": good}, **options), good, bad


def left(job: Job) -> dict[str, tuple[bytes, ...]]:
    """What the next start gives to the sinks."""
    log = CheckpointLog(job.storage)
    return log.uncommitted(log.latest())


def test_a_sink_that_fails_does_not_undo_what_is_known_of_the_others() -> None:
    job, good, bad = two_sinks()
    job.epoch(1, transactions={"bad": (b"b1",), "good": (b"g1",)})
    job.checkpoint()
    assert good.visible == [b"g1"]
    assert left(job) == {"bad": (b"b1",)}
    job.epoch(2, transactions={"good": (b"g2",)})
    job.checkpoint()
    assert left(job) == {"bad": (b"b1",)}
    bad.broken = None
    job.checkpoint()
    assert left(job) == {}
    assert CheckpointLog(job.storage).committed() == job.log.latest().number


def test_what_an_earlier_checkpoint_committed_is_not_given_again() -> None:
    executors = ManualExecutors()
    settings = CheckpointSettings(interval_ms=1_000, tolerable_failures=9, max_concurrent=2)
    job, good, _ = two_sinks(executor=executors, settings=settings)
    job.epoch(1, transactions={"bad": (b"b1",), "good": (b"g1",)})
    job.checkpoint()
    job.epoch(2, transactions={"bad": (b"b2",)})
    job.checkpoint()  # the first commits nothing before this one is written
    executors["manifest"].run()
    assert job.log.latest().transactions == {"bad": (b"b1", b"b2"), "good": (b"g1",)}
    executors.run()
    assert good.calls == [(b"g1",)]
    assert left(job) == {"bad": (b"b1", b"b2")}


def test_what_is_committed_at_the_end_is_recorded() -> None:
    executors = ManualExecutors()
    job = Job(executor=executors, settings=CheckpointSettings(interval_ms=1_000, timeout_ms=500))
    job.epoch(1)
    job.checkpoint()
    executors["manifest"].run()
    job.sink.broken = ConnectionError("for a moment")
    executors["commit"].run()
    job.sink.broken = None
    assert left(job) == {"sink": (b"t1",)}
    job.coordinator.close()
    assert job.sink.visible == [b"t1"]
    assert left(job) == {}


def test_a_replaced_driver_cannot_turn_the_record_back(storage) -> None:
    zombie, successor = CheckpointLog(storage), CheckpointLog(storage)
    take_fence(zombie, "zombie")
    take_fence(successor, "successor")
    zombie.record_commit(2)

    def overtake(operation: str, path: str) -> None:
        if operation == "put":  # the zombie has read, and has not written yet
            storage.heal()
            successor.record_commit(7)
            successor.record_commit(8, ["files"])

    storage.before = overtake
    zombie.record_commit(3)
    assert CheckpointLog(storage).committed() == 7
    zombie.record_commit(5, ["files", "db"])
    known = CheckpointLog(storage)._commits.read()
    assert (known.number, known.sinks) == (7, {"files": 8})


def test_a_record_from_before_sinks_had_their_own_is_read_and_taken_over(storage) -> None:
    storage.put("checkpoints/committed.json", OLD)
    log = CheckpointLog(storage)
    assert log.committed() == 4
    take_fence(log)
    log.record_commit(3)
    assert log.committed() == 4
    log.record_commit(6, ["files"])
    log.record_commit(5)
    assert [p for p in storage.list("checkpoints") if "committed" in p] == [
        "checkpoints/committed-1.json"
    ]
    known = CheckpointLog(storage)._commits.read()
    assert (known.number, known.sinks) == (5, {"files": 6})


def test_the_number_of_records_does_not_grow_with_the_attempts(storage) -> None:
    for attempt in range(1, 6):
        log = CheckpointLog(storage)
        assert take_fence(log).attempt == attempt
        log.record_commit(attempt * 10)
        assert CheckpointLog(storage).committed() == attempt * 10
    assert [p for p in storage.list("checkpoints") if "committed" in p] == [
        "checkpoints/committed-5.json"
    ]


def test_a_record_that_is_taken_over_while_it_is_read_is_not_missed(storage) -> None:
    first, second = CheckpointLog(storage), CheckpointLog(storage)
    take_fence(first)
    first.record_commit(9)
    take_fence(second)

    def take_over(operation: str, path: str) -> None:
        if operation == "get":
            storage.heal()
            second.record_commit(9, ["files"])  # changes nothing
            second.record_commit(10, ["files"])
            with pytest.raises(NotFoundError):
                storage.get(path)

    storage.before = take_over
    known = CheckpointLog(storage)._commits.read()
    assert (known.number, known.sinks) == (9, {"files": 10})


def test_damage_is_an_error_and_only_an_attempt_records(storage) -> None:
    with pytest.raises(CheckpointError, match="for reading only"):
        CheckpointLog(storage).record_commit(1)
    storage.put("checkpoints/committed-3.json", msgspec.json.encode({"number": 1}))
    with pytest.raises(CorruptFileError, match="committed-3"):
        CheckpointLog(storage).committed()
