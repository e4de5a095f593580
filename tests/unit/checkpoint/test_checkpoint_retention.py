import pytest

from coordinator_fakes import (
    HookedStorage,
    Job,
    ManualExecutors,
    cut,
    memory,
    settings,
    state_file,
    take_fence,
)
from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.checkpoint.retention import Retention
from turnback.errors import StorageError
from verification import verify


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_retention_keeps_the_newest_and_what_they_reference(keep: int) -> None:
    storage = memory()
    job = Job(storage, settings(num_retained=keep))
    files = {}
    for epoch in range(1, 7):
        files[epoch] = state_file(storage, f"state/1/{epoch}")
        job.epoch(epoch, [files[n] for n in (epoch - 1, epoch) if n in files])
        job.checkpoint()
    assert job.checkpoints() == list(range(8 - keep, 8))
    assert job.files() == [f"state/1/{epoch}" for epoch in range(6 - keep, 7)]
    assert verify(storage) == []


def test_a_shared_file_lives_as_long_as_anybody_needs_it() -> None:
    storage = memory()
    job = Job(storage)
    base = state_file(storage, "state/1/base")
    for epoch in range(1, 5):
        job.epoch(epoch, [base, state_file(storage, f"state/1/{epoch}")])
        job.checkpoint()
    assert job.files() == ["state/1/4", "state/1/base"]


def test_files_of_source_logs_are_counted_too() -> None:
    storage = memory()
    job = Job(storage)
    for epoch in (1, 2):
        path = f"offsets/1/{epoch}"
        storage.put(path, b"log")
        position = SourcePosition("{}", (LogFile("log", path, 3, "xxh3:"),))
        plain = cut(epoch)
        job.coordinator.epoch_confirmed(
            type(plain)(epoch=epoch, sources={"s": position}, transactions=plain.transactions)
        )
        job.checkpoint()
    assert job.files("offsets") == ["offsets/1/2"]


def test_a_file_replaced_by_a_merge_goes_when_the_last_checkpoint_with_it_goes() -> None:
    storage = memory()
    executors = ManualExecutors()
    job = Job(storage, executor=executors)
    a, b = state_file(storage, "state/1/a"), state_file(storage, "state/1/b")
    job.epoch(1, [a, b])
    job.checkpoint()  # under way, needs a and b
    merged = state_file(storage, "state/1/merged")
    job.coordinator.retire(["state/1/a", "state/1/b"])
    job.epoch(2, [merged])
    executors.run()
    assert job.checkpoints() == [2]
    assert verify(storage) == []
    job.checkpoint()
    executors.run()
    assert job.files() == ["state/1/merged"]


def test_a_file_retired_before_its_epoch_is_confirmed_stays_for_the_newest_cut() -> None:
    storage = memory()
    job = Job(storage)
    a = state_file(storage, "state/1/a")
    job.epoch(1, [a])
    job.coordinator.retire(["state/1/a"])
    job.checkpoint()
    job.epoch(2, [a])
    job.checkpoint()
    assert job.files() == ["state/1/a"]
    job.epoch(3, [])
    job.checkpoint()
    assert job.files() == []


def test_a_file_that_never_was_in_a_checkpoint_goes_when_replaced() -> None:
    storage = memory()
    job = Job(storage)
    for epoch in range(1, 6):
        job.epoch(epoch, [state_file(storage, f"state/1/{epoch}")])
    job.checkpoint()
    assert job.files() == ["state/1/5"]


def test_only_files_an_attempt_wrote_are_ever_deleted() -> None:
    storage = memory()
    job = Job(storage)
    foreign = [
        state_file(storage, "savepoints/s1/state"),
        state_file(storage, "state/notes.txt"),
        state_file(storage, "job.json"),
    ]
    job.epoch(1, foreign)
    job.checkpoint()
    job.epoch(2, [])
    job.checkpoint()
    for file in foreign:
        storage.get(file.path)


def test_the_manifest_goes_before_the_files_only_it_references() -> None:
    storage = HookedStorage(memory())
    job = Job(storage)
    job.epoch(1, [state_file(storage, "state/1/a"), state_file(storage, "state/1/b")])
    job.checkpoint()
    job.epoch(2, [state_file(storage, "state/1/c")])
    storage.operations.clear()
    job.checkpoint()
    changes = [
        (operation, path)
        for operation, path in storage.operations
        if operation in ("delete", "put_if_absent", "put") and not path.startswith("history")
    ]
    assert changes == [
        ("put_if_absent", slot_path(3)),
        ("put", "checkpoints/committed-1.json"),
        ("delete", slot_path(2)),
        ("delete", "state/1/a"),
        ("delete", "state/1/b"),
    ]


