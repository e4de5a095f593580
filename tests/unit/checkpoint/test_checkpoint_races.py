"""What lands, or is deleted, while somebody looks at the checkpoint log."""

import builtins
from collections.abc import Callable
from typing import Any

import pytest

from coordinator_fakes import (
    HookedStorage,
    InlineExecutor,
    Job,
    RecordingCommitter,
    cut,
    memory,
    state_file,
    take_fence,
)
from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.checkpoint.manifest import Manifest, StartPoint
from turnback.config.checkpointing import CheckpointSettings
from turnback.errors import (
    CommitStateUnknownError,
    FencedError,
    NotFoundError,
    StorageError,
)
from turnback.job.directory import JobDirectory, JobInfo
from turnback.snapshot.find import resume_point
from turnback.storage.base import Storage
from verification import verify


class SlowStorage(HookedStorage):
    """Storage in which something happens once, right after an operation on a path."""

    def between(self, operation: str, path: str, action) -> None:
        def hook(done: str, where: str) -> None:
            if (done, where) == (operation, path):
                self.heal()
                action()

        self.after = hook

    def _run(self, operation: str, path: str, action: Callable[[], Any]) -> Any:
        try:
            return super()._run(operation, path, action)
        except NotFoundError:
            self.after(operation, path)
            raise


def first(files, keep: int = 1) -> Job:
    """A driver with two checkpoints, chk-2 and chk-3."""
    job = Job(files, CheckpointSettings(interval_ms=1_000, num_retained=keep), nonce="first")
    for epoch in (1, 2):
        go_on(job, epoch)
    return job


def go_on(job: Job, epoch: int) -> None:
    job.epoch(epoch, [state_file(job.storage, f"state/{job.fence.attempt}/{epoch}")])
    job.checkpoint()


def test_a_checkpoint_that_lands_while_a_successor_starts_is_known_to_it() -> None:
    files = memory()
    job = first(files, keep=2)
    slow = SlowStorage(files)
    slow.between("list", "checkpoints", lambda: go_on(job, 3))
    successor = Job(slow, nonce="second")
    assert successor.fence.manifests == (3, 4)
    latest = CheckpointLog(files).latest()
    assert latest is not None
    assert latest.epoch == 3
    assert verify(files, latest) == []


def test_a_fence_in_a_slot_that_is_free_again_does_not_count() -> None:
    files = memory()
    job = Job(files, nonce="first")
    slow = SlowStorage(files)
    slow.between("list", "checkpoints", lambda: [go_on(job, epoch) for epoch in (1, 2, 3)])
    successor = Job(slow, nonce="second")
    assert successor.fence.number == 5, "chk-4 is the newest checkpoint"
    assert successor.fence.manifests == (4,)
    go_on(job, 4)
    assert isinstance(job.coordinator.failure, FencedError)
    assert job.checkpoints() == [4]
    assert verify(files) == []


def test_two_that_are_held_up_the_same_way_do_not_both_start() -> None:
    files = memory()
    job = Job(files, nonce="first")
    slow, other = SlowStorage(files), CheckpointLog(files)

    def overtaken() -> None:
        for epoch in (1, 2, 3):
            go_on(job, epoch)
        take_fence(other, nonce="third")

    slow.between("list", "checkpoints", overtaken)
    with pytest.raises(FencedError, match="another driver"):
        take_fence(CheckpointLog(slow), nonce="second")
    other.check_fence()


def test_a_start_whose_slot_was_taken_and_freed_looks_again() -> None:
    files = memory()
    job = Job(files, nonce="first")
    slow = SlowStorage(files)

    def hook(operation: str, path: str) -> None:
        if path == slot_path(2) and operation == "put_if_absent":
            go_on(job, 1)
        elif path == slot_path(2):
            slow.heal()
            go_on(job, 2)

    slow.before = hook
    assert take_fence(CheckpointLog(slow), nonce="second").number == 4


class TornStorage(HookedStorage):
    """Storage whose listings miss a slot that was written while they were made."""

    def list(self, prefix: str = "") -> builtins.list[str]:
        return [path for path in super().list(prefix) if path != slot_path(3)]


def test_a_slot_that_a_listing_misses_is_read_all_the_same() -> None:
    files = memory()
    job = first(files, keep=3)
    go_on(job, 3)
    torn = CheckpointLog(TornStorage(files))
    assert [m.number for m in torn.scan().manifests] == [2, 3, 4]
    assert take_fence(torn, nonce="second").manifests == (2, 3, 4)


def test_the_newest_checkpoint_is_found_while_it_moves_on() -> None:
    files = memory()
    job = first(files)
    for read in (
        lambda log: log.latest(),
        lambda log: log.scan().manifests[-1],
        lambda log: log.find(before_ms=2**60),
    ):
        slow = SlowStorage(files)
        epoch = max(job.log.numbers()) + 1
        slow.between("list", "checkpoints", lambda epoch=epoch: go_on(job, epoch))
        found = read(CheckpointLog(slow))
        assert isinstance(found, Manifest)
        assert found.epoch == epoch


