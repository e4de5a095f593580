"""Checkpoints that take too long or fail."""

import pytest

from coordinator_fakes import (
    HookedStorage,
    Job,
    ManualExecutors,
    RecordingCommitter,
    memory,
    settings,
    state_file,
)
from turnback.checkpoint.log import slot_path
from turnback.config.checkpointing import CheckpointingMode
from turnback.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CommitStateUnknownError,
    ConfigurationError,
    CorruptFileError,
    SinkError,
    StorageError,
)
from turnback.job.history import CheckpointFailed, read_history


def test_past_the_timeout_it_is_discarded_and_the_next_one_carries_its_transactions() -> None:
    executors = ManualExecutors()
    job = Job(settings=settings(timeout_ms=500, tolerable_failures=1), executor=executors)
    job.epoch(1)
    asked = job.coordinator.trigger()
    job.coordinator.tick()
    job.clock.advance(499)
    job.coordinator.tick()
    assert not asked.done()
    job.clock.advance(1)
    job.coordinator.tick()
    with pytest.raises(CheckpointTimeoutError, match=r"epoch 1 .*500 ms.*waiting"):
        asked.result(0)
    executors.run()
    assert job.checkpoints() == []
    job.epoch(2)
    job.checkpoint()
    executors.run()
    assert job.log.latest().transactions == {"sink": (b"t1", b"t2")}
    assert job.sink.visible == [b"t1", b"t2"]
    job.history.flush()
    failed = [r.event for r in read_history(job.storage) if isinstance(r.event, CheckpointFailed)]
    assert [(f.epoch, f.timed_out, f.number) for f in failed] == [(1, True, None)]
    assert job.coordinator.failure is None