def test_a_failed_clean_up_is_repeated_and_fails_nothing() -> None:
    storage = HookedStorage(memory())
    job = Job(storage)
    job.epoch(1, [state_file(storage, "state/1/a")])
    job.checkpoint()
    job.epoch(2, [state_file(storage, "state/1/b")])
    storage.fail("delete", "")
    job.checkpoint()
    assert job.checkpoints() == [2, 3]
    job.epoch(3, [state_file(storage, "state/1/b")])
    storage.fail("delete", "state/")
    job.checkpoint()
    assert job.checkpoints() == [4]
    assert job.files() == ["state/1/a", "state/1/b"]
    storage.heal()
    job.epoch(4, [state_file(storage, "state/1/b")])
    job.checkpoint()
    assert job.files() == ["state/1/b"]
    assert job.coordinator.failure is None


def test_a_start_sweeps_what_older_attempts_left_and_nothing_else() -> None:
    storage = memory()
    job = Job(storage)
    job.epoch(1, [state_file(storage, "state/1/kept")])
    job.checkpoint()
    for path in ("state/1/orphan", "offsets/1/orphan", "state/2/mine", "state/3/newer"):
        storage.put(path, b"x")
    storage.put("state/README", b"x")
    storage.put("sinks/1/x", b"x")
    again = Job(storage, nonce="again")
    assert again.fence.attempt == 2
    assert job.files() == ["state/1/kept", "state/2/mine", "state/3/newer", "state/README"]
    assert job.files("offsets") == []
    assert job.files("sinks") == ["sinks/1/x"]


def test_with_an_unreadable_checkpoint_nothing_is_swept() -> None:
    storage = memory()
    job = Job(storage, settings(num_retained=3))
    for epoch in (1, 2):
        job.epoch(epoch, [state_file(storage, f"state/1/{epoch}")])
        job.checkpoint()
    storage.put(slot_path(2), b"rubbish")
    storage.put("state/1/orphan", b"x")
    again = Job(storage, settings(num_retained=1), nonce="again")
    assert job.files() == ["state/1/1", "state/1/2", "state/1/orphan"]
    again.epoch(3, [state_file(storage, "state/2/3")])
    again.checkpoint()
    assert again.checkpoints() == [5]
    storage.get(slot_path(2))


def test_a_start_that_cannot_list_fails() -> None:
    storage = HookedStorage(memory())
    log = CheckpointLog(storage)
    take_fence(log)
    storage.fail("list", "checkpoints")
    with pytest.raises(StorageError):
        Retention(log, 1).load()


def test_checkpoints_of_older_attempts_count_as_retained() -> None:
    storage = memory()
    job = Job(storage, settings(num_retained=2))
    for epoch in (1, 2):
        job.epoch(epoch)
        job.checkpoint()
    again = Job(storage, settings(num_retained=2), nonce="again")
    assert again.checkpoints() == [2, 3]
    again.epoch(3)
    again.checkpoint()
    assert again.checkpoints() == [3, 5]
    assert again.log.latest().parent == 3


def test_clean_up_spares_what_waits_to_become_a_checkpoint() -> None:
    storage, executors = memory(), ManualExecutors()
    job = Job(storage, settings(max_concurrent=2), executor=executors)
    job.epoch(1)
    job.checkpoint()
    executors["manifest"].run()
    job.epoch(2, [state_file(storage, "state/1/a")])
    job.checkpoint()
    job.epoch(3, [state_file(storage, "state/1/b")])
    executors["commit"].run()  # the first is complete, the second has not been written
    assert job.checkpoints() == [2]
    executors["manifest"].run()
    assert job.checkpoints() == [2, 3]
    assert verify(storage) == []


def test_clean_up_spares_the_newest_cut() -> None:
    storage, executors = memory(), ManualExecutors()
    job = Job(storage, executor=executors)
    job.epoch(1)
    job.checkpoint()
    job.epoch(2, [state_file(storage, "state/1/a")])
    job.coordinator.retire(["state/1/a"])  # a merge is ready, its epoch not yet confirmed
    executors.run()
    assert job.checkpoints() == [2]
    assert job.files() == ["state/1/a"]
    job.checkpoint()
    executors.run()
    assert verify(storage) == []
