"""Compaction of tables, beside the job that writes them: fewer files, the same rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from table_support import A, B, C, DeltaPlace, IcebergPlace, Job

from fake_job import FakeJob
from job_support import Jobs, eventually
from turnback.cli.main import main
from turnback.connectors.files.sink import FileSink
from turnback.connectors.tables import DeltaSink
from turnback.connectors.tables import compaction as table_compaction
from turnback.connectors.tables.compaction import ConflictError, compact_table
from turnback.driver.sinks import record_sinks
from turnback.errors import ConfigurationError, SinkError
from turnback.operations.compaction import compact


def filled(job: Job, first: int = 1, last: int = 6) -> Any:
    """Let a job add a file per partition of the table in each epoch."""
    committer = job.start()
    for epoch in range(first, last + 1):
        committer.commit([job.write((f"e{epoch}", epoch, "mon"), ("x", 0, None), epoch=epoch)])
    return committer


@pytest.fixture
def daily(place: Any) -> Job:
    return Job(place, partition_by=["day"])


def test_fewer_files_and_the_same_rows(daily: Job) -> None:
    committer = filled(daily)
    rows, old, number = daily.rows(), daily.place.versions(), daily.place.remembered()[-1]
    done = daily.sink.compact(daily.context())
    assert (done.files_before, done.files_after, done.joined) == (12, 2, 12)
    assert len(daily.place.referenced()) == 2
    assert daily.rows() == rows
    assert daily.place.versions() == old + 1
    # The sink is where it was: it commits what is new, and only that.
    assert committer._look(committer._identity).version == number
    committer.commit([daily.write(A, epoch=6), daily.write(B, epoch=7)])
    assert daily.rows() == sorted([*rows, B], key=repr)
    again = daily.start(4)
    assert again._look(again._identity).version >= number


def test_readers_of_older_versions_find_their_files(daily: Job) -> None:
    filled(daily)
    before, rows = daily.start(4).target_version(), daily.rows()
    daily.sink.compact(daily.context())
    if isinstance(daily.place, DeltaPlace):
        table = daily.place.table()
        table.load_as_version(int(before))
        old = table.to_pyarrow_table()
    else:
        old = daily.place.table().scan(snapshot_id=int(before)).to_arrow()
    assert old.num_rows == len(rows)


def test_another_reader_of_the_files_sees_the_same(daily: Job) -> None:
    filled(daily)
    daily.sink.compact(daily.context())
    files = [str(p) for p in daily.place.root.rglob("*.parquet")]
    current = [path for path in files if Path(path).name in daily.place.referenced()]
    (rows,) = duckdb.sql(
        f"SELECT count(*), count(DISTINCT post) FROM read_parquet({current})"
    ).fetchall()
    assert rows == (12, 7)


def test_again_and_again(daily: Job) -> None:
    committer = filled(daily)
    for epoch in range(7, 10):
        committer.commit([daily.write((f"e{epoch}", epoch, "mon"), ("x", 0, None), epoch=epoch)])
        assert daily.sink.compact(daily.context()).files_after == 2
    assert len(daily.rows()) == 18


def test_nothing_to_do(daily: Job) -> None:
    filled(daily, 1, 1)
    before = daily.place.versions()
    assert daily.sink.compact(daily.context()).joined == 0
    assert daily.place.versions() == before


def test_a_dry_run_changes_nothing(daily: Job) -> None:
    filled(daily)
    before, files = daily.place.versions(), daily.place.referenced()
    done = daily.sink.compact(daily.context(), dry_run=True)
    assert (done.files_before, done.files_after, done.joined) == (12, 2, 12)
    assert (daily.place.versions(), daily.place.referenced()) == (before, files)


def test_the_job_commits_meanwhile(daily: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of the job between looking at the table and the commit of the compaction."""
    committer = filled(daily)
    target = daily.sink.target(daily.context())
    plan, calls = target.plan_compaction, []

    def looked() -> Any:
        planned = plan()
        if not calls:
            committer.commit([daily.write(B, epoch=7)])
        calls.append(planned)
        return planned

    monkeypatch.setattr(target, "plan_compaction", looked)
    rows = daily.rows()
    compact_table(target, "sink", "place", dry_run=False)
    assert daily.rows() == sorted([*rows, B], key=repr)
    assert len(daily.place.referenced()) <= 4


