from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from coordinator_fakes import Job, memory, take_fence
from manual_clock import ManualClock
from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.config.checkpointing import CheckpointSettings
from turnback.errors import CheckpointNotFoundError, CorruptFileError
from turnback.job.directory import JobDirectory
from turnback.snapshot.find import locate, resume_point, split_slot_path
from turnback.state.files import StorageRef
from turnback.storage.local import LocalStorage

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SETTINGS = CheckpointSettings(interval_ms=60_000, num_retained=10)


def run(storage, epochs: range) -> Job:
    """A checkpoint a minute, from a minute past noon."""
    job = Job(storage, SETTINGS, clock=ManualClock(int(NOON.timestamp() * 1000)))
    for epoch in epochs:
        job.epoch(epoch)
        job.clock.advance(60_000)
        job.coordinator.tick()
    return job


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "job")


@pytest.fixture
def log(storage) -> CheckpointLog:
    run(storage, range(1, 4))
    return CheckpointLog(storage)


def number(log: CheckpointLog, given) -> int:
    return locate(given, StorageRef(log.uri)).manifest.number


@pytest.mark.parametrize("given", [3, "3", "chk-3", " chk-3 "])
def test_by_number(log, given) -> None:
    assert number(log, given) == 3


def test_the_latest(log) -> None:
    assert number(log, "latest") == number(log, "LATEST") == 4


def test_by_full_path(log, storage, tmp_path) -> None:
    path = tmp_path / "job" / slot_path(3)
    assert path.exists()
    assert number(log, str(path)) == number(log, f"file://{path}") == 3
    other = locate(str(path), StorageRef(str(tmp_path / "other")))
    assert (other.manifest.number, other.storage.uri) == (3, log.uri)
    assert split_slot_path(str(path)) == (str(tmp_path / "job"), 3)
    assert split_slot_path("s3://b/jobs/j/checkpoints/chk-12.json") == ("s3://b/jobs/j", 12)
    assert split_slot_path("chk-3") is None
    assert split_slot_path(slot_path(3)) is None
    for missing in ("other/checkpoints/chk-3.json", "job/checkpoints/chk-1.json"):
        with pytest.raises(CheckpointNotFoundError):
            locate(str(tmp_path / missing), StorageRef(str(tmp_path / "third")))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((NOON + timedelta(minutes=1)).isoformat(), 2),
        ((NOON + timedelta(minutes=2, seconds=59)).isoformat(), 3),
        ((NOON + timedelta(days=1)).isoformat(), 4),
        ("2026-01-31T12:01:00Z", 2),
        ("2026-01-31T13:02:30+01:00", 3),
        ("2026-02-01T00:00:00+00:00", 4),
    ],
)
def test_the_last_before_a_time(log, given, expected: int) -> None:
    assert number(log, given) == expected