def test_the_newest_checkpoint_below_a_fence_is_found_while_it_moves_on() -> None:
    files = memory()
    first(files)
    job = Job(files, nonce="second")
    slow = SlowStorage(files)
    slow.between("get", slot_path(job.fence.number), lambda: go_on(job, 3))
    latest = CheckpointLog(slow).latest()
    assert latest is not None
    assert latest.epoch == 3


def test_where_to_resume_is_found_while_it_moves_on() -> None:
    files = memory()
    job = first(files)
    slow = SlowStorage(files)
    directory = JobDirectory(files, "job")
    directory.info = lambda: JobInfo("job", "id", 0)
    slow.between("list", "checkpoints", lambda: go_on(job, 3))
    point = resume_point(CheckpointLog(slow), directory)
    assert point is not None
    assert point.manifest is not None
    assert point.manifest.epoch == 3


def test_what_an_attempt_starts_from_is_not_swept_when_its_checkpoint_is_gone() -> None:
    """A predecessor may drop the checkpoint while its successor starts from it."""
    files = memory()
    first(files, keep=2)
    oldest = CheckpointLog(files).scan().manifests[0]
    log = CheckpointLog(files)
    take_fence(log, nonce="second")
    files.delete(slot_path(oldest.number))
    coordinator = CheckpointCoordinator(
        log,
        CheckpointSettings(interval_ms=1_000),
        {},
        max_parallelism=128,
        inherited=oldest.files(),
    ).start(thread=False)
    coordinator.close()
    assert set(oldest.files()) <= set(files.list("state"))


def test_what_an_attempt_starts_from_stays_until_it_has_a_checkpoint() -> None:
    """Its epochs need it no longer, but the next start does if this attempt dies."""
    files = memory()
    first(files, keep=2)
    oldest = CheckpointLog(files).scan().manifests[0]
    log = CheckpointLog(files)
    take_fence(log, nonce="second")
    files.delete(slot_path(oldest.number))
    coordinator = CheckpointCoordinator(
        *(
            log,
            CheckpointSettings(interval_ms=None, num_retained=1),
            {"sink": RecordingCommitter()},
        ),
        max_parallelism=128,
        executor=InlineExecutor,
        inherited=oldest.files(),
    ).start(thread=False)
    for epoch in (2, 3):
        coordinator.epoch_confirmed(cut(epoch, [state_file(files, f"state/2/{epoch}")]))
        assert set(oldest.files()) <= set(files.list("state"))
    coordinator.trigger()
    coordinator.tick()
    assert files.list("state") == ["state/2/3"]


def test_a_new_job_that_another_driver_creates_meanwhile_is_complete() -> None:
    files = memory()
    slow = SlowStorage(files)

    def create() -> None:
        JobDirectory(files, "job").open()
        take_fence(CheckpointLog(files))

    slow.between("get", "job.json", create)
    assert JobDirectory(slow, "job").open() == JobDirectory(files, "job").info()


class LateStorage(HookedStorage):
    """Storage that answers one write with an error, and performs it before the next like it."""

    def __init__(self, inner: Storage, containing: str) -> None:
        super().__init__(inner)
        self._containing = containing.encode()
        self._late: tuple[str, bytes] | None = None

    def put_if_absent(self, path: str, data: bytes) -> None:
        if self._containing in data:
            self._late = path, data
            raise StorageError("no answer")
        if self._late is not None and self._late[0] == path:
            self.inner.put_if_absent(*self._late)
            self._late = None
        super().put_if_absent(path, data)


@pytest.mark.parametrize("nonce", ["first", "second"], ids=["the same driver", "another driver"])
@pytest.mark.parametrize("what", ["start", "ended"])
def test_a_write_of_an_older_attempt_that_comes_late_is_no_rival(nonce: str, what: str) -> None:
    files = memory()
    old = first(files, keep=2).log.latest()
    log = CheckpointLog(LateStorage(files, '"start":{' if what == "start" else '"ended":true'))
    fence = take_fence(log, nonce="first")
    with pytest.raises(CommitStateUnknownError):
        log.record_start(StartPoint(checkpoint=old)) if what == "start" else log.end()
    after = fence.attempt if nonce == "first" else None
    successor = take_fence(CheckpointLog(log.storage), nonce=nonce, after=after)
    assert (successor.number, successor.attempt) == (fence.number + 2, fence.attempt + 1)
    assert CheckpointLog(files).newest() == successor
    with pytest.raises(FencedError):
        log.check_fence()


def test_a_fence_of_its_own_that_comes_late_is_no_rival() -> None:
    files = memory()
    late = LateStorage(files, '"slot":"fence"')
    with pytest.raises(CommitStateUnknownError):
        take_fence(CheckpointLog(late), nonce="first")
    late._containing = b"nothing any more"
    fence = take_fence(CheckpointLog(late), nonce="first", pid=2)
    assert CheckpointLog(files).newest() == fence
