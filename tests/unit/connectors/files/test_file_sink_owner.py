"""A directory of files belongs to one job."""

import json
import os
import re
import threading
from pathlib import Path

import pytest
from sink_support import write

from turnback.connectors.files.sink import FileSink
from turnback.errors import ConfigurationError, SinkError, StorageError


@pytest.fixture
def root(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink(root):
    return FileSink(root, "json")


@pytest.fixture
def ctx(committer_ctx, tmp_path):
    """The context of a job of this name in the usual root."""

    def make(job="likes", jobs="jobs", **changes):
        place = (tmp_path / jobs / job).as_uri()
        return committer_ctx(
            job=job, **{"job_id": f"id of {job}", "job_directory": place} | changes
        )

    return make


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def seen(root: Path) -> list[int]:
    return sorted(
        json.loads(line)["n"] for f in root.glob("*.json") for line in f.read_text().splitlines()
    )


def test_a_second_job_is_refused_and_writes_nothing(root, sink, ctx):
    sink.acquire_target(ctx())
    before = content(root)
    with pytest.raises(ConfigurationError) as refused:
        sink.acquire_target(ctx("fork", uid="dashboard"))
    for told in (
        "sink 'dashboard' of job 'fork'",
        str(root),
        "job 'likes'",
        ctx().job_directory,
        "another path",
        "take_over_sinks=True",
        "--take-over-sinks",
    ):
        assert told in str(refused.value)
    assert content(root) == before


def test_the_same_job_comes_again(sink, ctx):
    for changes in (
        {},
        {"attempt": 9},
        {"job_id": "after a fresh start"},
        {"uid": "another sink of it"},
        {"job": "likes"},
    ):
        sink.acquire_target(ctx(**changes))


def test_a_job_is_its_place_not_its_name_or_id(tmp_path, sink, ctx):
    sink.acquire_target(ctx())
    with pytest.raises(ConfigurationError, match="belongs to job 'likes' in"):
        sink.acquire_target(ctx(jobs="copied"))
    # The same directory by another way is the same job.
    (tmp_path / "jobs" / "likes").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "jobs")
    sink.acquire_target(ctx(jobs="link"))
    (tmp_path / "jobs").rename(tmp_path / "moved")
    (tmp_path / "jobs").symlink_to(tmp_path / "moved")
    sink.acquire_target(ctx(jobs="moved"))


def test_a_job_directory_anywhere(root, sink, ctx):
    sink.acquire_target(ctx(job_directory="s3://bucket/jobs/likes"))
    sink.acquire_target(ctx(job_directory="s3://bucket/jobs/likes"))
    with pytest.raises(ConfigurationError, match="in s3://bucket/jobs/likes,"):
        sink.acquire_target(ctx(job_directory="s3://other/jobs/likes"))


def test_output_from_before_owners_were_recorded_is_the_first_comers(
    root, sink, ctx, writer_ctx, committer_ctx
):
    old = write(sink, writer_ctx(), ("a", 1))
    sink.committer(committer_ctx()).commit([old])
    sink.acquire_target(ctx())
    with pytest.raises(ConfigurationError, match="'likes'"):
        sink.acquire_target(ctx("fork"))


def test_handed_over_the_former_owner_is_refused(root, sink, ctx, writer_ctx):
    sink.acquire_target(ctx())
    former = sink.committer(ctx())
    former.commit([write(sink, writer_ctx(job_id="id of likes"), ("a", 1))])
    sink.acquire_target(ctx("fork", take_over=True))
    new = sink.committer(ctx("fork"))
    new.commit([write(sink, writer_ctx(job="fork", job_id="id of fork"), ("b", 2))])
    # It went on running,
    late = write(sink, writer_ctx(job_id="id of likes", epoch=8), ("c", 3))
    for step in (former.commit, former.recover):
        with pytest.raises(ConfigurationError, match="belongs to job 'fork'"):
            step([late])
    # or is started again. What it has prepared it can still roll back.
    with pytest.raises(ConfigurationError, match="belongs to job 'fork'"):
        sink.acquire_target(ctx(attempt=4))
    former.abort([late])
    assert seen(root) == [1, 2]
    assert list(root.rglob("*.inprogress")) == []
    # And back.
    sink.acquire_target(ctx(attempt=5, take_over=True))
    sink.acquire_target(ctx(attempt=5))


def test_nothing_is_handed_over_that_may_be_promised(root, sink, ctx, writer_ctx):
    sink.acquire_target(ctx())
    promised = write(sink, writer_ctx(job_id="id of likes"), ("a", 1))
    with pytest.raises(
        ConfigurationError, match=r"1 unpublished files .*`turnback transactions commit likes`"
    ):
        sink.acquire_target(ctx("fork", take_over=True))
    sink.committer(ctx()).recover([promised])
    sink.acquire_target(ctx("fork", take_over=True))
    assert seen(root) == [1]


class Others:
    """Other jobs, by how much they have promised; None if that cannot be read."""

    def __init__(self, promised: int | None) -> None:
        self.promised = promised

    def promised_by(self, directory: str) -> int:
        if self.promised is None:
            raise StorageError("permission denied")
        return self.promised


@pytest.fixture
def task(ctx, writer_ctx):
    """The context of a task of a job."""

    def make(job="likes", jobs="jobs", **changes):
        of_job = ctx(job, jobs)
        ids = {"job": job, "job_id": of_job.job_id, "directory_id": of_job.directory_id}
        return writer_ctx(**ids | changes)

    return make


