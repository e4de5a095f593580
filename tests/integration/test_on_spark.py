"""What only Spark does: its sources, its jobs, its workers and what becomes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine import test_levels as levels
from engine import test_malformed as malformed
from engine.test_restarts import ALL, FIXED, count, fed
from job_support import COUNTED, Count, Jobs, Marks, counted, eventually
from locking_sink import LockingSink
from turnback import CollectSink, WatermarkStrategy
from turnback.driver.attempt import Attempt
from turnback.errors import IncompatibleStateError, JobFailedError, PlanError
from turnback.job.history import FilesChanged, JobEnded
from turnback.spark import worker as commands
from turnback.storage.local import LocalStorage

__all__ = ["fed"]

SCHEMA = "k string"


def test_any_streaming_dataframe(jobs: Jobs) -> None:
    """With stateless steps of Spark's own, a literal column and a filter."""
    directory = jobs.input("events")
    jobs.feed("events", {"k": "a", "n": 1}, {"k": "b", "n": 2})

    def run() -> None:
        frame = jobs.spark.readStream.schema("k string, n bigint").json(str(directory))
        frame = frame.where("n is not null").selectExpr("upper(k) as k", "n * 10 as `n.ten`")
        env = jobs.env()
        stream = env.from_dataframe(frame, uid="frame")
        stream.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
        stream.map(lambda row: row["n.ten"], int).sink_to(jobs.sink("tens")).uid("tens")
        env.execute("job", bounded=True)

    run()
    jobs.feed("events", {"k": "a", "n": 3}, {"k": "x"})
    run()
    assert jobs.out() == counted("ABA")
    assert jobs.out("tens") == [10, 20, 30]


