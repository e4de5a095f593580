"""Timers of real jobs: they fire without input, survive crashes and rescaling, and end with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from job_support import Jobs, eventually
from local_engine import LocalEngine as EpochEngine
from local_engine import collected, environment
from local_engine import source as local_source
from turnback import (
    CollectSink,
    Duration,
    KeyedProcessFunction,
    Savepoint,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.errors import CheckpointError, JobFailedError, PlanError
from turnback.functions import ProcessWindowFunction
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source
from turnback.windows import ContinuousEventTimeTrigger, GlobalWindows

SCHEMA = "k string, at bigint"


class Later(KeyedProcessFunction):
    """Tells the key some milliseconds later, by the clock."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        assert ctx.time_domain().name == "PROCESSING_TIME"
        assert ctx.timer_service().current_processing_time() >= timestamp
        yield ctx.get_current_key(), timestamp


class AtEventTime(KeyedProcessFunction):
    """Tells the key ten milliseconds of event time later."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        assert ctx.time_domain().name == "EVENT_TIME"
        yield ctx.get_current_key(), timestamp


def by_the_clock(env: StreamExecutionEnvironment) -> None:
    keyed = source(env, "s", SCHEMA).key_by("k")
    keyed.process(Later(), SCHEMA).uid("later").sink_to(DiscardSink()).uid("out")


def by_event_time(env: StreamExecutionEnvironment) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy).uid("time")
    later = stamped.key_by("k").process(AtEventTime(), SCHEMA).uid("later")
    later.sink_to(DiscardSink()).uid("out")


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it has not happened for 30 s"
        time.sleep(0.02)


def output(job: JobHarness) -> list[Any]:
    job.checkpoint()
    return sorted(map(tuple, job.output("out")))


def test_a_timer_by_the_clock_fires_without_input(tmp_path: Path) -> None:
    with JobHarness(by_the_clock, tmp_path) as job:
        job.push("s", ("a", 300), ("b", 600_000))
        wait_for(lambda: output(job))
        assert [k for k, _ in output(job)] == ["a"]
        assert len(job.state("later", "timers.processing")) == 1
        epochs = len(job.report.epochs)
        time.sleep(0.5)
        assert len(job.report.epochs) == epochs, "what waits causes no epochs"


def test_a_paused_job_can_be_stopped_while_a_timer_is_due(tmp_path: Path) -> None:
    with JobHarness(by_the_clock, tmp_path) as job:
        job.push("s", ("a", 200))
        attempt = job._running().client._runner.attempt
        assert attempt is not None
        attempt.pause()
        time.sleep(0.5)
        job.close()
        attempt.resume()
        assert job.output("out") == []


def test_an_overdue_timer_fires_after_a_restart(tmp_path: Path) -> None:
    with JobHarness(by_the_clock, tmp_path) as job:
        job.push("s", ("a", 700))
        job.crash()
        time.sleep(0.8)
        assert job.output("out") == []
        job.start(parallelism=3)
        wait_for(lambda: output(job))
        assert [k for k, _ in output(job)] == ["a"]


@pytest.mark.parametrize("before", [1, 2, 3, 8])
@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_event_timers_after_a_rescale(tmp_path: Path, before: int, after: int) -> None:
    keys = [f"k{i}" for i in range(40)]
    with JobHarness(by_event_time, tmp_path, parallelism=before) as job:
        job.push("s", *((key, i) for i, key in enumerate(keys)))
        savepoint = job.savepoint()
        job.close()
        job.start(parallelism=after, start_from=savepoint)
        job.push("s", ("last", 2_000))
        assert output(job) == sorted((key, i + 10) for i, key in enumerate(keys))


def test_timers_are_a_table_in_savepoints(tmp_path: Path) -> None:
    with JobHarness(by_event_time, tmp_path) as job:
        job.push("s", ("a", 1), ("a", 2), ("b", 3))
        savepoint = job.savepoint()
    files = [path for path in savepoint.rglob("*.parquet") if "timers.event" in str(path)]
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert sorted((row["key"], row["time"]) for row in rows) == [("a", 11), ("a", 12), ("b", 13)]


def test_watermarks_are_in_the_status_and_in_savepoints(tmp_path: Path) -> None:
    with JobHarness(by_event_time, tmp_path) as job:
        job.push("s", ("a", 1), ("b", 30))
        saved = Savepoint.load(job.savepoint())
    assert saved._snapshot.document.watermarks["later"] == 29


def test_event_time_ends_with_a_drain(tmp_path: Path) -> None:
    with JobHarness(by_event_time, tmp_path) as job:
        job.push("s", ("a", 1), ("b", 5))
        assert output(job) == []
        client = job._running().client
        client.stop_with_savepoint(True, str(tmp_path / "drained")).result()
    assert sorted(map(tuple, job.output("out"))) == [("a", 11), ("b", 15)]
    assert Savepoint.load(tmp_path / "drained").drained


def test_a_drain_that_cannot_be_saved_leaves_event_time_alone(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").write_text("of somebody else")
    with JobHarness(by_event_time, tmp_path) as job:
        job.push("s", ("a", 1))
        with pytest.raises(CheckpointError, match="not empty"):
            job._running().client.stop_with_savepoint(True, str(taken)).result()
        assert output(job) == []
        job.push("s", ("b", 50))
        assert output(job) == [("a", 11)]


def test_a_user_error_in_on_timer_names_the_timer(tmp_path: Path) -> None:
    class Fails(AtEventTime):
        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            raise ValueError("no alarm today")

    def program(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy)
        stamped.key_by("k").process(Fails(), SCHEMA).uid("op").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job, pytest.raises(JobFailedError) as failed:
        job.push("s", ("a", 1), ("b", 50))
    text = str(failed.value.__cause__ or failed.value)
    assert "no alarm today" in text
    assert "timer: 11" in text


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (lambda: WatermarkStrategy.no_watermarks(), "the watermark strategy has no timestamps"),
        (
            lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner("when"),
            r"no column 'when'; the columns are \['k', 'at'\]",
        ),
        (
            lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner("k"),
            "must contain timestamps, or milliseconds",
        ),
        (
            lambda: WatermarkStrategy.for_bounded_out_of_orderness(5),  # type: ignore[arg-type]
            "must be a Duration",
        ),
        (
            lambda: WatermarkStrategy.for_bounded_out_of_orderness(Duration(-1)),
            "must be 0 ms or more",
        ),
        (
            lambda: WatermarkStrategy.no_watermarks().with_idleness(Duration(0)),
            "must be 1 ms or more",
        ),
        (
            lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda v: 1),  # type: ignore[arg-type]
            "takes a TimestampAssigner or the name of a column",
        ),
        (lambda: "at", "takes a WatermarkStrategy, got str"),
    ],
)
def test_strategies_that_cannot_be_used(strategy: Any, message: str, tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy()).print()

    with pytest.raises(PlanError, match=message), JobHarness(program, tmp_path):
        pass


def test_an_element_without_a_timestamp_is_refused(tmp_path: Path) -> None:
    with JobHarness(by_event_time, tmp_path) as job, pytest.raises(JobFailedError) as failed:
        job.push("s", ("a", None))
    assert "null in the column at" in str(failed.value.__cause__ or failed.value)


def test_a_source_that_is_idle_is_not_waited_for(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        idle = strategy.with_idleness(Duration.of_millis(500))
        one, two = (
            source(env, uid, SCHEMA).assign_timestamps_and_watermarks(each).uid(f"time-{uid}")
            for uid, each in (("s", strategy), ("quiet", idle))
        )
        later = one.union(two).key_by("k").process(AtEventTime(), SCHEMA).uid("later")
        later.sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("quiet", ("q", 0))
        job.push("s", ("a", 1), ("a", 50))
        wait_for(lambda: output(job))
        assert output(job) == [("a", 11), ("q", 10)]


EVENTS = [
    # In each file elements that are late by the files before it, and by their own file.
    [("a", 1), ("b", 3), ("a", 20), ("a", 8)],
    [("b", 50), ("a", 30), ("b", 12)],
    [("b", 100), ("a", 99), ("a", 60)],
    [("a", 104), ("b", 103)],
]


class Told(KeyedProcessFunction):
    """Tells every element, the watermark at it, and its timer, each with how many came before."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield value.k, "element", ctx.timestamp(), self.count.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), "timer", timestamp, self.count.value()


