"""The coordinator as it really runs: with its own threads and the clock of the machine."""

import threading
import time
import tracemalloc

import pytest

from coordinator_fakes import HookedStorage, RecordingCommitter, cut, memory, state_file, take_fence
from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import CheckpointLog
from turnback.config.checkpointing import CheckpointingMode, CheckpointSettings
from turnback.core.clock import SystemClock
from turnback.errors import CheckpointError, CheckpointTimeoutError, FencedError
from turnback.job.history import History, read_history
from turnback.storage.local import LocalStorage
from verification import verify


def start(storage, sink, failed=None, **options) -> CheckpointCoordinator:
    log = CheckpointLog(storage)
    fence = take_fence(log, nonce=str(time.monotonic_ns()))
    return CheckpointCoordinator(
        log,
        CheckpointSettings(**{"interval_ms": 10} | options),
        {"sink": sink},
        max_parallelism=128,
        history=History(storage, fence.attempt, SystemClock()),
        on_failure=failed,
    ).start()


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_checkpoints_happen_by_themselves() -> None:
    storage, sink = memory(), RecordingCommitter()
    coordinator = start(storage, sink)
    epoch = 0
    while coordinator.completed < 3 and epoch < 10_000:
        epoch += 1
        coordinator.epoch_confirmed(cut(epoch))
        time.sleep(0.003)
    done = coordinator.final()
    coordinator.close()
    assert done.epoch == epoch
    assert sink.visible == [f"t{n}".encode() for n in range(1, epoch + 1)]
    assert coordinator.completed >= 3
    assert len({t for call in sink.calls for t in call}) == sum(map(len, sink.calls))
    assert len(read_history(storage)) == coordinator.completed


def test_storage_that_hangs_does_not_stop_the_stream() -> None:
    storage, sink = HookedStorage(memory()), RecordingCommitter()
    hang = threading.Event()
    failed = threading.Event()
    coordinator = start(
        storage, sink, lambda error: failed.set(), timeout_ms=50, tolerable_failures=2
    )

    def slow(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            hang.wait(20)

    storage.before = slow
    began = time.monotonic()
    coordinator.epoch_confirmed(cut(1))
    assert failed.wait(10)
    assert time.monotonic() - began < 5
    assert isinstance(coordinator.failure.__cause__, CheckpointTimeoutError)
    with pytest.raises(CheckpointError, match="3 checkpoint"):
        coordinator.epoch_confirmed(cut(2))
    coordinator.close(timeout_s=0.1)
    assert sink.aborted == []  # the outcome is not known
    hang.set()
    until(lambda: CheckpointLog(storage).latest() is not None)
    time.sleep(0.05)
    assert sink.calls == []
    # The next attempt finds the late manifest, or takes its slot; either way it is consistent.
    storage.heal()
    assert CheckpointLog(storage).latest().transactions == {"sink": (b"t1",)}


def test_a_sink_that_hangs_does_not_stop_the_stream() -> None:
    storage, sink = memory(), RecordingCommitter()
    gate, commit = threading.Event(), sink.commit

    def slow(transactions) -> None:
        gate.wait(20)
        commit(transactions)

    sink.commit = slow  # type: ignore[method-assign]
    coordinator = start(storage, sink, timeout_ms=60, tolerable_failures=10**6)
    for epoch in range(1, 30):
        coordinator.epoch_confirmed(cut(epoch))
        time.sleep(0.01)
    assert coordinator.failed >= 1
    assert len(CheckpointLog(storage).latest().transactions["sink"]) > 1
    gate.set()
    assert coordinator.final().epoch == 29
    coordinator.close()
    assert sink.visible == [f"t{n}".encode() for n in range(1, 30)]


def test_at_least_once_waits_for_its_sinks() -> None:
    storage, sink = memory(), RecordingCommitter()
    coordinator = start(storage, sink, mode=CheckpointingMode.AT_LEAST_ONCE)
    for epoch in range(1, 20):
        coordinator.epoch_confirmed(cut(epoch))
        assert sink.visible[-1] == f"t{epoch}".encode()
    coordinator.final()
    coordinator.close()


def test_a_zombie_learns_of_it_without_any_epoch() -> None:
    storage, sink = memory(), RecordingCommitter()
    failed: list[BaseException] = []
    coordinator = start(storage, sink, failed.append, interval_ms=200)
    coordinator.epoch_confirmed(cut(1))
    take_fence(CheckpointLog(storage), nonce="newer")
    until(lambda: failed)
    assert isinstance(failed[0], FencedError)
    coordinator.close()
    assert sink.calls == []


def test_close_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    coordinator = start(memory(), RecordingCommitter())
    coordinator.epoch_confirmed(cut(1))
    coordinator.final()
    coordinator.close()
    assert set(threading.enumerate()) <= before


def test_close_leaves_no_thread_behind_once_storage_answers_again() -> None:
    before = set(threading.enumerate())
    storage = HookedStorage(memory())
    hangs = threading.Event()
    goes_on = threading.Event()
    coordinator = start(storage, RecordingCommitter())
    coordinator.epoch_confirmed(cut(1))
    coordinator.final()  # the thread that commits has started

    def hang(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            hangs.set()
            goes_on.wait(20)

    storage.before = hang
    coordinator.epoch_confirmed(cut(2))
    assert hangs.wait(10)
    coordinator.close(timeout_s=0.1)
    goes_on.set()
    until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.slow
def test_two_thousand_epochs_leave_nothing_behind(tmp_path) -> None:
    storage = LocalStorage(tmp_path)
    coordinator = start(storage, Forgetful(), num_retained=2)
    live, sizes = [], []
    tracemalloc.start()
    try:
        for epoch in range(1, 2_001):
            live.append(state_file(storage, f"state/1/{epoch}", b"delta", epoch))
            if len(live) > 8:  # a merge replaces them all
                old, live = live, [state_file(storage, f"state/1/{epoch}-base", b"base", epoch)]
                coordinator.retire([file.path for file in old])
            coordinator.epoch_confirmed(cut(epoch, live))
            if epoch % 500 == 0:
                coordinator.final()
                time.sleep(0.1)
                sizes.append((tracemalloc.get_traced_memory()[0], len(list(tmp_path.rglob("*")))))
    finally:
        tracemalloc.stop()
    coordinator.close()
    assert coordinator.completed > 50
    assert verify(storage) == []
    memory_used, files = zip(*sizes, strict=True)
    assert max(files) < 120, sizes
    assert len(storage.list("state")) <= 20
    assert len(storage.list("history")) <= 21
    assert memory_used[-1] - memory_used[0] < 1_500_000, sizes
    assert len(CheckpointLog(storage).numbers()) == 3


class Forgetful(RecordingCommitter):
    def commit(self, transactions) -> None:
        pass
