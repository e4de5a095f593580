import pytest

from coordinator_fakes import (
    HookedStorage,
    Job,
    ManualExecutors,
    RecordingCommitter,
    memory,
    state_file,
    take_fence,
)
from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.config.checkpointing import CheckpointingMode, CheckpointSettings
from turnback.config.checkpointing import ExternalizedCheckpointRetention as Retain
from turnback.core.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CommitStateUnknownError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    SinkError,
    StorageError,
)
from turnback.job.history import CheckpointFailed, CheckpointStats, read_history


def settings(**options) -> CheckpointSettings:
    return CheckpointSettings(**{"interval_ms": 1_000} | options)


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
    job.coordinator._protocol._clean_up()
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


def test_at_least_once_never_loses_what_could_not_be_committed() -> None:
    job = Job(settings=settings(mode=CheckpointingMode.AT_LEAST_ONCE))
    job.sink.broken = RuntimeError("down")
    with pytest.raises(SinkError, match="down"):
        job.epoch(1)
    job.sink.broken = None
    job.checkpoint()
    assert job.log.latest().transactions == {"sink": (b"t1",)}
    assert job.sink.visible == [b"t1"]


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
