import os
import subprocess
import sys
import threading

import msgspec
import pytest

from coordinator_fakes import HookedStorage, memory, take_fence
from manual_clock import ManualClock
from turnback.checkpoint.log import CheckpointLog
from turnback.errors import (
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    JobInUseError,
    StorageError,
)
from turnback.job.directory import JobDirectory
from turnback.job.run import ProcessId, _started
from turnback.job.status import JobState, StatusUpdate
from turnback.storage.local import LocalStorage


def test_a_job_keeps_its_identity() -> None:
    storage = memory()
    assert JobDirectory(storage, "job").info() is None
    info = JobDirectory(storage, "job", ManualClock(42)).open()
    assert (info.job, info.created_ms) == ("job", 42)
    assert JobDirectory(storage, "job").open() == info


def test_a_directory_of_another_job_is_refused_before_anything_is_written() -> None:
    storage = memory()
    JobDirectory(storage, "one").open()
    before = {path: storage.get(path) for path in storage.list()}
    with pytest.raises(ConfigurationError, match=r"belongs to job 'one', not to 'two'"):
        JobDirectory(storage, "two").open()
    assert {path: storage.get(path) for path in storage.list()} == before


def test_of_two_that_create_a_job_both_get_the_same() -> None:
    storage = HookedStorage(memory())
    other = []

    def faster(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            storage.heal()
            other.append(JobDirectory(storage, "job").open())

    storage.before = faster
    assert [JobDirectory(storage, "job").open()] == other


def test_checkpoints_without_an_identity_are_not_adopted() -> None:
    storage = memory()
    take_fence(CheckpointLog(storage))
    with pytest.raises(StorageError, match=r"no job\.json"):
        JobDirectory(storage, "job").open()


def test_a_damaged_identity_is_an_error() -> None:
    storage = memory()
    JobDirectory(storage, "job").open()
    data = storage.get("job.json")
    storage.put("job.json", data[:-5])
    with pytest.raises(CorruptFileError, match=r"job\.json"):
        JobDirectory(storage, "job").open()


def test_an_error_is_not_taken_for_a_new_job() -> None:
    storage = HookedStorage(memory())
    storage.fail("get", "job.json")
    with pytest.raises(StorageError):
        JobDirectory(storage, "job").open()
    storage.heal()
    assert storage.list() == []


def test_renew_gives_the_name_a_new_identity() -> None:
    directory = JobDirectory(memory(), "job")
    first = directory.open()
    second = directory.renew()
    assert first.job_id != second.job_id
    assert directory.open() == second


@pytest.mark.parametrize("name", ["../up", "/abs", "a/b", "..", "ü", "a%2Fb", "x" * 200])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_no_name_leaves_the_root(name: str, scheme: str, tmp_path) -> None:
    root = tmp_path / "jobs"
    directory = JobDirectory.locate(f"{scheme}{root}", name)
    directory.open()
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]
    (job,) = root.iterdir()
    assert [path.name for path in job.iterdir()] == ["job.json"]
    assert JobDirectory.locate(root, name).open().job == name


def test_attempts_are_recorded_and_old_records_dropped() -> None:
    directory = JobDirectory(memory(), "job", ManualClock(7))
    for attempt in range(1, 151):
        directory.record_attempt(attempt, checkpoint=attempt - 1, snapshot=None)
    assert directory.attempt(1) is None
    newest = directory.attempt(150)
    assert (newest.checkpoint, newest.started_ms) == (149, 7)
    assert newest.process == ProcessId.current()
    assert len(directory.storage.list("attempts")) == 100


def test_records_of_checkpoints_that_were_given_up_stay_as_long_as_these() -> None:
    directory = JobDirectory(memory(), "job", ManualClock(7))
    for number in (2, 3):
        directory.storage.put(f"checkpoints/chk-{number}.json", b"")
    directory.record_attempt(1, abandoned=(2, 3))
    directory.record_attempt(2, checkpoint=3)
    directory.record_attempt(3, abandoned=(1,))
    directory.storage.put("attempts/4.json", b"damaged")
    for attempt in range(5, 110):
        directory.record_attempt(attempt, checkpoint=50)
    assert directory.attempts()[:4] == [1, 2, 4, 10]
    directory.storage.delete("checkpoints/chk-3.json")
    directory.record_attempt(110)
    assert directory.attempts()[:3] == [1, 4, 11]
    directory.storage.delete("checkpoints/chk-2.json")
    directory.record_attempt(111)
    assert directory.attempts()[:2] == [4, 12]


def test_status_keeps_what_was_said_before() -> None:
    directory = JobDirectory(memory(), "job", ManualClock(5))
    assert directory.status() is None
    directory.heartbeat()
    assert directory.status() is None
    directory.write_status(JobState.RUNNING, "id", StatusUpdate(attempt=3))
    directory.heartbeat(StatusUpdate(epoch=9))
    directory.heartbeat()
    status = directory.status()
    assert (status.state, status.attempt, status.epoch) == (JobState.RUNNING, 3, 9)
    assert status.heartbeat == 3
    assert msgspec.json.decode(directory.storage.get("status.json"))["state"] == "RUNNING"


def test_a_damaged_status_says_what_to_do() -> None:
    directory = JobDirectory(memory(), "job")
    for junk in (b"", b"[]", b'{"format": 1}', b'{"format": 1, "state": "\xff"}'):
        directory.storage.put("status.json", junk)
        with pytest.raises(CorruptFileError, match="delete the file"):
            directory.status()
    directory.storage.put("status.json", b'{"format": 2}')
    with pytest.raises(FormatVersionError, match="version 2"):
        directory.status()


