"""What tasks have prepared and nobody will commit goes between two epochs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

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
from turnback.checkpoint.protocol import SerialThread
from turnback.config.checkpointing import CheckpointSettings
from turnback.errors import FencedError, SinkError, StorageError


class Locking(RecordingCommitter):
    """A database whose prepared transactions hold locks; tasks of an epoch want the same rows."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: dict[bytes, str] = {}
        self.known: list[tuple[bytes, ...]] = []
        self.committing, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def prepare(self, transaction: bytes, row: str) -> None:
        if row in self.prepared.values():
            raise TimeoutError(f"{row} is locked")
        self.prepared[transaction] = row

    def commit(self, transactions: Sequence[bytes]) -> None:
        self.committing.set()
        assert self.gate.wait(60)
        super().commit(transactions)
        for transaction in transactions:
            self.prepared.pop(transaction, None)

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        self.known.append(tuple(known))
        for transaction in [t for t in self.prepared if t not in known]:
            del self.prepared[transaction]


@pytest.fixture
def sink():
    return Locking()


def job_with(sink: RecordingCommitter, **options) -> Job:
    return Job(committers={"sink": sink}, **options)


def test_an_epoch_can_be_replayed_although_its_first_run_holds_locks(sink) -> None:
    job = job_with(sink)
    sink.prepare(b"t1", "row 1")
    job.epoch(1)
    sink.prepare(b"first run", "row 2")  # of epoch 2, in which tasks were in conflict
    with pytest.raises(TimeoutError):
        sink.prepare(b"t2", "row 2")
    assert job.coordinator.abort_orphans()
    sink.prepare(b"t2", "row 2")
    job.epoch(2)
    job.checkpoint()
    assert sink.visible == [b"t1", b"t2"]
    assert sink.known == [(b"t1",)]
    assert sink.prepared == {}


def test_everything_that_waits_for_its_commit_is_known(sink) -> None:
    job = job_with(sink, settings=CheckpointSettings(interval_ms=1_000, tolerable_failures=5))
    job.epoch(1)
    job.checkpoint()  # committed
    job.epoch(2)
    sink.broken = ConnectionError("for a moment")
    job.checkpoint()  # in a manifest, and not committed
    job.epoch(3)
    assert job.coordinator.abort_orphans()
    assert sink.known == [(b"t2", b"t3")]


def test_it_is_not_done_while_the_sink_commits(sink) -> None:
    job = job_with(sink, executor=SerialThread)
    job.epoch(1)
    sink.gate.clear()
    job.checkpoint()
    assert sink.committing.wait(60)
    done: list[bool] = []
    waits = threading.Thread(target=lambda: done.append(job.coordinator.abort_orphans()))
    waits.start()
    waits.join(0.2)
    assert (done, sink.known) == ([], [])
    sink.gate.set()
    waits.join(60)
    assert (done, sink.known) == ([True], [()])
    job.coordinator.close()


def test_when_commits_take_too_long_it_is_left_to_later(sink) -> None:
    """Once nobody waits for it, it must not happen: the next epoch's tasks are writing."""
    settings = CheckpointSettings(interval_ms=1_000, timeout_ms=10)
    executors = ManualExecutors()
    job = job_with(sink, settings=settings, executor=executors)
    assert not job.coordinator.abort_orphans()
    sink.prepare(b"t1", "row")  # of the next epoch
    executors.run()
    assert sink.prepared == {b"t1": "row"}
    assert sink.known == []


def test_a_sink_that_never_ends_fails_the_attempt(sink, monkeypatch) -> None:
    settings = CheckpointSettings(interval_ms=1_000, timeout_ms=50)
    job = job_with(sink, settings=settings, executor=SerialThread)
    ended = threading.Event()
    monkeypatch.setattr(sink, "abort_orphans", lambda known: ended.wait(10))
    with pytest.raises(SinkError, match=r"did not roll back .* 0\.05 s"):
        job.coordinator.abort_orphans()
    ended.set()
    job.coordinator.close()


def test_a_replaced_driver_rolls_nothing_back(sink) -> None:
    job = job_with(sink)
    take_fence(CheckpointLog(job.storage), "successor")
    sink.prepare(b"of the successor", "row")
    with pytest.raises(FencedError):
        job.coordinator.abort_orphans()
    assert sink.prepared == {b"of the successor": "row"}


def test_storage_that_does_not_answer_is_no_reason_to_fail(sink) -> None:
    storage = HookedStorage(memory())
    job = job_with(sink, storage=storage)
    storage.fail("get", "chk-")
    assert not job.coordinator.abort_orphans()
    storage.heal()
    assert job.coordinator.abort_orphans()


def test_what_fails_is_left_to_the_next_start(sink, caplog, monkeypatch) -> None:
    def fail(known: Sequence[bytes]) -> None:
        raise StorageError("no connection")

    broken = Locking()
    monkeypatch.setattr(broken, "abort_orphans", fail)
    job = Job(committers={"broken": broken, "sink": sink, "without": RecordingCommitter()})
    assert job.coordinator.abort_orphans()
    assert sink.known == [()]
    assert "'broken' cannot roll back" in caplog.text


def test_sinks_that_cannot_do_it_are_not_waited_for() -> None:
    executors = ManualExecutors()
    job = Job(executor=executors)
    executors.run()
    assert job.coordinator.abort_orphans()
    assert not any(executor.tasks for executor in executors.values())
