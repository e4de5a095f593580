"""Checkpoints tell which version of each sink's target they match."""

from coordinator_fakes import HookedStorage, Job, RecordingCommitter, memory, settings, take_fence
from turnback.checkpoint.log import CheckpointLog
from turnback.errors import SinkError


class TableCommitter(RecordingCommitter):
    """Every commit makes a version."""

    def target_version(self) -> str | None:
        return f"v{len(self.visible)}" if self.visible else None


def of(epoch: int, *uids: str) -> dict[str, tuple[bytes, ...]]:
    return dict.fromkeys(uids, (b"%d" % epoch,))


def test_each_checkpoint_has_the_version_its_commit_made() -> None:
    job = Job(committers={"table": TableCommitter(), "files": RecordingCommitter()})
    numbers = []
    for epoch in (1, 2):
        job.epoch(epoch, transactions=of(epoch, "table", "files"))
        job.checkpoint()
        numbers.append(job.log.latest().number)
    assert [job.log.targets(number) for number in numbers] == [{"table": "v1"}, {"table": "v2"}]


def test_a_sink_that_could_not_commit_has_no_version_yet() -> None:
    table = TableCommitter()
    job = Job(settings=settings(tolerable_failures=1), committers={"table": table})
    job.epoch(1, transactions=of(1, "table"))
    job.checkpoint()
    table.broken = SinkError("locked")
    job.epoch(2, transactions=of(2, "table"))
    job.checkpoint()
    failed = job.log.latest().number
    assert job.log.targets(failed) == {}
    table.broken = None
    job.epoch(3, transactions=of(3, "table"))
    job.checkpoint()
    assert job.log.targets(failed) == {}
    assert job.log.targets(job.log.latest().number) == {"table": "v3"}


def test_versions_of_old_checkpoints_are_forgotten() -> None:
    storage = HookedStorage(memory())
    log = CheckpointLog(storage)
    take_fence(log)
    for number in range(1, 61):
        log.record_commit(number, None, {"table": str(number)})
    known = CheckpointLog(storage)._commits.read().targets
    assert sorted(known) == list(range(11, 61))


def test_versions_outlive_the_attempt_that_recorded_them() -> None:
    storage = HookedStorage(memory())
    for attempt in (1, 2):
        log = CheckpointLog(storage)
        take_fence(log)
        log.record_commit(attempt, ["table"], {"table": str(attempt), "other": "not committed"})
    assert CheckpointLog(storage).targets(1) == {"table": "1"}
    assert CheckpointLog(storage).targets(2) == {"table": "2"}
    assert CheckpointLog(storage).targets(3) == {}