@pytest.mark.parametrize("taker", [{"jobs": "copied"}, {"job": "fork"}], ids=["copy", "fork"])
def test_what_the_owner_has_promised_is_not_taken_from_it(root, sink, ctx, task, taker):
    sink.acquire_target(ctx())
    promised = write(sink, task(), ("a", 1))
    take = {"take_over": True, "attempt": 0, **taker}
    for others, reason in (
        (Others(3), "3 in-doubt transactions .*`turnback transactions commit likes`"),
        (Others(None), "cannot read .*permission denied"),
        (None, "1 unpublished files there"),
    ):
        for step in (sink.check_target, sink.acquire_target):
            with pytest.raises(ConfigurationError, match=reason):
                step(ctx(other_jobs=others, **take))
    sink.committer(ctx(attempt=4)).recover([promised])
    assert seen(root) == [1]
    sink.acquire_target(ctx(other_jobs=Others(0), **take))


def test_a_copy_that_takes_over_leaves_the_originals_files_alone(root, sink, ctx, task):
    sink.acquire_target(ctx())
    promised = write(sink, task(), ("a", 1))
    copy = {"jobs": "copied", "attempt": 9}
    sink.acquire_target(ctx(take_over=True, other_jobs=Others(0), **copy))
    sink.committer(ctx(**copy)).recover([])
    assert len(list(root.rglob("*.inprogress"))) == 1
    # The original was moved there, so that it is the copy which has promised them.
    moved = sink.committer(ctx(**copy | {"attempt": 10}))
    moved.commit([promised])
    moved.recover([])
    assert seen(root) == [1]


def test_a_copy_that_writes_elsewhere_leaves_the_originals_files_alone(tmp_path, root, ctx, task):
    original, copy = FileSink(root, "json"), FileSink(tmp_path / "elsewhere", "json")
    promised = write(original, task(), ("a", 1))
    copy.acquire_target(ctx(jobs="copied", attempt=9))
    copy.committer(ctx(jobs="copied", attempt=9)).recover([])
    original.committer(ctx(attempt=4)).commit([promised])
    assert seen(root) == [1]


def test_a_fresh_start_rolls_back_what_the_job_had_staged(root, sink, ctx, task, caplog):
    sink.acquire_target(ctx())
    done, promised = write(sink, task(epoch=1), ("a", 1)), write(sink, task(epoch=2), ("a", 2))
    sink.committer(ctx()).commit([done])
    write(sink, task(uid="it was renamed since"), ("a", 3))
    write(sink, task("fork"), ("a", 4))
    write(sink, task(directory_id="", job_id="before targets were told"), ("a", 5))
    sink.committer(ctx(job_id="afresh", uid="another", attempt=4)).recover([])
    (left,) = root.rglob("*.inprogress")
    assert left.is_relative_to(root / ".turnback" / "fork")
    for uid in ("out", "it was renamed since"):
        assert f"bytes that sink {uid!r} had written but not published" in caplog.text
    with pytest.raises(SinkError, match="1 rows of epoch 2 are lost"):
        sink.committer(ctx(attempt=5)).commit([done, promised])
    assert seen(root) == [1]


def test_files_of_an_older_version_are_published(root, sink, ctx, task):
    sink.acquire_target(ctx())
    promised, left = (write(sink, task(directory_id="", epoch=n), ("a", n)) for n in (1, 2))
    committer = sink.committer(ctx(attempt=4))
    assert len(list(sink.list_orphans(ctx(attempt=4)))) == 2
    committer.commit([promised])
    committer.recover([])
    assert seen(root) == [1], left
    assert list(root.rglob("*.inprogress")) == []


def test_of_two_jobs_that_come_at_once_one_wins(tmp_path, ctx):
    for n in range(20):
        sink, outcome = FileSink(tmp_path / f"out{n}"), []
        start = threading.Barrier(4)

        def come(job, sink=sink, outcome=outcome, start=start):
            start.wait()
            try:
                sink.acquire_target(ctx(job))
                outcome.append(job)
            except ConfigurationError:
                pass

        threads = [threading.Thread(target=come, args=(f"job{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcome) == 1


def test_a_directory_that_was_emptied_is_claimed_again(root, sink, ctx, writer_ctx):
    sink.acquire_target(ctx())
    (root / ".turnback" / ".owner").unlink()
    committer = sink.committer(ctx())
    committer.commit([write(sink, writer_ctx(job_id="id of likes"), ("a", 1))])
    with pytest.raises(ConfigurationError):
        sink.acquire_target(ctx("fork"))


def test_a_damaged_record_of_the_owner(root, sink, ctx):
    sink.acquire_target(ctx())
    (root / ".turnback" / ".owner").write_bytes(b"rubbish")
    with pytest.raises(
        ConfigurationError, match=r"cannot read which job owns .*Remove (.*\.owner) if"
    ) as bad:
        sink.acquire_target(ctx())
    # It is the way out.
    Path(re.search("Remove (.*owner)", str(bad.value))[1]).unlink()
    sink.acquire_target(ctx())
    with pytest.raises(ConfigurationError, match="belongs to job 'likes'"):
        sink.acquire_target(ctx("fork"))


def test_a_target_that_cannot_be_written(ctx):
    with pytest.raises(SinkError, match=r"'out' of job 'likes': cannot use /proc/turnback"):
        FileSink("/proc/turnback").acquire_target(ctx())


def test_a_commit_reads_one_file_for_it(root, sink, ctx, writer_ctx, monkeypatch):
    sink.acquire_target(ctx())
    committer = sink.committer(ctx())
    opened = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *a, **k: (opened.append(str(path)), real(path, *a, **k))[1]
    )
    committer.commit([write(sink, writer_ctx(job_id="id of likes"), ("a", 1))])
    assert opened.count(".owner") == 1
