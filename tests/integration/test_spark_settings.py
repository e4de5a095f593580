"""Settings of the user's own session: ours do not reach it, and its own do not reach our query."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from job_support import COUNTED, Count, Jobs, Marks, counted, eventually
from turnback import JobClient
from turnback.errors import PlanError
from turnback.spark.idle import THREAD as IDLE_THREAD
from turnback.spark.idle import IdleQuery
from turnback.spark.internals import POLLING, own_session
from turnback.spark.session import _try_restore

EVOLUTION = "spark.sql.streaming.queryEvolution"
LOG_FORMATS = {
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    f"{EVOLUTION}.enableSourceEvolution": "true",
    f"{EVOLUTION}.enableSinkEvolution": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}


def test_idle_sources_are_asked_as_often_as_the_user_says(session: SparkSession) -> None:
    key, before = POLLING[0], session.conf.get(POLLING[0])
    assert own_session(session).conf.get(key) == before == "5ms"
    session.conf.unset(key)
    try:
        assert own_session(session).conf.get(key) == POLLING[1]
    finally:
        session.conf.set(key, before)


def test_settings_are_not_on_the_command_line_of_the_jvm(session: SparkSession) -> None:
    key, value = "spark.hadoop.fs.azure.account.key.shop.net", "hidden-from-ps"
    gateway = session.sparkContext._gateway
    assert gateway is not None
    command = Path(f"/proc/{gateway.proc.pid}/cmdline").read_text()
    assert "SparkSubmit" in command and "-Xmx1g" in command
    assert key not in command and value not in command
    assert session.sparkContext.getConf().get(key) == value
    properties = command.split("--properties-file\0")[1].split("\0")[0]
    assert not Path(properties).exists()


def test_this_spark_behaves_as_jobs_need_it(session: SparkSession) -> None:
    """What a start tries out on builds of Spark that are not known."""
    assert _try_restore(session) is None


@pytest.mark.parametrize(
    "given, zone", [((), "UTC"), (("spark.sql.session.timeZone=Asia/Tokyo",), "Asia/Tokyo")]
)
def test_times_without_a_zone_are_in_utc_also_by_spark_submit(
    tmp_path: Path, java: str, given: tuple[str, ...], zone: str
) -> None:
    """Else a job would read them otherwise in cluster mode than in client mode."""
    script = tmp_path / "zone.py"
    script.write_text(
        "from turnback.spark.session import spark_session\n"
        "print('zone', spark_session().conf.get('spark.sql.session.timeZone'))\n"
    )
    submit = [Path(sys.executable).with_name("spark-submit"), "--master", "local[1]"]
    done = subprocess.run(
        [*submit, *(word for text in given for word in ("--conf", text)), script],
        env={**os.environ, "JDK_JAVA_OPTIONS": java, "TZ": "Europe/Berlin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert f"zone {zone}\n" in done.stdout, done.stderr[-3000:]


class CountInProcess(Count):
    """Counts, and marks the processes in which it does."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.marks.add("pids", str(os.getpid()))
        yield from super().process_element(value, ctx)


def count(jobs: Jobs, env: Any, stream: Any, out: str = "out") -> None:
    counts = stream.key_by("k").process(Count(), COUNTED).uid("count")
    counts.sink_to(jobs.sink(out)).uid("out")


def frame(jobs: Jobs, source: str, name: str | None = None) -> DataFrame:
    reader: Any = jobs.spark.readStream
    if name is not None:
        reader = reader.name(name)
    return reader.schema("k string").option("maxFilesPerTrigger", 1).json(str(jobs.input(source)))


@pytest.fixture
def settings(session: SparkSession) -> Iterator[dict[str, str]]:
    """The session's settings, which are as before when the test ends."""
    before = dict(session.conf.getAll)
    yield before
    for key in set(session.conf.getAll) - set(before):
        session.conf.unset(key)
    for key, value in before.items():
        if session.conf.get(key) != value:
            session.conf.set(key, value)


def test_jobs_that_overlap_leave_the_session_alone(
    jobs: Jobs, session: SparkSession, settings: dict[str, str]
) -> None:
    session.conf.set("fs.file.impl.disable.cache", "false")  # the user's own
    mine = settings | {"fs.file.impl.disable.cache": "false"}
    clients = []
    for name in ("one", "two"):
        jobs.feed(name, {"k": "a"})
        env = jobs.env()
        count(jobs, env, jobs.files(env, name, "k string"), f"out-{name}")
        clients.append(jobs.start(env, name))
    eventually(lambda: jobs.out("out-one") and jobs.out("out-two"))
    assert dict(session.conf.getAll) == mine
    for client in clients:  # the first to start is the first to end
        client.cancel()
        client.result(60)
        assert dict(session.conf.getAll) == mine


def test_formats_chosen_for_other_queries_do_not_matter(
    jobs: Jobs, session: SparkSession, settings: dict[str, str]
) -> None:
    for key, value in LOG_FORMATS.items():
        if not key.endswith("enableSourceEvolution"):  # which asks for names, see below
            session.conf.set(key, value)
    for key in "ab":
        jobs.feed("events", {"k": key})
        env = jobs.env()
        count(jobs, env, jobs.files(env, "events", "k string"))
        assert [e.records for e in env.execute("job", bounded=True).epochs] == [1]
    assert jobs.out() == counted("ab")


