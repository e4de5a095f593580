"""Which snapshot people mean, what it says of itself, and whether its files are whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fake_job import FakeJob, memory_root, schema
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    JobNotFoundError,
)
from turnback.snapshot.find import find_snapshot, locate, open_snapshot
from turnback.snapshot.metadata import METADATA, Origin
from turnback.snapshot.snapshot import verify_snapshot
from turnback.state.files import StorageRef, storage_of
from turnback.values.typeinfo import Types
from turnback.views.snapshots import describe

GOLDEN = Path(__file__).parents[2] / "integration/golden/savepoint-1"
TOTAL = schema()
STATE = (TOTAL, {"a": 1, "b": 2})


class KnownJobs:
    """Jobs by their exact names."""

    def __init__(self, *jobs):
        self.jobs = {job.name: job for job in jobs}

    def find_directory(self, text, *, whole=False):
        if text not in self.jobs:
            raise JobNotFoundError(f"there is no job {text!r}")
        return self.jobs[text].directory

    def savepoints(self):
        return [entry for job in self.jobs.values() for entry in job.catalog.list()]


@pytest.fixture
def job(tmp_path):
    """chk-2, chk-3, then the savepoint monday, then chk-4; a minute apart."""
    made = FakeJob(str(tmp_path / "jobs"))
    made.attempt()
    made.checkpoint(STATE)
    made.checkpoint(STATE)
    made.savepoint(str(tmp_path / "monday"), STATE, id="abcd1234", label="monday")
    made.checkpoint(STATE)
    return made


def find(job, text, **more):
    return find_snapshot(text, StorageRef(job.storage.uri), **more)


def found(job, text):
    return describe(find(job, text)).id


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("chk-2", "chk-2"),
        ("3", "chk-3"),
        ("latest", "chk-4"),
        (" LATEST ", "chk-4"),
        ("abcd1234", "abcd1234"),
        ("abcd", "abcd1234"),
        ("monday", "abcd1234"),
        ("2023-11-14T22:13:20+00:00", "chk-2"),
        ("2023-11-14T22:14:30+00:00", "chk-3"),
        ("2023-11-14T22:15:30Z", "chk-3"),
        ("2033-11-14", "chk-4"),
    ],
)
def test_snapshots_of_a_job(job, text, id):
    assert found(job, text) == id
    assert describe(locate(text, StorageRef(job.storage.uri))).id == id  # as in start_from


def test_what_deletes_a_savepoint_needs_its_whole_id(job):
    for text in ("abcd1234", "monday"):
        assert find(job, text, whole=True).metadata.id == "abcd1234"
    with pytest.raises(CheckpointNotFoundError, match="If you mean abcd1234, use its full id"):
        find(job, "abcd", whole=True)


def test_a_savepoint_newer_than_all_checkpoints_is_the_latest(job, tmp_path):
    job.clock.advance(1)
    job.parent = 9
    job.savepoint(str(tmp_path / "new"), STATE, id="newest")
    assert found(job, "latest") == "newest"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("chk-1", "chk-1 is the start of an attempt. Available checkpoints: chk-2"),
        ("chk-9", "chk-9 is missing, or no longer retained. Available checkpoints: chk-2"),
        ("tuesday", "'tuesday' is not a snapshot"),
        ("abc", "'abc' is not a snapshot"),
        ("1999-01-01", "no checkpoint from before"),
        ("../monday", "is not a snapshot"),
        ("/etc", "is not a snapshot"),
    ],
)
def test_snapshots_that_are_not_there(job, text, told):
    with pytest.raises(CheckpointNotFoundError, match=told):
        find(job, text)


@pytest.mark.parametrize("text", ["", "  ", None, 7, b"chk-7"])
def test_what_names_no_snapshot(job, text):
    if text != 7:
        with pytest.raises(ConfigurationError, match="is not a snapshot: use the directory"):
            find(job, text)
    with pytest.raises(ConfigurationError, match="is not a snapshot: use the directory"):
        open_snapshot(text, KnownJobs(job))


def test_a_name_is_not_taken_for_a_directory(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latest").mkdir()
    assert found(job, "latest") == "chk-4"


def test_a_label_of_several_savepoints(job, tmp_path):
    job.savepoint(str(tmp_path / "again"), STATE, id="abcd9999", label="monday")
    with pytest.raises(
        ConfigurationError, match=r"'monday' matches 2 savepoints.*abcd1234, abcd9999"
    ):
        find(job, "monday")
    with pytest.raises(ConfigurationError, match="'abcd' matches 2"):
        find(job, "abcd")


def test_a_number_is_a_checkpoint_whatever_labels_there_are(job, tmp_path):
    job.savepoint(str(tmp_path / "3"), STATE, id="other", label="3")
    job.savepoint(str(tmp_path / "latest"), STATE, label="latest")
    job.checkpoint(STATE)
    assert found(job, "3") == "chk-3"
    assert found(job, "latest") == "chk-5"
    assert found(job, "other") == "other"


def test_a_savepoint_that_is_gone(job, tmp_path):
    (tmp_path / "monday" / METADATA).unlink()
    with pytest.raises(CheckpointNotFoundError, match="partial savepoint"):
        find(job, "monday")


def test_a_damaged_checkpoint_is_not_passed_over(job):
    job.storage.put("checkpoints/chk-4.json", b"{}")
    with pytest.raises(CorruptFileError, match=r"chk-4\.json"):
        find(job, "latest")
    assert found(job, "chk-3") == "chk-3"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("likes@chk-2", "chk-2"),
        ("likes@latest", "chk-4"),
        ("likes@monday", "abcd1234"),
        ("likes@2023-11-14T22:14:30Z", "chk-3"),
        ("abcd1234", "abcd1234"),
        ("{root}/monday", "abcd1234"),
        ("{root}/monday/", "abcd1234"),
        ("{root}/monday/_metadata.json", "abcd1234"),
        ("file://{root}/monday", "abcd1234"),
        ("{root}/jobs/likes/checkpoints/chk-3.json", "chk-3"),
    ],
)
def test_snapshots_on_a_command_line(job, tmp_path, text, id):
    assert describe(open_snapshot(text.format(root=tmp_path), KnownJobs(job))).id == id


def test_a_relative_directory(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert describe(open_snapshot("monday", KnownJobs(job))).id == "abcd1234"


def test_jobs_labels_and_paths_with_an_at_sign(tmp_path):
    job = FakeJob(str(tmp_path / "jobs"), "a@b")
    job.attempt()
    job.checkpoint(STATE)
    job.savepoint(str(tmp_path / "x@y" / "sp"), STATE, id="atat", label="v@1")
    jobs = KnownJobs(job)
    assert describe(open_snapshot("a@b@chk-2", jobs)).id == "chk-2"
    assert describe(open_snapshot("a@b@v@1", jobs)).id == "atat"
    assert describe(open_snapshot(str(tmp_path / "x@y" / "sp"), jobs)).id == "atat"


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        (
            "likes",
            CheckpointNotFoundError,
            "it is a job. For its newest snapshot, use 'likes@latest'",
        ),
        ("nothing", CheckpointNotFoundError, "there is no directory with this name; use"),
        ("abcd1235", CheckpointNotFoundError, "did you mean the savepoint 'abcd1234'"),
        ("lieks@latest", JobNotFoundError, "no job 'lieks'"),
        ("likes@", ConfigurationError, "is not a snapshot"),
        ("@latest", ConfigurationError, "is not a snapshot"),
        ("likes@tuesday", CheckpointNotFoundError, "'tuesday' is not a snapshot"),
        ("{root}/nothing", CheckpointNotFoundError, "does not exist or is empty"),
        ("{root}/jobs", CheckpointNotFoundError, "partial savepoint"),
        ("{root}/jobs/likes/checkpoints/chk-9.json", CheckpointNotFoundError, "chk-9"),
        ("ftp://x/y", ConfigurationError, "unknown storage scheme"),
    ],
)
def test_mistakes_on_a_command_line(job, tmp_path, text, error, told):
    with pytest.raises(error, match=told):
        open_snapshot(text.format(root=tmp_path), KnownJobs(job))


def test_a_checkpoint_says_what_it_is(tmp_path):
    job = FakeJob(memory_root())
    job.attempt(snapshot="s3://old/savepoint")
    seen = schema("seen", "map", Types.PICKLED_BYTE_ARRAY(), [Types.LONG(), Types.STRING()],
                  Types.SQL_DATE())  # fmt: skip
    shown = describe(job.checkpoint(STATE, (seen, {}), transactions={"out": (b"1", b"2")}))
    assert (shown.id, shown.kind, shown.checkpoint) == ("chk-2", "checkpoint", 2)
    assert shown.location == f"{job.storage.uri}/checkpoints/chk-2.json"
    assert (shown.format, shown.label, shown.started_from) == (None, None, "s3://old/savepoint")
    assert shown.transactions == {"out": 2}
    assert shown.sources == {"events": '{"at": 1}'}
    assert (shown.files, shown.bytes) == (1, len(job.storage.get("state/1/1.arrow")))
    (op,) = shown.operators
    assert (op.uid, op.states, op.watermark_ms) == ("count", ("total", "seen"), 5)
    by_name = {state.name: state for state in shown.states}
    assert [state.name for state in shown.states] == ["seen", "total"]
    assert by_name["seen"].key_type == "bigint, string"
    assert (by_name["seen"].map_key_type, by_name["seen"].value_type) == ("date", "pickled object")
    assert (by_name["total"].rows, by_name["total"].bytes) == (None, None)


def test_a_savepoint_says_what_it_is(job, tmp_path):
    origin = Origin("s3://old/savepoint", id="x", job="likes", checkpoint=3)
    saved = job.savepoint(str(tmp_path / "sp"), STATE, label="l", origin=origin)
    shown = describe(saved)
    assert (shown.kind, shown.format, shown.label) == ("savepoint", "canonical", "l")
    assert shown.started_from == "s3://old/savepoint"
    assert (shown.states[0].rows, shown.states[0].bytes) == (2, shown.bytes)
    assert shown.operators[0].state_bytes == shown.bytes > 0


def test_inline_state_is_counted():
    job = FakeJob(memory_root())
    job.attempt()
    shown = describe(job.checkpoint(STATE, inline=True))
    assert shown.files == 1
    assert shown.bytes > 0


def test_every_file_is_verified(job, tmp_path):
    for snapshot in (
        find(job, "chk-4"),
        open_snapshot(str(GOLDEN), KnownJobs()),
    ):
        told = []
        assert verify_snapshot(snapshot, lambda *at: told.append(at)) == []  # noqa: B023
        assert told[-1] == (describe(snapshot).bytes, describe(snapshot).bytes)
        assert len(told) == describe(snapshot).files


@pytest.mark.parametrize("text", ["chk-4", "monday"])
def test_damage_is_found(job, text):
    snapshot = find(job, text)
    storage = storage_of(snapshot.storage)
    path = next(iter((snapshot.manifest or snapshot.metadata).files()))
    data = storage.get(path)
    storage.put(path, b"x" + data[1:])
    (problem,) = verify_snapshot(snapshot)
    assert problem.path == path
    assert "digest" in problem.reason or "damaged" in problem.reason
    storage.delete(path)
    (problem,) = verify_snapshot(snapshot)
    assert problem.reason.endswith("is missing")


def test_looking_at_a_snapshot_needs_no_arrow(job):
    code = (
        "import sys\n"
        "from turnback.state.files import StorageRef\n"
        "from turnback.views.snapshots import describe\n"
        "from turnback.snapshot.find import find_snapshot\n"
        "import turnback.views.browse, turnback.views.compare\n"
        f"print(describe(find_snapshot('latest', StorageRef({job.storage.uri!r}))).id)\n"
        "print(sorted({'pyarrow', 'numpy', 'pandas', 'pyspark'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["chk-4", "[]"]


def test_a_label_that_is_almost_right_is_suggested(tmp_path):
    job = FakeJob(str(tmp_path / "jobs"))
    job.attempt()
    job.savepoint(str(tmp_path / "sp"), (schema(), {"ann": 1}), id="sp1", label="launch day")
    with pytest.raises(CheckpointNotFoundError, match="Did you mean the savepoint 'launch day'"):
        find(job, "lanch day")
    with pytest.raises(CheckpointNotFoundError, match="Available savepoint labels: 'launch day'"):
        find(job, "something else")