def test_a_replaced_driver_does_not_overwrite_the_status() -> None:
    storage = memory()
    zombie, newer = JobDirectory(storage, "job"), JobDirectory(storage, "job")
    zombie.write_status(JobState.RUNNING, "id", StatusUpdate(attempt=1))
    newer.write_status(JobState.CREATED, "id")
    newer.write_status(JobState.RUNNING, "id", StatusUpdate(attempt=2))
    zombie.heartbeat()
    zombie.write_status(JobState.FAILED, "id")
    assert newer.status().attempt == 2
    assert newer.status().state is JobState.RUNNING


def test_a_missed_beat_is_no_failure() -> None:
    storage = HookedStorage(memory())
    directory = JobDirectory(storage, "job")
    directory.write_status(JobState.RUNNING, "id")
    storage.fail("put", "status.json")
    directory.heartbeat()
    with pytest.raises(StorageError):
        directory.write_status(JobState.FINISHED, "id")


def test_no_beat_brings_an_ended_job_back_to_life() -> None:
    directory = JobDirectory(memory(), "job")
    directory.write_status(JobState.RUNNING, "id")
    done = threading.Event()

    def beats() -> None:
        while not done.is_set():
            directory.heartbeat()

    thread = threading.Thread(target=beats)
    thread.start()
    for _ in range(200):
        directory.write_status(JobState.RUNNING, "id")
    directory.write_status(JobState.FINISHED, "id")
    done.set()
    thread.join()
    assert directory.status().state is JobState.FINISHED


def child(*, exits: bool) -> subprocess.Popen:
    code = "pass" if exits else "import sys; sys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def write_status(storage, process: ProcessId, heartbeat: int = 1, owner: str = "other") -> None:
    mine = JobDirectory(storage, "job")
    status = mine.write_status(JobState.RUNNING, "id", StatusUpdate(attempt=4))
    status = msgspec.structs.replace(status, process=process, owner=owner, heartbeat=heartbeat)
    storage.put("status.json", msgspec.json.encode(status))


def test_a_live_process_on_this_machine_is_in_use_and_a_dead_one_is_not() -> None:
    storage, clock = memory(), ManualClock()
    process = child(exits=False)
    here = ProcessId.current()
    other = msgspec.structs.replace(here, pid=process.pid, started=_started(process.pid))
    write_status(storage, other)
    directory = JobDirectory(storage, "job", clock)
    with pytest.raises(JobInUseError, match=rf"pid {process.pid} on {here.host} \(attempt 4\)"):
        directory.require_free()
    process.communicate()
    directory.require_free()
    assert clock.monotonic() == 0  # neither answer took any watching


def test_a_reused_process_number_is_another_process() -> None:
    storage = memory()
    here = ProcessId.current()
    parent = msgspec.structs.replace(here, pid=os.getppid(), started="1")
    write_status(storage, parent)
    JobDirectory(storage, "job", ManualClock()).require_free()


class Beating(ManualClock):
    """While somebody waits, the driver elsewhere goes on."""

    def __init__(self, storage, process: ProcessId) -> None:
        super().__init__()
        self._storage, self._process = storage, process
        self.beats = True

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.beats and self.monotonic() % 2 == 0:
            write_status(self._storage, self._process, heartbeat=int(self.monotonic()) + 5)


def test_of_a_driver_elsewhere_the_heartbeat_decides() -> None:
    storage = memory()
    elsewhere = ProcessId("far-away", "other boot", 1, "1")
    clock = Beating(storage, elsewhere)
    write_status(storage, elsewhere)
    directory = JobDirectory(storage, "job", clock)
    with pytest.raises(JobInUseError, match="far-away"):
        directory.require_free()
    clock.beats = False
    directory.require_free()


def test_its_clock_does_not_matter() -> None:
    storage = memory()
    elsewhere = ProcessId("far-away", "other boot", 1, "1")
    write_status(storage, elsewhere)
    clock = ManualClock(10**15)
    JobDirectory(storage, "job", clock).require_free()
    assert clock.monotonic() >= 5


def test_another_driver_in_this_process_counts_while_it_beats() -> None:
    storage = memory()
    clock = Beating(storage, ProcessId.current())
    write_status(storage, ProcessId.current())
    with pytest.raises(JobInUseError):
        JobDirectory(storage, "job", clock).require_free()
    clock.beats = False
    JobDirectory(storage, "job", clock).require_free()


def test_an_ended_job_and_our_own_restart_are_free_at_once() -> None:
    storage, clock = memory(), ManualClock()
    directory = JobDirectory(storage, "job", clock)
    directory.require_free()
    directory.write_status(JobState.RUNNING, "id")
    directory.require_free()
    directory.write_status(JobState.FAILED, "id", StatusUpdate(cause="x"))
    JobDirectory(storage, "job", clock).require_free()
    assert clock.monotonic() == 0


def test_this_process_is_alive_and_local() -> None:
    me = ProcessId.current()
    assert me.is_local()
    assert me.is_alive()
    gone = child(exits=True)
    gone.communicate()
    assert not msgspec.structs.replace(me, pid=gone.pid).is_alive()


def test_it_works_on_real_files(tmp_path) -> None:
    directory = JobDirectory(LocalStorage(tmp_path), "job")
    info = directory.open()
    directory.record_attempt(1)
    directory.write_status(JobState.RUNNING, info.job_id)
    assert {path.name for path in tmp_path.iterdir()} == {"job.json", "attempts", "status.json"}