def test_named_streams_go_on_where_they_were(
    jobs: Jobs, session: SparkSession, settings: dict[str, str]
) -> None:
    if not hasattr(session.readStream, "name"):
        pytest.skip("streams have names since Spark 4.2")
    for key, value in LOG_FORMATS.items():
        session.conf.set(key, value)
    for key in "ab":
        jobs.feed("one", {"k": key})
        jobs.feed("two", {"k": key})
        env = jobs.env()
        streams = [env.from_dataframe(frame(jobs, s, f"named_{s}"), s) for s in ("two", "one")]
        count(jobs, env, streams[0].union(streams[1]))
        report = env.execute("job", bounded=True)
        assert sum(e.records for e in report.epochs) == 2
    assert jobs.out() == counted("aabb")


def test_a_stream_that_is_read_twice_has_one_list_of_files(jobs: Jobs) -> None:
    """Spark gives it one directory, so that those after it have other numbers than streams."""
    for key in "ab":
        jobs.feed("one", {"k": key})
        jobs.feed("two", {"k": key})
        env = jobs.env()
        one, two = frame(jobs, "one"), frame(jobs, "two")
        streams = [
            env.from_dataframe(f, u) for f, u in ((one, "one"), (one, "again"), (two, "two"))
        ]
        count(jobs, env, streams[0].union(*streams[1:]))
        report = env.execute("job", bounded=True)
        assert sum(e.records for e in report.epochs) == 3
        positions = jobs.checkpoints()[-1].sources
        assert all(position.log for position in positions.values())
    assert jobs.out() == counted("aaabbb")


@pytest.mark.parametrize("how", ["join", "distinct", "limit"])
def test_state_of_sparks_own_is_refused(jobs: Jobs, how: str) -> None:
    jobs.input("one"), jobs.input("two")
    one, two = frame(jobs, "one"), frame(jobs, "two")
    one.createOrReplaceTempView("one")
    frames = {
        "join": one.join(two, "k"),
        "distinct": jobs.spark.sql("SELECT DISTINCT k FROM one"),
        "limit": one.limit(10),
    }
    env = jobs.env()
    count(jobs, env, env.from_dataframe(frames[how], "source"))
    with pytest.raises(PlanError, match=r"'source'.*Spark's own state"):
        env.execute("job", bounded=True)


def test_listeners_of_the_session_hear_of_the_query(jobs: Jobs, session: SparkSession) -> None:
    heard: list[str] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            heard.append("started")

        def onQueryProgress(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            heard.append("ended")

    listener = Listener()
    session.streams.addListener(listener)
    try:
        jobs.feed("events", {"k": "a"})
        env = jobs.env()
        count(jobs, env, jobs.files(env, "events", "k string"))
        env.execute("job", bounded=True)
        eventually(lambda: heard == ["started", "ended"])
    finally:
        session.streams.removeListener(listener)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_state_stays_at_home_when_idle_workers_end(jobs: Jobs, backend: str) -> None:
    """As Spark ends them after a minute without work."""
    jobs.feed("events", *({"k": k} for k in "abcdefgh"))
    env = jobs.env(**{"state.backend.type": backend})
    events = jobs.files(env, "events", "k string")
    counts = events.key_by("k").process(CountInProcess(jobs.marks), COUNTED).uid("count")
    counts.sink_to(jobs.sink()).uid("out")
    client = jobs.start(env)
    for epoch in range(2, 5):
        eventually(lambda: len(jobs.out()) == 8 * (epoch - 1))  # noqa: B023
        eventually(lambda: len(client.report.epochs) == epoch - 1)  # noqa: B023
        workers = set(jobs.marks.lines("pids"))
        for pid in workers:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                assert epoch > 2
        jobs.feed("events", *({"k": k} for k in "abcdefgh"))
    eventually(lambda: len(jobs.out()) == 32)
    assert set(jobs.marks.lines("pids")) > workers
    assert jobs.out() == counted("abcdefgh" * 4)
    eventually(lambda: len(client.report.epochs) == 4)
    # The first epoch leaves no store behind: it begins and ends empty, the rest is in files.
    assert [e.openings for e in client.report.epochs][2:] == [{"caught-up": 2}] * 2
    assert client.report.attempts == 1


@pytest.fixture
def without_polling_delay(session: SparkSession) -> Iterator[None]:
    """The session of these tests has one."""
    before = session.conf.get(POLLING[0])
    assert before is not None
    session.conf.unset(POLLING[0])
    yield
    session.conf.set(POLLING[0], before)


@pytest.mark.usefixtures("without_polling_delay")
def test_an_idle_job_waits_for_files(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    held, hold_back = threading.Event(), IdleQuery._hold_back

    def watched(self: IdleQuery, begun: int) -> None:
        held.set()
        hold_back(self, begun)
        held.clear()

    monkeypatch.setattr(IdleQuery, "_hold_back", watched)
    client = _start_counting(jobs)
    for n in range(1, 4):
        eventually(lambda: len(jobs.out()) == n)  # noqa: B023
        assert held.wait(60)
        if n < 3:
            jobs.feed("events", {"k": "a"})
    client.cancel()
    client.result(60)
    assert jobs.out() == counted("aaa")
    assert IDLE_THREAD not in {thread.name for thread in threading.enumerate()}


def test_a_polling_delay_of_the_users_own_counts(jobs: Jobs) -> None:
    client = _start_counting(jobs)
    eventually(lambda: len(jobs.out()) == 1)
    assert IDLE_THREAD not in {thread.name for thread in threading.enumerate()}
    client.cancel()
    client.result(60)


def _start_counting(jobs: Jobs) -> JobClient:
    jobs.feed("events", {"k": "a"})
    env = jobs.env()
    events = jobs.files(env, "events", "k string")
    counts = events.key_by("k").process(Count(), COUNTED).uid("count")
    counts.sink_to(jobs.sink()).uid("out")
    return jobs.start(env)