TOLD = [
    ("a", "element", 1, 1), ("a", "element", 20, 2), ("a", "timer", 11, 2), ("a", "element", 8, 3),
    ("a", "timer", 18, 3), ("a", "timer", 30, 3), ("a", "element", 30, 4), ("a", "timer", 40, 4),
    ("a", "element", 99, 5), ("a", "element", 60, 6), ("a", "timer", 70, 6),
    ("a", "element", 104, 7), ("a", "timer", 109, 7), ("a", "timer", 114, 7),
    ("b", "element", 3, 1), ("b", "timer", 13, 1), ("b", "element", 50, 2), ("b", "element", 12, 3),
    ("b", "timer", 22, 3), ("b", "element", 100, 4), ("b", "timer", 60, 4),
    ("b", "element", 103, 5), ("b", "timer", 110, 5), ("b", "timer", 113, 5),
]  # fmt: skip


@pytest.mark.parametrize("files", [1, 2, None])
def test_files_in_epochs_of_any_size(jobs: Jobs, files: int | None) -> None:
    """However many files an epoch takes, the same elements are late, and timers see the same."""
    for events in EVENTS:
        jobs.feed("a b", *({"k": k, "at": at} for k, at in events))
    env = jobs.env()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5))
    sink = CollectSink()
    stream = env.from_files(
        jobs.input("a b"), "json", SCHEMA, "s", max_files_per_epoch=files
    ).assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
    told = stream.uid("time").key_by("k").process(Told(), "k string, what string, at long, n long")
    told.uid("told").sink_to(sink).uid("out")
    report = env.execute("timers", bounded=True)
    assert len(report.epochs) == {1: 5, 2: 3, None: 2}[files], "the last one ends event time"
    by_key = sorted(map(tuple, sink.results), key=lambda row: row[0])
    assert by_key == TOLD


