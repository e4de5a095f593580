import msgspec
import pytest

from coordinator_fakes import HookedStorage, Job, memory, state_file
from turnback.checkpoint.log import slot_path
from turnback.checkpoint.manifest import EpochCut, LogFile, SourcePosition
from turnback.config.checkpointing import CheckpointSettings
from turnback.errors import StorageError
from turnback.state.files import StateFile
from turnback.storage.envelope import digest
from verification import verify


@pytest.fixture
def job() -> Job:
    storage = HookedStorage(memory())
    job = Job(storage, CheckpointSettings(interval_ms=1_000, num_retained=2))
    shared = state_file(storage, "state/1/shared", b"shared")
    storage.put("offsets/1/log", b"log")
    log = LogFile("log", "offsets/1/log", 3, digest(b"log"))
    inline = StateFile("", 2, digest(b"in"), 1, 1, 1, 0, 127, ("op",), inline=b"in")
    for epoch in (1, 2):
        own = state_file(storage, f"state/1/{epoch}", b"own")
        job.coordinator.epoch_confirmed(
            EpochCut(epoch, {"s": SourcePosition("{}", (log,))}, (shared, own, inline))
        )
        job.checkpoint()
    return job


def test_intact(job) -> None:
    assert verify(job.storage) == []
    assert verify(job.storage, job.log.latest()) == []


def test_missing_cut_and_changed_files_are_named(job) -> None:
    job.storage.delete("state/1/1")
    job.storage.put("state/1/shared", b"sharee")
    job.storage.put("offsets/1/log", b"lo")
    problems = {problem.path: problem for problem in verify(job.storage)}
    assert set(problems) == {"state/1/1", "state/1/shared", "offsets/1/log"}
    assert "missing" in problems["state/1/1"].reason
    assert "checksum" in problems["state/1/shared"].reason
    assert "2 bytes found, 3 recorded" in problems["offsets/1/log"].reason


def test_one_checkpoint_alone(job) -> None:
    job.storage.delete("state/1/1")
    assert verify(job.storage, job.log.latest()) == []
    assert [p.path for p in verify(job.storage, job.log.get(2))] == ["state/1/1"]


def test_two_files_swapped(job) -> None:
    one, two = job.storage.get("state/1/shared"), job.storage.get("state/1/2")
    job.storage.put("state/1/shared", two)
    job.storage.put("state/1/2", one)
    assert {problem.path for problem in verify(job.storage)} == {"state/1/shared", "state/1/2"}


def test_a_damaged_manifest_is_a_problem(job) -> None:
    job.storage.put(slot_path(3), job.storage.get(slot_path(3))[:-1])
    assert [p.path for p in verify(job.storage)] == [slot_path(3)]


def test_inline_state_is_checked_too(job) -> None:
    manifest = job.log.latest()
    broken = StateFile("", 3, digest(b"in"), 1, 1, 1, 0, 127, ("op",), inline=b"in")
    changed = msgspec.structs.replace(manifest, state=(broken,))
    assert len(verify(job.storage, changed)) == 1


def test_storage_that_does_not_answer_is_no_verdict(job) -> None:
    job.storage.fail("get", "state/")
    with pytest.raises(StorageError, match="no answer"):
        verify(job.storage)