def test_the_job_replaces_rows_meanwhile(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(place, mode="upsert", key=["post"])
    committer = job.start()
    for epoch, post in enumerate("abcd"):
        committer.commit([job.write((post, 1, "mon"), epoch=epoch + 1)])
    target = job.sink.target(job.context())
    plan, calls = target.plan_compaction, []

    def looked() -> Any:
        planned = plan()
        if not calls:
            committer.commit([job.write(("a", 2, "mon"), epoch=7)])
        calls.append(planned)
        return planned

    monkeypatch.setattr(target, "plan_compaction", looked)
    compact_table(target, "sink", "place", dry_run=False)
    expected = [("a", 2, "mon"), *((post, 1, "mon") for post in "bcd")]
    assert job.rows() == expected
    committer.commit([job.write(("d", 3, "mon"), epoch=8)])
    assert job.rows() == [*expected[:3], ("d", 3, "mon")]


def test_a_commit_of_the_job_meets_a_compaction(place: Any, monkeypatch: Any) -> None:
    job = Job(place, mode="upsert", key=["post"])
    committer = job.start()
    for epoch, post in enumerate("abcd"):
        committer.commit([job.write((post, 1, "mon"), epoch=epoch + 1)])
    look, calls = committer._target.look, []

    def looked() -> None:
        look()
        calls.append("look")
        if len(calls) == 1:
            job.sink.compact(job.context())

    monkeypatch.setattr(committer._target, "look", looked)
    committer.commit([job.write(("a", 2, "mon"), epoch=7)])
    assert job.rows() == [("a", 2, "mon"), *((post, 1, "mon") for post in "bcd")]


def test_a_table_that_never_stands_still(daily: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(daily, 1, 2)
    target = daily.sink.target(daily.context())

    def refused(alone: Any) -> int:
        raise ConflictError("changed")

    monkeypatch.setattr(target, "compact", refused)
    monkeypatch.setattr(table_compaction.time, "sleep", lambda seconds: None)
    with pytest.raises(SinkError, match="8 times during compaction: changed"):
        compact_table(target, "sink", "place", dry_run=False)


def test_rows_that_were_deleted_stay_away(tmp_path: Path) -> None:
    """Rows deleted by others, as far as the libraries here can: by rewriting their files."""
    for place in (DeltaPlace(tmp_path / "d"), iceberg(tmp_path / "i")):
        job = Job(place)
        committer = job.start()
        for epoch, row in enumerate((A, B, C)):
            committer.commit([job.write(row, epoch=epoch + 1)])
        place.table().delete("post = 'b'")
        job.sink.compact(job.context())
        assert job.rows() == [A, C]


def iceberg(base: Path) -> IcebergPlace:
    base.mkdir()
    return IcebergPlace(base)


def test_files_with_row_level_deletes_are_left_alone(tmp_path: Path, monkeypatch: Any) -> None:
    job = Job(iceberg(tmp_path / "i"))
    filled(job, 1, 3)
    from turnback.connectors.tables import iceberg as iceberg_compaction

    table = job.place.table()
    tasks = list(table.scan().plan_files())
    tasks[0].delete_files.add("a delete file")
    monkeypatch.setattr(type(table.scan()), "plan_files", lambda scan: tasks)
    (bin,) = iceberg_compaction.plan(table)
    assert tasks[0] not in bin
    assert tasks[0].file.file_path not in iceberg_compaction._whole_files(table)


# -- in the background


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.close()


def test_in_the_background(place: Any) -> None:
    job = Job(place, compact_files=10)
    committer = filled(job)  # 6 files
    assert len(place.referenced()) == 6
    for epoch in range(7, 11):
        committer.commit([job.write(A, epoch=epoch)])
    committer.close()
    assert len(place.referenced()) < 6
    assert place.read().num_rows == 16


def test_a_compaction_that_fails_does_not_disturb_the_job(
    place: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(place, compact_files=2)
    done = threading.Event()

    def broken(*_: Any, **__: Any) -> None:
        done.set()
        raise SinkError("no space left")

    monkeypatch.setattr(type(job.sink), "compact", broken)
    committer = filled(job)
    committer.close()
    assert done.is_set()
    assert "cannot compact its table: no space left" in caplog.text
    assert place.read().num_rows == 12


# -- the command


def recorded(tmp_path: Path, **sinks: Any) -> FakeJob:
    job = FakeJob(str(tmp_path / "jobs"))
    job.attempt()
    record_sinks(job.directory, job.number, sinks)
    return job


def test_the_command(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a job that runs."""
    env = jobs.env()
    place = DeltaPlace(jobs.directory)
    stream = jobs.files(env, "in", "account string")
    stream.sink_to(place.sink()).uid("out")
    for n in range(5):
        jobs.feed("in", {"account": f"a{n}"})
    client = jobs.start(env, "live")
    eventually(lambda: place.exists() and place.read().num_rows == 5)
    root = ("--root", str(jobs.root))
    files = len(place.referenced())
    assert main(["compact", "live", "--dry-run", *root]) == 0
    assert "Dry run: nothing was changed" in capsys.readouterr().err
    assert len(place.referenced()) == files
    assert main(["compact", "live", "out", "--json", *root]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["dry_run"], told["tables"][0]["files_before"]) == (False, files)
    assert told["tables"][0]["files_after"] == len(place.referenced()) == 1
    jobs.feed("in", {"account": "later"})
    eventually(lambda: place.read().num_rows == 6)
    client.stop().result(60)
    assert main(["compact", "live", *root]) == 0  # also when it does not run
    assert len(place.referenced()) == 1
    assert place.read().num_rows == 6


def test_jobs_and_sinks_that_cannot_be_compacted(tmp_path: Path) -> None:
    job = recorded(
        tmp_path,
        files=FileSink(tmp_path / "files", "json"),
        delta=DeltaSink(tmp_path / "table"),
        secret=iceberg(tmp_path / "i").sink(),
    )
    for uid, reason in {
        "nobody": "has no sink 'nobody'; available: 'delta', 'files', 'secret'",
        "files": "is of kind 'file': only Delta and Iceberg tables can be compacted",
        "secret": "only the program defines the catalog of sink 'secret'.*--script",
        "delta": "which does not exist on this machine",
    }.items():
        with pytest.raises(ConfigurationError, match=reason):
            compact(job, uid)
    (tmp_path / "table").mkdir()
    with pytest.raises(SinkError, match="there is no Delta table at"):
        compact(job, "delta")
    with pytest.raises(ConfigurationError, match="writes no Delta or Iceberg table"):
        compact(recorded(tmp_path / "other", files=FileSink(tmp_path / "files", "json")))


def test_a_sink_that_only_the_program_can_make(tmp_path: Path) -> None:
    output = Job(iceberg(tmp_path / "i"))
    job = recorded(tmp_path, out=output.sink)
    output.directory = job.directory.storage.uri
    filled(output)
    (done,) = compact(job, sinks={"out": output.sink}).tables
    assert (done.sink, done.kind, done.files_before, done.files_after) == ("out", "iceberg", 6, 1)


def test_another_jobs_table_is_left_alone(daily: Job) -> None:
    filled(daily)
    with pytest.raises(ConfigurationError, match="belongs to job 'likes'"):
        daily.sink.compact(daily.context(job_directory="file:///jobs/other"))


@pytest.mark.parametrize("value", [0, 1, "5", True, 2.5, 10**7])
def test_options_that_cannot_be_used(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="compact_files must be a number of files from 2"):
        DeltaSink(tmp_path, compact_files=value)


def test_unknown_jobs_and_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = recorded(tmp_path, out=DeltaSink(tmp_path / "table"))
    root = ("--root", str(tmp_path / "jobs"))
    assert main(["compact", "nobody", *root]) != 0
    assert "nobody" in capsys.readouterr().err
    assert main(["compact", job.name, "out", "more", *root]) != 0
    assert "specify it with --script" in capsys.readouterr().err