def test_a_manifest_that_lands_after_the_timeout_is_not_committed_but_kept_consistent() -> None:
    storage = HookedStorage(memory())
    job = Job(storage, settings(timeout_ms=500, tolerable_failures=1))

    def slow(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            storage.heal()
            job.clock.advance(500)
            job.coordinator.tick()

    job.epoch(1)
    storage.before = slow
    job.checkpoint()
    assert job.checkpoints() == [2]
    assert job.sink.calls == []
    job.epoch(2)
    job.checkpoint()
    assert job.log.latest().number == 3
    assert job.log.latest().transactions == {"sink": (b"t1", b"t2")}
    assert job.checkpoints() == [3]
    assert job.sink.visible == [b"t1", b"t2"]


def test_a_slow_sink_times_the_checkpoint_out_and_commits_are_not_run_twice_at_once() -> None:
    executors = ManualExecutors()
    job = Job(settings=settings(timeout_ms=500, tolerable_failures=1), executor=executors)
    job.epoch(1)
    job.checkpoint()
    executors["manifest"].run()
    job.clock.advance(500)
    job.coordinator.tick()
    job.epoch(2)
    job.checkpoint()
    executors["manifest"].run()
    assert job.log.latest().transactions == {"sink": (b"t1", b"t2")}
    executors.run()
    assert job.sink.calls == [(b"t1",), (b"t2",)]
    assert job.log.committed() == 3


def test_too_many_failures_in_a_row_fail_the_job() -> None:
    storage = HookedStorage(memory())
    job = Job(storage, settings(tolerable_failures=2))
    storage.fail("put_if_absent", "chk-")
    for epoch in (1, 2):
        job.epoch(epoch)
        job.checkpoint()
    assert job.coordinator.failure is None
    job.epoch(3)
    asked = job.coordinator.trigger()
    job.coordinator.tick()
    with pytest.raises(CommitStateUnknownError):
        asked.result(0)
    with pytest.raises(CheckpointError, match=r"'job'.*3 .*2 are tolerated.*no answer") as raised:
        job.epoch(4)
    assert isinstance(raised.value.__cause__, StorageError)
    assert job.failures == [job.coordinator.failure]
    with pytest.raises(CheckpointError):
        job.coordinator.trigger().result(0)
    job.checkpoint()
    assert job.checkpoints() == []


def test_by_default_no_failure_is_tolerated() -> None:
    storage = HookedStorage(memory())
    job = Job(storage)
    storage.fail("put_if_absent", "chk-")
    job.epoch(1)
    job.checkpoint()
    with pytest.raises(CheckpointError):
        job.epoch(2)


def test_a_complete_checkpoint_forgives_the_failures_before() -> None:
    storage = HookedStorage(memory())
    job = Job(storage, settings(tolerable_failures=1))
    for epoch in range(1, 9):
        storage.heal()
        if epoch % 2:
            storage.fail("put_if_absent", "chk-")
        job.epoch(epoch)
        job.checkpoint()
    assert job.coordinator.failure is None
    assert job.sink.visible == [f"t{n}".encode() for n in range(1, 9)]


def test_a_write_of_unknown_outcome_keeps_its_files_until_it_is_known() -> None:
    storage = HookedStorage(memory())
    job = Job(storage, settings(tolerable_failures=5))

    def lose(operation: str, path: str) -> None:
        if path.endswith("chk-2.json") and operation in ("put_if_absent", "get"):
            raise StorageError("connection reset")

    a, b = state_file(storage, "state/1/a"), state_file(storage, "state/1/b")
    job.epoch(1, [a])
    storage.after = lose
    job.checkpoint()
    job.epoch(2, [b])
    storage.heal()
    # The outcome of chk-2 is not known, so `a` must not go.
    job.coordinator._protocol.clean_up()
    assert job.files() == ["state/1/a", "state/1/b"]
    job.checkpoint()
    assert job.log.latest().transactions == {"sink": (b"t1", b"t2")}
    assert job.checkpoints() == [3]
    assert job.files() == ["state/1/b"]


def test_a_corrupt_slot_in_the_way_is_fatal() -> None:
    storage = memory()
    job = Job(storage, settings(tolerable_failures=5))
    job.epoch(1)
    storage.put(slot_path(2), b"rubbish")
    job.checkpoint()
    assert isinstance(job.coordinator.failure, CorruptFileError)
    assert job.sink.calls == []


def test_a_sink_that_cannot_commit_leaves_its_work_to_the_next_checkpoint() -> None:
    sinks = {"good": RecordingCommitter(), "bad": RecordingCommitter()}
    job = Job(settings=settings(tolerable_failures=1), committers=sinks)
    sinks["bad"].broken = RuntimeError("database is down")
    job.epoch(1, transactions={"bad": (b"b1",), "good": (b"g1",)})
    job.checkpoint()
    assert job.checkpoints() == [2]
    assert sinks["good"].visible == [b"g1"]
    assert job.log.committed() == 0
    sinks["bad"].broken = None
    # No new epoch is needed: work is left over.
    job.checkpoint()
    assert job.log.latest().transactions == {"bad": (b"b1",)}
    assert sinks["bad"].visible == [b"b1"]
    assert sinks["good"].calls == [(b"g1",)]
    assert job.log.committed() == 3


def test_a_target_that_another_job_has_taken_over_fails_the_job_at_once() -> None:
    sinks = {"down": RecordingCommitter(), "taken": RecordingCommitter()}
    job = Job(settings=settings(tolerable_failures=5), committers=sinks)
    sinks["down"].broken = ConnectionError("for a moment")
    sinks["taken"].broken = ConfigurationError("it belongs to job 'b'")
    job.epoch(1, transactions={"down": (b"d1",), "taken": (b"t1",)})
    job.checkpoint()
    assert job.failures == [sinks["taken"].broken]
    with pytest.raises(ConfigurationError, match="it belongs to job 'b'"):
        job.epoch(2, transactions={})


def test_a_sink_that_cannot_commit_fails_the_job_when_nothing_is_tolerated() -> None:
    job = Job()
    job.sink.broken = KeyboardInterrupt("odd, but user code")  # type: ignore[assignment]
    job.epoch(1)
    job.checkpoint()
    with pytest.raises(CheckpointError, match="sink 'sink' could not commit 1 transactions"):
        job.epoch(2)
    assert isinstance(job.coordinator.failure.__cause__, SinkError)


def test_at_least_once_never_loses_what_could_not_be_committed() -> None:
    job = Job(settings=settings(mode=CheckpointingMode.AT_LEAST_ONCE))
    job.sink.broken = RuntimeError("down")
    with pytest.raises(SinkError, match="down"):
        job.epoch(1)
    job.sink.broken = None
    job.checkpoint()
    assert job.log.latest().transactions == {"sink": (b"t1",)}
    assert job.sink.visible == [b"t1"]


def test_final_tries_again_within_what_is_tolerated() -> None:
    storage = HookedStorage(memory())
    job = Job(storage, settings(tolerable_failures=3))
    job.epoch(1)
    left = [6]  # a claim asks twice

    def flaky(operation: str, path: str) -> None:
        if operation == "put_if_absent" and left[0]:
            left[0] -= 1
            raise StorageError("down")

    storage.before = flaky
    assert job.coordinator.final().number == 2
    assert job.sink.visible == [b"t1"]
    left[0] = 100
    job.epoch(2)
    with pytest.raises(CheckpointError, match="4 checkpoint"):
        job.coordinator.final()
