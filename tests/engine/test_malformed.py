"""Records that do not fit the schema of their source; on Spark as well, see `test_on_spark`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engine.test_restarts import FailsOn
from job_support import COUNTED, Count, Jobs, counted
from turnback import CollectSink, RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from turnback.api.environment import error_text
from turnback.checkpoint.log import CheckpointLog
from turnback.errors import MalformedRecordError
from turnback.job.directory import JobDirectory
from turnback.job.history import Restarting
from turnback.snapshot.find import load_snapshot
from turnback.testing import DriverCrash, JobHarness, source
from turnback.views.job import Job
from turnback.views.snapshots import describe

SCHEMA = (
    "k string, n bigint, i int, d double, f boolean, l array<bigint>, r struct<x:bigint>, "
    "m map<string,bigint>, t timestamp, y date, c decimal(5,2), b binary"
)
WELL = """
{"k":"x","n":1,"l":[1,null],"r":{"x":1},"m":{"a":1},"t":"2024-01-01T00:00:00Z","y":"2024-01-01"}
{}
  {"k": null, "n": 2, "unknown": "of no interest"}
{"k":5}
{"k":{"z":[1,true]}}
{"d":1}
{"d":"NaN"}
{"t":1,"c":"1.25","b":"aGk="}
{"c":1.255}
{"r":{"y":1},"f":true}
[{"k":"p"},{"k":"q"}]
{"k":"end"} and something behind it
"""
MALFORMED = """
{"n":"5"}
{"n":1.0}
{"n":true}
{"n":99999999999999999999}
{"i":3000000000}
{"d":"1.5"}
{"f":"true"}
{"l":5}
{"l":[1,"x"]}
{"r":{"x":"q"}}
{"r":5}
{"m":{"a":"x"}}
{"t":"nope"}
{"y":"x"}
{"c":12345678.5}
{"b":"?"}
{"k":"cut o
null
5
"text"
not JSON at all
"""
CSV = "k string, n bigint, d double, f boolean, y date"
WELL_CSV = """
a,1,1.5,true,2024-01-01
,,,,
"b,c",-1,1e3,FALSE,2024-12-31
d,1,NaN,,
"""
MALFORMED_CSV = """
a,many,1.5,true,2024-01-01
b,1
c,1,1.5,true,2024-01-01,more
d,1.5,1,true,2024-01-01
e, 1,1,true,2024-01-01
f,1,x,true,2024-01-01
g,1,1,yes,2024-01-01
h,1,1,true,x
i,99999999999999999999,1,true,2024-01-01
j,"never ended,1,1,true
"""


def lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")


def feed(jobs: Jobs, source: str, *given: str) -> Path:
    """Put one file with these lines in front of a source."""
    path = jobs.feed(source)
    path.write_text("".join(f"{line}\n" for line in given), errors="surrogateescape")
    os.utime(path, (jobs._files, jobs._files))
    return path


def test_what_is_malformed(jobs: Jobs) -> None:
    """Nobody reads the columns that are malformed, and yet they are looked at."""
    json_file = feed(jobs, "json", *lines(WELL), "", *lines(MALFORMED), "\udcff no UTF-8")
    csv_file = feed(jobs, "csv", *lines(WELL_CSV), "", *lines(MALFORMED_CSV))
    env, seen, keys = jobs.env(), CollectSink(), CollectSink()
    for format, schema in (("json", SCHEMA), ("csv", CSV)):
        directory = jobs.input(format)
        read = env.from_files(directory, format, schema, uid=format, on_malformed="dead_letter")
        read.dead_letters().sink_to(seen).uid(f"{format}-malformed")
        read.map(lambda row: row.k, str).uid(f"{format}-k").sink_to(keys).uid(f"{format}-keys")
    assert [source.read.names for source in env.plan().sources] == [("k",)] * 2  # type: ignore[attr-defined]
    env.execute("job", bounded=True)
    texts = {(row.source, row.place): [] for row in seen.results}  # type: ignore[var-annotated]
    for row in seen.results:
        texts[row.source, row.place].append(row.text)
    expected = {
        ("json", str(json_file)): [*lines(MALFORMED), "\ufffd no UTF-8"],
        ("csv", str(csv_file)): lines(MALFORMED_CSV),
    }
    assert texts == expected
    assert sorted(keys.results, key=str) == sorted(
        [
            "x",
            None,
            None,
            "5",
            '{"z":[1,true]}',
            *[None] * 5,
            "p",
            "q",
            "end",
            "a",
            None,
            "b,c",
            "d",
        ],
        key=str,
    )
    assert counts(jobs) == {"json": len(lines(MALFORMED)) + 1, "csv": len(lines(MALFORMED_CSV))}


def counts(jobs: Jobs, name: str = "job") -> dict[str, int]:
    """What status, newest checkpoint and graph agree upon."""
    job = Job(JobDirectory.locate(jobs.root, name))
    status = job.directory.status()
    assert status is not None
    manifest = jobs.log(name).latest()
    assert manifest is not None
    kept = {uid: at.malformed for uid, at in manifest.sources.items() if at.malformed}
    assert status.metrics.malformed == kept
    assert {op.uid: op.malformed for op in job.detail().operators if op.malformed} == kept
    shown = describe(job.snapshot(manifest.name)).operators
    assert {op.uid: op.malformed for op in shown if op.malformed} == kept
    return kept


def run(jobs: Jobs, policy: str | None, *failing_calls: int, **how: Any) -> Any:
    """Count keys; whatever fails at some calls is a failure of the job."""
    env = jobs.env(parallelism=2)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(9, 0))
    events = env.from_files(
        jobs.input("events"),
        "json",
        "k string, n bigint",
        "events",
        max_files_per_epoch=1,
        on_malformed=policy,
    )
    if policy == "dead_letter":
        texts = events.dead_letters().map(lambda row: row.text, str).uid("texts")
        texts.sink_to(jobs.sink("malformed")).uid("malformed")
    function = FailsOn(jobs.marks, *failing_calls) if failing_calls else Count()
    counted = events.key_by("k").process(function, COUNTED).uid("count")
    counted.sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True, **how)


GOOD = '{"k":"a","n":1}'


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_each_is_counted_once_whatever_fails(jobs: Jobs, policy: str) -> None:
    for number in range(4):
        feed(jobs, "events", GOOD, f'{{"k":"b","n":"{number}"}}', f"{number}{{", GOOD)
    report = run(jobs, policy, 2, 5)
    assert report.attempts == 3
    assert jobs.out() == counted("a" * 8)
    assert [epoch.records for epoch in report.epochs][-1] == 2
    assert counts(jobs) == {"events": 8}
    texts = [f'{{"k":"b","n":"{n}"}}' for n in range(4)] + [f"{n}{{" for n in range(4)]
    assert jobs.out("malformed") == (sorted(texts, key=repr) if policy == "dead_letter" else [])


def test_a_job_that_is_to_have_none_ends_and_goes_on_when_that_is_mended(jobs: Jobs) -> None:
    feed(jobs, "events", GOOD)
    run(jobs, None)  # to its end, so there is a checkpoint however soon the next run fails
    bad = feed(jobs, "events", GOOD, '{"n": 3, "k": "' + "secret" * 100, GOOD)
    with pytest.raises(MalformedRecordError) as failed:
        run(jobs, None)
    cause = failed.value
    assert str(cause).startswith(
        f'source \'events\': a record does not match its schema: {bad}: \'{{"n": 3, "k": "secret'
    )
    assert 'on_malformed="skip"' in str(cause)
    assert not {"py4j", "concurrent", "pyspark"} & set(error_text(cause).split("/"))
    assert len(str(cause)) < 600 + len(str(bad))
    assert not [event for event in jobs.events() if isinstance(event, Restarting)]
    assert counts(jobs) == {}
    bad.write_text(f"{GOOD}\n")
    run(jobs, None)
    assert jobs.out() == counted("aa")


def test_the_policy_may_change_and_the_count_goes_on(jobs: Jobs) -> None:
    feed(jobs, "events", GOOD, "{", "{")
    run(jobs, "skip")
    assert counts(jobs) == {"events": 2}
    feed(jobs, "events", GOOD, "[")
    with pytest.raises(MalformedRecordError, match="does not match its schema"):
        run(jobs, "fail")
    assert counts(jobs) == {"events": 2}
    run(jobs, "dead_letter")
    assert counts(jobs) == {"events": 3}
    feed(jobs, "events", GOOD)
    run(jobs, None)
    assert counts(jobs) == {"events": 3}
    assert jobs.out("malformed") == ["["]
    assert jobs.out() == counted("aaa")


def test_with_event_time(jobs: Jobs) -> None:
    """Malformed records have no time, and those behind them come in order."""
    feed(jobs, "events", '{"k":"a","n":1}', "{", '{"k":"b","n":5}', "}", '{"k":"c","n":2}')
    env, times, seen = jobs.env(), CollectSink(), CollectSink()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    events = env.from_files(
        jobs.input("events"), "json", "k string, n bigint", "events", on_malformed="dead_letter"
    ).assign_timestamps_and_watermarks(strategy)
    events.uid("time").dead_letters().sink_to(seen).uid("malformed")
    events.sink_to(times).uid("out")
    env.execute("job", bounded=True)
    assert [row.k for row in times.results] == ["a", "b", "c"]
    assert [row.text for row in seen.results] == ["{", "}"]
    assert counts(jobs) == {"events": 2}


def test_a_record_is_a_line(jobs: Jobs) -> None:
    """Arrow would take these for one record."""
    feed(jobs, "events", '{"k":', '"a"}')
    run(jobs, "skip")
    assert (jobs.out(), counts(jobs)) == ([], {"events": 2})


@pytest.mark.parametrize("point", ["before-manifest", "after-manifest", "before-state-file"])
def test_a_killed_driver_counts_each_once_and_a_savepoint_has_the_count(
    tmp_path: Path, point: str
) -> None:
    files = tmp_path / "files"
    files.mkdir()

    def program(env: StreamExecutionEnvironment) -> None:
        # Read first in every epoch: files that were there before an element are in it.
        source(env, "tick", int).sink_to(CollectSink()).uid("ticks")
        read = env.from_files(files, "json", "k string", "files", on_malformed="dead_letter")
        read.dead_letters().sink_to(CollectSink()).uid("malformed")
        read.key_by("k").process(Count(), COUNTED).uid("count").sink_to(CollectSink()).uid("out")

    def give(job: JobHarness, number: int) -> None:
        hidden = files / f".{number}.json"
        hidden.write_text(f'{{"k":"a"}}\n{{{number}\n')
        hidden.rename(files / f"{number}.json")
        job.push("tick", number)

    def malformed(job: JobHarness) -> int:
        manifest = CheckpointLog(job._job_directory().storage).latest()
        assert manifest is not None
        return manifest.sources["files"].malformed

    with JobHarness(program, tmp_path / "job", parallelism=1) as job:
        give(job, 1)
        assert malformed(job) == 1
        job.crash_at(point)
        with pytest.raises(DriverCrash):
            give(job, 2)
        job.start()
        give(job, 3)
        assert malformed(job) == 3
        assert [row.text for row in job.output("malformed")] == ["{1", "{2", "{3"]
        assert [row.n for row in job.output("out")] == [1, 2, 3]
        saved = job.savepoint()
        assert load_snapshot(str(saved), {}).document.sources["files"].malformed == 3
        job.stop()
        job.start(start_from=saved)
        give(job, 4)
        assert malformed(job) == 4