def test_a_timer_by_the_clock_and_a_drain(jobs: Jobs) -> None:
    """The same on Spark: an epoch without input runs beside the query."""
    jobs.feed("s", {"k": "a", "at": 300}, {"k": "b", "at": 600_000})
    env = jobs.env()
    sink = CollectSink()
    stream = jobs.files(env, "s", SCHEMA)
    stream.key_by("k").process(Later(), SCHEMA).uid("later").sink_to(sink).uid("out")
    client = jobs.start(env)
    eventually(lambda: len(sink.results) == 1)
    client.stop_with_savepoint(True, str(jobs.directory / "drained")).result()
    client.result(60)
    assert [row.k for row in sink.results] == ["a"], "the clock has no end"


class EverySecond(KeyedProcessFunction):
    """Has a timer once a second, from its first element on, and one at the end of time."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value.at + 1000)
        timers.register_event_time_timer(2**63 - 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(timestamp + 1000)
        yield ctx.get_current_key(), timestamp


def every_second(env: StreamExecutionEnvironment) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy).uid("time")
    stamped.key_by("k").process(EverySecond(), SCHEMA).uid("p").sink_to(DiscardSink()).uid("out")


def test_a_timer_that_registers_itself_again_ends_with_event_time(tmp_path: Path) -> None:
    """Those fire that waited, and those that these have registered."""
    with JobHarness(every_second, tmp_path) as job:
        job.push("s", ("a", 0), ("b", 100), ("a", 3000), ("b", 3000))
        assert [at for k, at in output(job) if k == "a"] == [1000, 2000]
        job._running().client.stop_with_savepoint(True, str(tmp_path / "drained")).result()
        told = [tuple(row) for row in job.output("out")]
        assert [at for k, at in told if k == "a"] == [1000, 2000, 3000, 4000, 5000, 2**63 - 1]
        assert [at for k, at in told if k == "b"] == [1100, 2100, 3100, 4000, 4100, 5000, 2**63 - 1]


@pytest.mark.parametrize("at", [-(2**63) + 5, 2**63 - 1, 1_700_000_000_000_000_000])
def test_a_timestamp_that_can_be_none_is_refused_with_its_element(tmp_path: Path, at: int) -> None:
    """One in nanoseconds, for example; sums with it would overflow, and change other results."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10))

    def program(env: StreamExecutionEnvironment) -> None:
        strategy_ = strategy.with_timestamp_assigner("at")
        stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy_).uid("time")
        later = stamped.key_by("k").process(AtEventTime(), SCHEMA).uid("later")
        later.sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("s", ("fine", 10))
        with pytest.raises(
            JobFailedError, match=rf"no timestamp: {at} in the column at of .*'odd'"
        ):
            job.push("s", ("fine", 20), ("odd", at))


class AtOnce(KeyedProcessFunction):
    """Has a timer by the clock that is always due."""

    fired = ValueStateDescriptor("fired", int)

    def process_element(self, value: Any, ctx: Any) -> None:
        self._register(ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        times = (self.fired.value() or 0) + 1
        assert times < 10_000, "the epoch does not end"
        self.fired.update(times)
        self._register(ctx)
        if times <= 3:
            yield ctx.get_current_key(), times

    def _register(self, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time())


def test_a_timer_by_the_clock_that_is_due_again_at_once_lets_epochs_end(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        keyed = source(env, "s", SCHEMA).key_by("k")
        keyed.process(AtOnce(), SCHEMA).uid("at-once").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path, configuration={"restart-strategy.type": "none"}) as job:
        job.push("s", ("a", 0))
        wait_for(lambda: output(job) == [("a", 1), ("a", 2), ("a", 3)])


class Size(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield key, len(elements)


def test_a_trigger_that_fires_again_and_again_ends_with_event_time(tmp_path: Path) -> None:
    """The global window ends with time itself, and its trigger has a timer for that."""
    env = environment(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    stamped = local_source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy).uid("time")
    windows = stamped.key_by("k").window(GlobalWindows.create())
    sizes = windows.trigger(ContinuousEventTimeTrigger.of(Time.milliseconds(10)))
    sink = collected(sizes.process(Size(), SCHEMA).uid("sizes"), "out")
    engine = EpochEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 1), ("a", 25)]})
    engine.epoch({}, ended=True)
    # At 10 and 20; then at 30 and once more after that; and at the end.
    assert [row.at for row in sink.results] == [2] * 5
