"""Savepoints are deleted, unless somebody needs them."""

from __future__ import annotations

import shutil

import pytest

from fake_job import FakeJob, schema
from turnback.errors import CheckpointNotFoundError, ConfigurationError, StorageError
from turnback.operations.deletion import dispose
from turnback.snapshot.find import open_snapshot
from turnback.snapshot.metadata import METADATA
from turnback.storage.local import LocalStorage
from turnback.views.jobs import Jobs

STATE = (schema(), {"a": 1})


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "jobs")


@pytest.fixture
def job(root):
    made = FakeJob(root)
    made.attempt()
    made.checkpoint(STATE)
    return made


@pytest.fixture
def saved(job, tmp_path):
    return job.savepoint(str(tmp_path / "sp"), STATE, id="abcd")


def is_there(tmp_path, name="sp"):
    return (tmp_path / name / METADATA).exists()


def test_a_savepoint_and_its_record_go(job, saved, root, tmp_path):
    (tmp_path / "sp" / "mine.txt").write_text("not of the savepoint")
    dispose(saved, Jobs(root))
    assert [p.name for p in (tmp_path / "sp").rglob("*") if p.is_file()] == ["mine.txt"]
    assert job.catalog.list() == []


def test_a_checkpoint_is_refused(job, root):
    with pytest.raises(
        ConfigurationError, match=r"chk-3\.json is a checkpoint, and only savepoints"
    ):
        dispose(job.checkpoint(STATE), Jobs(root), force=True)
    assert job.log.latest().number == 3


@pytest.mark.parametrize("spelled", ["jobs/../sp", "link/sp", "link/jobs/./../sp/"])
def test_a_savepoint_that_a_job_needs_however_it_is_written(saved, root, tmp_path, spelled):
    (tmp_path / "link").symlink_to(tmp_path)
    fork = FakeJob(root, "fork")
    fork.attempt(snapshot=saved.origin.uri)
    jobs = Jobs(root)
    with pytest.raises(ConfigurationError, match="job 'fork' was started from"):
        dispose(open_snapshot(f"{tmp_path}/{spelled}", jobs), jobs)
    assert is_there(tmp_path)


def test_the_record_of_a_savepoint_that_was_written_otherwise_goes(job, saved, root, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    jobs = Jobs(root)
    dispose(open_snapshot(f"{tmp_path}/link/sp", jobs), jobs)
    assert not is_there(tmp_path)
    assert job.catalog.list() == []


def test_a_savepoint_that_a_job_would_go_on_from(saved, root, tmp_path):
    fork = FakeJob(root, "fork")
    fork.attempt(snapshot=saved.origin.uri)
    with pytest.raises(
        ConfigurationError, match=r"job 'fork' was started from .*sp and has not taken"
    ):
        dispose(saved, Jobs(root))
    assert is_there(tmp_path)
    dispose(saved, Jobs(root), force=True)
    assert not is_there(tmp_path)


def test_a_job_that_has_a_checkpoint_of_its_own_since_then_needs_no_savepoint(
    saved, root, tmp_path
):
    fork = FakeJob(root, "fork")
    fork.attempt(snapshot=str(tmp_path / "sp"))
    fork.checkpoint(STATE)
    dispose(saved, Jobs(root))
    assert not is_there(tmp_path)


def test_also_the_job_that_took_it_may_need_it(job, saved, root, tmp_path):
    job.attempt(snapshot=str(tmp_path / "sp" / METADATA))
    with pytest.raises(ConfigurationError, match="job 'likes' was started from"):
        dispose(saved, Jobs(root))


def test_a_job_that_cannot_be_read_may_need_it(saved, root, tmp_path):
    other = FakeJob(root, "other")
    other.attempt()
    other.storage.put("checkpoints/chk-1.json", b"rubbish")
    with pytest.raises(ConfigurationError, match=r"it is unknown whether job 'other' needs"):
        dispose(saved, Jobs(root))
    assert is_there(tmp_path)
    dispose(saved, Jobs(root), force=True)
    assert not is_there(tmp_path)


def test_a_copy_is_not_the_one_that_is_recorded(job, saved, root, tmp_path):
    shutil.copytree(tmp_path / "sp", tmp_path / "copy")
    jobs = Jobs(root)
    dispose(open_snapshot(str(tmp_path / "copy"), jobs), jobs)
    assert not is_there(tmp_path, "copy")
    assert is_there(tmp_path)
    assert [entry.id for entry in job.catalog.list()] == ["abcd"]


def test_the_record_of_one_that_somebody_else_has_deleted_goes_too(job, saved, root, tmp_path):
    shutil.rmtree(tmp_path / "sp")
    with pytest.raises(CheckpointNotFoundError, match="no savepoint at"):
        dispose(saved, Jobs(root))
    assert job.catalog.list() == []


def test_a_savepoint_of_a_job_that_is_gone(job, saved, root, tmp_path):
    shutil.rmtree(root)
    dispose(saved, Jobs(root))
    assert not is_there(tmp_path)


def test_a_savepoint_that_cannot_be_deleted_stays_recorded(job, saved, root, monkeypatch):
    delete = LocalStorage.delete

    def refuse(self, path):
        if path == METADATA:
            raise StorageError("the disk says no")
        delete(self, path)

    monkeypatch.setattr(LocalStorage, "delete", refuse)
    with pytest.raises(StorageError, match="the disk says no"):
        dispose(saved, Jobs(root))
    assert [entry.id for entry in job.catalog.list()] == ["abcd"]