def test_a_time_without_zone_is_local(log) -> None:
    local = (NOON + timedelta(minutes=2, seconds=30)).astimezone().replace(tzinfo=None)
    assert number(log, local.isoformat()) == 3
    assert number(log, local.isoformat(" ")) == 3
    zoned = NOON.astimezone(timezone(timedelta(hours=-7))) + timedelta(minutes=1)
    assert number(log, zoned.isoformat()) == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (9, "chk-9 is missing"),
        ("chk-1", "chk-1 is the start of an attempt"),
        (NOON.isoformat(), "no checkpoint from before"),
        ("nonsense", "is not a snapshot"),
        ("chk-3.json", "is not a snapshot"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(log, given, why: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match=why) as raised:
        number(log, given)
    message = str(raised.value)
    assert "chk-2 (2026-01-31T12:01:00+00:00, epoch 1), chk-3 (" in message
    assert "chk-4" in message


def test_in_an_empty_log(tmp_path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint yet.*no checkpoints"):
        locate("latest", StorageRef(str(tmp_path)))


def test_a_damaged_one_is_not_replaced_by_another(log, storage) -> None:
    storage.put(slot_path(4), b"rubbish")
    for given in ("latest", 4, (NOON + timedelta(days=1)).isoformat()):
        with pytest.raises(CorruptFileError, match="chk-4"):
            number(log, given)
    assert number(log, 3) == 3
    with pytest.raises(CheckpointNotFoundError, match=r"unreadable: .*chk-4"):
        number(log, 99)


# -- where a job goes on by itself


def started(storage, number: int | None = None, snapshot: str | None = None):
    """An attempt that dies before its first checkpoint."""
    directory = JobDirectory(storage, "job")
    info = directory.open()
    log = CheckpointLog(storage)
    fence = log.fence(job="job", job_id=info.job_id, created_ms=0, host="h", pid=1, nonce="x")
    directory.record_attempt(fence.attempt, checkpoint=number, snapshot=snapshot)
    return resume_point(CheckpointLog(storage), directory)


@pytest.fixture
def known(storage):
    """A job with chk-2 to chk-4, of the identity that is in its directory."""
    directory = JobDirectory(storage, "job")
    info = directory.open()
    log = CheckpointLog(storage)
    log.fence(job="job", job_id=info.job_id, created_ms=0, host="h", pid=1, nonce="0")
    directory.record_attempt(1)
    template = run(memory(), range(1, 2)).log.latest()
    for epoch in (1, 2, 3):
        log.append(msgspec.structs.replace(template, job_id=info.job_id, epoch=epoch))
    return directory


def test_it_goes_on_from_the_latest(known, storage) -> None:
    assert resume_point(CheckpointLog(storage), known).manifest.number == 4
    assert started(storage, 4).manifest.number == 4


def test_a_new_job_starts_from_nothing(storage) -> None:
    directory = JobDirectory(storage, "job")
    directory.open()
    assert resume_point(CheckpointLog(storage), directory) is None
    assert started(storage) is None


def test_having_turned_back_it_does_not_jump_forward_again(known, storage) -> None:
    assert started(storage, 2).manifest.number == 2
    assert started(storage, 2).manifest.number == 2


def test_a_savepoint_counts_until_there_is_a_checkpoint(known, storage) -> None:
    point = started(storage, snapshot="/savepoints/s1")
    assert (point.manifest, point.snapshot) == (None, "/savepoints/s1")


def test_an_attempt_that_left_no_record_does_not_count(known, storage) -> None:
    info = known.info()
    log = CheckpointLog(storage)
    log.fence(job="job", job_id=info.job_id, created_ms=0, host="h", pid=1, nonce="y")
    assert resume_point(log, known).manifest.number == 4


def test_what_it_started_from_may_be_gone(known, storage) -> None:
    CheckpointLog(storage).remove(2)
    with pytest.raises(CheckpointNotFoundError, match="chk-2"):
        started(storage, 2)


def test_after_a_fresh_start_old_checkpoints_do_not_count(known, storage) -> None:
    known.renew()
    assert resume_point(CheckpointLog(storage), known) is None


def test_a_fence_of_an_older_lineage_does_not_hide_what_came_later(known, storage) -> None:
    for fields in ({}, {"ended": True}):
        log = CheckpointLog(storage)
        log.fence(job="job", job_id="older", created_ms=0, host="h", pid=1, nonce=str(fields))
        if fields:
            log.end()
        assert resume_point(CheckpointLog(storage), known).manifest.number == 4


def test_cancelled_with_its_checkpoints_it_starts_from_nothing(known, storage) -> None:
    info = known.info()
    log = CheckpointLog(storage)
    fence = log.fence(job="job", job_id=info.job_id, created_ms=0, host="h", pid=1, nonce="y")
    known.record_attempt(fence.attempt, checkpoint=4)
    log.end()
    for number in (2, 3, 4):
        log.remove(number)
    assert resume_point(CheckpointLog(storage), known) is None


def test_a_damaged_slot_stops_it(known, storage) -> None:
    storage.put(slot_path(4), b"rubbish")
    with pytest.raises(CorruptFileError):
        resume_point(CheckpointLog(storage), known)
    take = CheckpointLog(storage)
    with pytest.raises(CorruptFileError):
        take_fence(take)
