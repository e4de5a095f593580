"""Local stores of jobs that do not use them any more, and of those that do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fake_job import Driver, dead, elsewhere
from turnback.errors import StillNeededError
from turnback.job.status import JobState
from turnback.operations.garbage import Findings, GarbageKind, remove, scan
from turnback.storage.directory import DirectoryLock
from turnback.views.jobs import Jobs
from turnback.worker.local_state import LocalStores, StoreOwner


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "all jobs"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


def used(driver: Driver, local: Path, **changed: str) -> LocalStores:
    """Local stores that a job has used."""
    info = driver.info
    fields = {"job": info.job, "job_id": info.job_id, "directory": driver.storage.uri}
    owner = StoreOwner(**(fields | changed))
    stores = LocalStores.of(owner, "rocksdb", str(local))
    stores.store(0, 0).mkdir(parents=True)
    (stores.store(0, 0) / "data").write_bytes(b"x" * 10_000)
    stores.mark_used(owner)
    return stores


def look(root: Path | str, local: Path) -> Findings:
    return scan(Jobs(str(root)), None, None, [str(local)])


@pytest.mark.parametrize("state", [s for s in JobState if s.is_terminal])
def test_of_a_job_that_has_ended(root: Path, local: Path, state: JobState) -> None:
    stores = used(Driver(root, process=elsewhere()).say(state), local)
    (garbage,) = look(root, local).garbage
    assert (garbage.kind, garbage.job, garbage.path) == (
        GarbageKind.STORES,
        "wordcount",
        str(stores.path),
    )
    assert garbage.bytes >= 10_000
    assert garbage.reason == "the job has ended"
    assert stores.path.exists()
    remove(garbage)
    assert not stores.path.exists()
    remove(garbage)  # somebody else was quicker
    assert look(root, local) == Findings()


def test_of_a_job_whose_driver_died(root: Path, local: Path) -> None:
    used(Driver(root, process=dead()).say(JobState.RUNNING), local)
    assert len(look(root, local).garbage) == 1


@pytest.mark.parametrize("state", [s for s in JobState if not s.is_terminal])
def test_those_of_a_job_that_may_run_are_left_alone(
    root: Path, local: Path, state: JobState
) -> None:
    used(Driver(root, "here").say(state), local)
    used(Driver(root, "there", process=elsewhere()).say(state), local)
    used(Driver(root, "starting"), local)
    findings = look(root, local)
    assert findings.garbage == ()
    assert {skipped.job for skipped in findings.skipped} == {"here", "there", "starting"}


def test_of_an_earlier_id_of_a_job_that_runs(root: Path, local: Path) -> None:
    driver = Driver(root).say(JobState.RUNNING)
    current, older = used(driver, local), used(driver, local, job_id="earlier")
    (garbage,) = look(root, local).garbage
    assert garbage.path == str(older.path)
    assert "earlier" in garbage.reason
    remove(garbage)
    assert current.path.exists()


def test_of_a_job_directory_that_is_gone(root: Path, local: Path) -> None:
    driver = Driver(root).say(JobState.FINISHED)
    used(driver, local)
    Driver(root, "other")
    shutil.rmtree(driver.path)
    (garbage,) = look(root, local).garbage
    assert garbage.job == "wordcount"
    assert str(driver.path) in garbage.reason
    remove(garbage)
    assert not Path(garbage.path).exists()


def test_other_roots_are_not_looked_at(root: Path, local: Path, tmp_path: Path) -> None:
    """Also not if the same job is there, as a copy."""
    driver = Driver(root).say(JobState.RUNNING)
    used(driver, local)
    shutil.copytree(root, tmp_path / "copy")
    Driver(tmp_path / "copy").say(JobState.FINISHED)
    assert look(tmp_path / "copy", local) == Findings()
    assert look(tmp_path, local) == Findings()
    driver.say(JobState.FINISHED)
    assert look(tmp_path / "copy", local) == Findings()
    (tmp_path / "link").symlink_to(root)
    for written in (root, f"{root}/", f"file://{root}".replace(" ", "%20"), tmp_path / "link"):
        assert len(look(written, local).garbage) == 1, written


def test_those_that_a_process_has_open_are_left_alone(root: Path, local: Path) -> None:
    stores = used(Driver(root).say(JobState.FAILED), local)
    (garbage,) = look(root, local).garbage
    lock = DirectoryLock.take(stores.store(0, 0))
    assert lock is not None
    findings = look(root, local)
    assert findings.garbage == ()
    (skipped,) = findings.skipped
    assert skipped.path == str(stores.path)
    assert "open" in skipped.reason
    with pytest.raises(StillNeededError, match="open"):
        remove(garbage)
    lock.release()
    assert (stores.store(0, 0) / "data").exists()


def test_a_job_that_was_started_meanwhile_keeps_them(root: Path, local: Path) -> None:
    driver = Driver(root).say(JobState.FAILED)
    stores = used(driver, local)
    (garbage,) = look(root, local).garbage
    driver.say(JobState.RUNNING)
    with pytest.raises(StillNeededError):
        remove(garbage)
    assert stores.path.exists()


def test_a_job_that_cannot_be_read_keeps_them(root: Path, local: Path) -> None:
    driver = Driver(root).say(JobState.FINISHED)
    used(driver, local)
    (driver.path / "job.json").write_bytes(b"damaged")
    assert look(root, local).garbage == ()


def test_where_the_job_says_that_they_are(root: Path, local: Path, tmp_path: Path) -> None:
    driver = Driver(root).say(JobState.FINISHED)
    driver.runs(("state.backend.local-dir", str(local), "code"))
    used(driver, local)
    assert len(look(root, tmp_path / "elsewhere").garbage) == 1
    assert scan(Jobs(str(root))).garbage == ()
