"""Where elements come from: files, lists and any streaming DataFrame; read once, whatever ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from job_support import COUNTED, Count, Jobs, counted, eventually
from turnback import Row
from turnback.core.clock import SystemClock
from turnback.errors import ChangedFilesError, JobFailedError
from turnback.job.directory import JobDirectory
from turnback.job.history import FilesChanged, read_history
from turnback.job.liveness import liveness_of
from turnback.views.jobs import Jobs as InspectedJobs


class Event(NamedTuple):
    k: str
    n: int | None


def count_files(jobs: Jobs, **how: Any) -> Any:
    env = jobs.env()
    events = jobs.files(env, "events", Event)
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True, **how)


def test_a_bounded_job_goes_on_with_new_files_only(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"}, {"k": "b"})
    jobs.feed("events", {"k": "a"})
    first = count_files(jobs)
    assert [e.records for e in first.epochs] == [2, 1]
    assert first.restored_from is None
    jobs.feed("events", {"k": "b"})
    second = count_files(jobs)
    assert [e.records for e in second.epochs] == [1]
    assert second.restored_from == f"chk-{first.last_checkpoint}"
    assert second.job_id == first.job_id
    third = count_files(jobs)
    assert not third.epochs
    assert third.restored_from == f"chk-{second.last_checkpoint}"
    jobs.feed("events", {"k": "a"}, {"k": "c"})
    assert [e.number for e in count_files(jobs).epochs] == [4]
    assert jobs.out() == counted("abab" + "ac")


def test_an_epoch_reads_files_up_to_a_size(jobs: Jobs) -> None:
    for number in range(5):
        jobs.feed("events", {"k": "a", "n": number})
    jobs.feed("events", *({"k": "b", "n": number} for number in range(9)))  # larger than allowed
    one = min(path.stat().st_size for path in jobs.input("events").glob("[!._]*"))
    env = jobs.env()
    events = env.from_files(
        jobs.input("events"), "json", Event, "events", max_bytes_per_epoch=2 * one
    )
    events.map(lambda event: event.k, str).sink_to(jobs.sink()).uid("out")
    report = env.execute("job", bounded=True)
    assert [epoch.records for epoch in report.epochs] == [2, 2, 1, 9]
    assert sorted(jobs.out()) == ["a"] * 5 + ["b"] * 9


def test_starting_afresh_reads_everything_again(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    first = count_files(jobs)
    again = count_files(jobs, fresh=True)
    assert [e.records for e in again.epochs] == [1]
    assert again.restored_from is None
    assert again.job_id != first.job_id
    assert jobs.out() == [("a", 1), ("a", 1)]
    jobs.feed("events", {"k": "a"})
    count_files(jobs)
    assert jobs.out() == [("a", 1), ("a", 1), ("a", 2)]


def test_many_files_over_many_epochs_and_two_runs(jobs: Jobs) -> None:
    """More epochs than Spark keeps entries for in one file of its list."""
    for half in range(2):
        for _ in range(13):
            jobs.feed("events", {"k": "a"})
        assert len(count_files(jobs).epochs) == 13, f"run {half}"
    assert jobs.out() == counted("a" * 26)
    assert not count_files(jobs).epochs


def test_an_unbounded_job_takes_files_as_they_come(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    env = jobs.env()
    events = jobs.files(env, "events", Event)
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    client = jobs.start(env, epoch_interval=20)
    eventually(lambda: jobs.out() == [("a", 1)])
    assert not client.done()
    with pytest.raises(TimeoutError):
        client.result(0.01)
    jobs.feed("events", {"k": "a"}, {"k": "b"})
    eventually(lambda: len(jobs.out()) == 3)
    assert jobs.checkpoints()[-1].trigger == "periodic"
    client.cancel()
    report = client.result(60)
    assert client.done()
    assert report.epochs[-1].records == 2
    jobs.feed("events", {"k": "b"})
    count_files(jobs)
    assert jobs.out() == counted("aabb")


def started_with_files(jobs: Jobs, policy: str) -> Any:
    env = jobs.env()
    events = env.from_files(
        jobs.input("events"), "json", Event, uid="events", on_changed_files=policy
    )
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    return jobs.start(env)


@pytest.fixture
def _looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnback.driver.source_monitor._PAUSE_S", 0.02)
    monkeypatch.setattr("turnback.driver.source_monitor._REST", 0)
    monkeypatch.setattr("turnback.driver.context.HEARTBEAT_S", 0.05)


def append(jobs: Jobs, text: str, later_s: int = 1) -> Path:
    (file,) = jobs.input("events").iterdir()
    written = file.stat().st_mtime_ns
    with file.open("a") as open_file:
        open_file.write(text)
    os.utime(file, ns=(0, written + later_s * 1_000_000_000))
    return file


@pytest.mark.usefixtures("_looking_often")
@pytest.mark.parametrize("later_s", [0, 1])
def test_a_file_that_is_appended_to_after_it_was_read_is_told(jobs: Jobs, later_s: int) -> None:
    jobs.feed("events", {"k": "a"})
    client = started_with_files(jobs, "warn")
    eventually(lambda: jobs.out() == [("a", 1)])
    file = append(jobs, '{"k": "late"}\n', later_s)
    directory = JobDirectory.locate(jobs.root, "job")
    told = eventually(lambda: liveness_of(directory.status(), SystemClock().now_ms()).problem)
    assert told.startswith("source 'events': 1 file was changed after being read")
    assert told.endswith(str(file))
    jobs.feed("events", {"k": "a"})
    eventually(lambda: len(jobs.out()) == 2)
    client.cancel()
    client.result(60)
    changed = FilesChanged("events", 1, (str(file),))
    assert [r.event for r in read_history(directory.storage)].count(changed) == 1
    (row,) = InspectedJobs(str(jobs.root)).get("job").failures()
    assert (row.kind, row.cause) == ("files changed", told)


@pytest.mark.usefixtures("_looking_often")
def test_a_file_that_is_changed_after_it_was_read_ends_a_job_that_is_to_end_then(
    jobs: Jobs,
) -> None:
    jobs.feed("events", {"k": "a"})
    client = started_with_files(jobs, "fail")
    eventually(lambda: jobs.out() == [("a", 1)])
    file = append(jobs, '{"k": "late"}\n')
    with pytest.raises(ChangedFilesError, match="1 file was changed after being read") as failed:
        client.result(60)
    assert str(file) in str(failed.value)
    assert 'on_changed_files="warn"' in str(failed.value)
    # It ends again as long as the file is changed, and nothing of it is lost on the way.
    with pytest.raises(ChangedFilesError, match="changed after being read"):
        started_with_files(jobs, "fail").result(60)
    client = started_with_files(jobs, "ignore")
    jobs.feed("events", {"k": "a"})
    eventually(lambda: jobs.out() == [("a", 1), ("a", 2)])
    client.cancel()
    client.result(60)


def test_files_that_nobody_looks_at_are_told_at_the_start(jobs: Jobs) -> None:
    env = jobs.env()
    for name, policy in {"orders": "warn", "likes": "ignore"}.items():
        path = f"s3://bucket/{name}"
        stream = env.from_files(path, "json", Event, uid=name, on_changed_files=policy)
        stream.sink_to(jobs.sink()).uid(f"out-{name}")
    (told,) = env.plan().warnings
    assert told.startswith("source 'orders': if files in s3://bucket/orders change")
    assert "Give every file a unique name" in told
    assert 'on_changed_files="ignore"' in told


def test_a_single_file_is_read_once_and_no_other(jobs: Jobs, tmp_path: Path) -> None:
    place = tmp_path / "with [odd] {name}"
    place.mkdir()
    for name in ("a*b?[c].json", "axb1c.json", "a.json"):
        (place / name).write_text('{"k": "' + name[0:2] + '"}\n')

    def run() -> None:
        env = jobs.env()
        events = env.from_files(place / "a*b?[c].json", "json", Event, uid="events")
        events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
        env.execute("job")

    run()
    assert jobs.out() == [("a*", 1)]
    run()
    assert jobs.out() == [("a*", 1)]


def test_a_list_is_read_once_and_goes_on_where_it_was(jobs: Jobs) -> None:
    rows = [Row(k="a", n=1), Row(k="b", n=None), Row(k="a", n=3)]

    def run(rows: list[Any]) -> list[int]:
        env = jobs.env()
        listed = env.from_collection(rows, Event, uid="list")
        listed.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
        return [e.records for e in env.execute("job").epochs]

    assert run(rows) == [3]
    assert run(rows) == []  # nothing is read twice
    assert run([*rows, ("b", 4)]) == [1]
    assert jobs.out() == counted("abab")
    with pytest.raises(
        JobFailedError, match=r"4 elements were already read, but the list now has only 2"
    ):
        run(rows[:2])
    assert jobs.out() == counted("abab")