def test_a_path_is_one_of_the_machine_also_where_hdfs_is_the_default(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    single = jobs.directory / "single %41.json"
    single.write_text('{"k": "b"}')
    jobs.spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:9")  # where nobody answers
    try:
        env = jobs.env()
        events = jobs.files(env, "events", SCHEMA)
        both = events.union(env.from_files(single, "json", SCHEMA, uid="single"))
        both.map(lambda row: row.k, str).sink_to(jobs.sink()).uid("out")
        env.execute("job", bounded=True)
    finally:
        jobs.spark.conf.unset("fs.defaultFS")
    assert jobs.out() == ["a", "b"]


def copy_over(file: Path) -> None:
    """Replace a file by a larger one of the same time, as `cp -p` and `rsync -a` may."""
    found = file.stat()
    new = file.with_name(f".{file.name}")
    new.write_text(file.read_text() * 2)
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
    new.rename(file)


@pytest.mark.parametrize("name", ["plain.json", "odd %41 ä name.json"])
def test_files_are_read_whatever_their_age_and_told_if_they_are_changed(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("turnback.driver.source_monitor._PAUSE_S", 0.05)
    directory = jobs.input("events")
    day = 24 * 3600

    def put(name: str, key: str, age_s: float) -> None:
        file = directory / f".{name}"
        file.write_text(json.dumps({"k": key}) + "\n")
        os.utime(file, (time.time() - age_s, time.time() - age_s))
        file.rename(directory / name)

    def changed() -> list[Any]:
        return [event for event in jobs.events() if isinstance(event, FilesChanged)]

    def run() -> Any:
        env = jobs.env()
        events = env.from_files(directory, "json", SCHEMA, "events")
        events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
        return jobs.start(env)

    client = run()
    put("new.json", "a", 0)
    eventually(lambda: jobs.out() == counted("a"))
    put(name, "a", 8 * day)
    eventually(lambda: jobs.out() == counted("aa"))
    client.cancel()
    client.result(60)
    client = run()
    put("oldest.json", "a", 1000 * day)
    eventually(lambda: jobs.out() == counted("aaa"))
    assert changed() == []
    put(name, "late", day)
    eventually(changed)
    told = FilesChanged("events", 1, (str(directory / name),))
    assert changed() == [told]
    copy_over(directory / "oldest.json")
    eventually(lambda: len(changed()) == 2)
    assert changed() == [told, FilesChanged("events", 1, (str(directory / "oldest.json"),))]
    client.cancel()
    client.result(60)
    assert jobs.out() == counted("aaa")


@pytest.mark.parametrize(
    "story",
    [
        malformed.test_what_is_malformed,
        malformed.test_a_job_that_is_to_have_none_ends_and_goes_on_when_that_is_mended,
        malformed.test_the_policy_may_change_and_the_count_goes_on,
        malformed.test_with_event_time,
    ],
)
def test_malformed_records_as_without_spark(jobs: Jobs, story: Any) -> None:
    story(jobs)


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_malformed_records_are_counted_once(jobs: Jobs, policy: str) -> None:
    malformed.test_each_is_counted_once_whatever_fails(jobs, policy)


def test_malformed_lines_are_left_to_spark_if_its_options_say_so(jobs: Jobs) -> None:
    """What is malformed is nothing that a function would read, and yet Spark must look at it."""
    lines = jobs.input("lines")
    (lines / "1.csv").write_text("x,1\ny,many\nz,3\n")

    def names(**options: str) -> list[str]:
        env, sink = jobs.env(), CollectSink()
        read = env.from_files(lines, "csv", "name string, n bigint", "lines", **options)
        read.map(lambda row: row.name, "string").uid("names").sink_to(sink).uid("out")
        width = len(env.plan().sources[0].read.names)  # type: ignore[attr-defined]
        assert width == (2 if "drop" in options["MODE"] else 1)
        env.execute("-".join(["job", *options.values()]), bounded=True)
        return sorted(sink.results)

    assert names(MODE="permissive") == ["x", "y", "z"]
    assert names(MODE="dropMalformed") == ["x", "z"]
    frame = jobs.spark.readStream.schema("name string, _corrupt_record string").json(str(lines))
    stream = jobs.env().from_dataframe(frame, "lines")
    stream.map(lambda row: row.name, "string").uid("names").print().uid("out")
    (source,) = stream._graph.environment.plan().sources
    assert source.read == source.type


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_file_that_cannot_be_read_is_told_with_its_source(jobs: Jobs, format: str) -> None:
    jobs.feed("good", {"k": "a"})
    path = jobs.input("bad") / f"broken file.{format}"
    path.write_text('{"k": ')
    env = jobs.env()
    options = {"mode": "FAILFAST"} if format == "json" else {}
    bad = env.from_files(jobs.input("bad"), format, SCHEMA, uid="bad", **options)
    both = env.from_files(jobs.input("good"), "json", SCHEMA, uid="good").union(bad)
    both.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    with pytest.raises(JobFailedError, match=r"source 'bad': cannot read its file .*/broken file"):
        env.execute("job", bounded=True)


def test_a_source_that_makes_its_own_data(jobs: Jobs) -> None:
    frame = jobs.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    for _ in range(2):
        before = len(jobs.out())
        env = jobs.env(parallelism=1)
        numbers = env.from_dataframe(frame.select("value"), uid="rate")
        numbers.map(lambda row: row.value, int).sink_to(jobs.sink()).uid("out")
        client = jobs.start(env, epoch_interval=20)
        eventually(lambda expected=before + 10: len(jobs.out()) >= expected)
        client.cancel()
        client.result(60)
    assert sorted(jobs.out()) == list(range(len(jobs.out())))


def test_frames_that_cannot_be_sources(jobs: Jobs) -> None:
    spark = jobs.spark
    env = jobs.env()
    with pytest.raises(PlanError, match=r"static; use spark.readStream instead of spark.read"):
        env.from_dataframe(spark.range(3))
    rate = spark.readStream.format("rate").load()
    with pytest.raises(PlanError, match="more than one column named value"):
        env.from_dataframe(rate.selectExpr("value", "value as VALUE"))
    env.from_dataframe(rate.dropDuplicates(["value"]), uid="rate").sink_to(CollectSink())
    with pytest.raises(PlanError, match=r"source 'rate'.*Spark's own state .*key_by"):
        env.execute("job", bounded=True)


def test_frames_whose_order_nobody_knows(jobs: Jobs) -> None:
    files = jobs.spark.readStream.schema("k string, at bigint").json(str(jobs.input("events")))
    rate = jobs.spark.readStream.format("rate").load()
    by_column = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner
    known = {"files": files, "rows": files.where("at > 0").selectExpr("explode(array(at)) AS at")}
    unknown = {"shuffled": files.repartition(2), "rate": rate.selectExpr("value AS at")}
    for uid, frame in (known | unknown).items():
        env = jobs.env()
        stamped = env.from_dataframe(frame, uid).assign_timestamps_and_watermarks(by_column("at"))
        stamped.uid("time").sink_to(CollectSink()).uid("out")
        warnings = env.plan().warnings
        assert len(warnings) == (uid in unknown)
        assert all(f"order of the rows of source '{uid}' is" in text for text in warnings)


def union(jobs: Jobs, *sources: str, **how: Any) -> list[Any]:
    env = jobs.env(interval=3_600_000)
    frames = [jobs.spark.readStream.schema(SCHEMA).json(str(jobs.input(s))) for s in sources]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.union(other)
    sink = CollectSink()
    stream = env.from_dataframe(frame, "events")
    stream.key_by("k").process(Count(), COUNTED).uid("count").sink_to(sink).uid("out")
    env.execute("job", bounded=True, **how)
    return sorted(tuple(row) for row in sink.results)


def test_a_source_with_another_number_of_streams_is_refused(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"}, {"k": "a"})
    jobs.feed("more", {"k": "b"})
    assert union(jobs, "events") == counted("aa")
    with pytest.raises(IncompatibleStateError, match="reads 2 streams, but 1 in chk-"):
        union(jobs, "events", "more")
    assert union(jobs, "events") == []
    again = union(jobs, "events", "more", allow_non_restored_state=["events"])
    assert again == [("a", 3), ("a", 4), ("b", 1)]


def spark_jobs(jobs: Jobs) -> int:
    """How many jobs this Spark application has run so far."""
    return int(jobs.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def test_commands_of_many_tasks_go_through_files(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each partition: a task that read that of another one would begin to count anew."""
    monkeypatch.setattr(commands, "LARGE", 0)
    monkeypatch.setattr(commands, "_PART", 1)
    written: list[str] = []
    put = LocalStorage.put

    def noting(storage: LocalStorage, path: str, data: bytes) -> None:
        written.append(path)
        put(storage, path, data)

    monkeypatch.setattr(LocalStorage, "put", noting)
    for _ in range(3):
        jobs.feed("events", *({"k": key} for key in "abcdefgh"))
    env = jobs.env(parallelism=3)
    events = jobs.files(env, "events", SCHEMA)
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    env.execute("job", bounded=True)
    assert jobs.out() == counted("abcdefgh" * 3)
    orders = [path for path in written if "/order-" in path]
    assert {path.rpartition("-")[2] for path in orders} == {"0", "1", "2"}
    assert not list(jobs.root.rglob("order-*"))


def test_one_spark_job_per_epoch(jobs: Jobs) -> None:
    assert jobs.env().engine, "which lets Spark start its workers"
    eventually(lambda: "turnback-workers" not in {t.name for t in threading.enumerate()})
    before = spark_jobs(jobs)
    levels.test_one_call_per_element(jobs)
    assert spark_jobs(jobs) - before == 3


class Dies(Count):
    """Takes its whole worker process with it, once."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.k == "b" and self.marks.first("died"):
            os._exit(1)
        yield from super().process_element(value, ctx)


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_worker_that_dies(fed: Jobs, attempts: int) -> None:
    """Spark's own failures count as failures too, and their stack traces stay out."""
    env = fed.env(**FIXED, **{"restart-strategy.fixed-delay.attempts": attempts})
    events = fed.files(env, "events", "k string")
    events.key_by("k").process(Dies(fed.marks), COUNTED).uid("count").sink_to(fed.sink()).uid("out")
    if attempts:
        assert env.execute("job", bounded=True).attempts == 2
        assert fed.out() == ALL
        return
    with pytest.raises(JobFailedError, match="Python worker exited unexpectedly") as failure:
        env.execute("job", bounded=True)
    text = str(failure.value)
    assert "\tat " not in text
    assert len(text.splitlines()) <= 12
    assert fed.out() == []


def test_cancelled_in_the_middle_of_an_epoch(fed: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at once and quietly: Spark prints a thousand lines if the stopped batch raises."""
    marks, on_input = fed.marks, Attempt._on_input
    raised: list[Exception] = []

    def watched(self: Attempt, input: Any) -> None:
        try:
            on_input(self, input)
        except Exception as e:
            raised.append(e)
            raise

    def slow(row: Any) -> Any:
        marks.add("slow")
        time.sleep(600)

    monkeypatch.setattr(Attempt, "_on_input", watched)
    env = fed.env()
    fed.files(env, "events", "k string").map(slow, "k string").sink_to(fed.sink()).uid("out")
    client = fed.start(env)
    eventually(lambda: marks.lines("slow"))
    client.cancel()
    assert not client.result(60).epochs
    assert fed.events()[-1] == JobEnded("CANCELED")
    assert raised == []
    count(fed, fed.env())
    assert fed.out() == ALL


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from pyspark import cloudpickle
import job_support, locking_sink
from turnback.spark.session import spark_session
for module in (job_support, locking_sink):
    cloudpickle.register_pickle_by_value(module)
here = Path(sys.argv[1])
spark = spark_session("local[2,3]", spark__sql__shuffle__partitions="2")
jobs = job_support.Jobs(here, spark)
sink = locking_sink.LockingSink(here / "db", patience_s=0, killed=here / "kill")
env = jobs.env(interval=600_000)
stream = jobs.files(env, "events", "k string")
counts = stream.key_by("k").process(job_support.Count(), job_support.COUNTED).uid("count")
counts.sink_to(sink).uid("db")
env.execute("job")
"""


def test_what_a_task_prepared_before_its_worker_died_goes_while_the_job_runs(
    jobs: Jobs, tmp_path: Path
) -> None:
    sink = LockingSink(tmp_path / "db")
    (tmp_path / "kill").touch()
    jobs.feed("events", {"k": "a"})
    log = tmp_path / "log"
    with log.open("wb") as out:
        driver = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(Path(__file__).parents[1])],
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + 120
        epoch = None
        while epoch != 1:
            assert driver.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
            epoch = _epoch(tmp_path / "jobs" / "job" / "status.json")
        # The epoch waits for its checkpoint, in the second try of its task; the first is gone.
        assert not (tmp_path / "kill").exists()
        (left,) = sink.prepared()
        assert left.startswith("1-1-")
        assert json.loads((tmp_path / "db" / "prepared" / left).read_text()) == [["a", 1]]
    finally:
        driver.kill()
        driver.wait()


def _epoch(status: Path) -> int | None:
    if not status.exists():
        return None
    text = status.read_text()
    return json.loads(text[text.index("{") :]).get("epoch")
