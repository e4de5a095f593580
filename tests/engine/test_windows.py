"""Windows of real jobs: by the clock, by count, with triggers and evictors, rescaled."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from turnback import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DiscardSink,
    Duration,
    EventTimeSessionWindows,
    GlobalWindows,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WatermarkStrategy,
    WindowedStream,
    WindowFunction,
)
from turnback.core.errors import JobFailedError, PlanError
from turnback.testing import JobHarness, source

SCHEMA = "k string, at bigint"
OUTPUT = "k string, start bigint, stop bigint, ats string"
TEN = TumblingEventTimeWindows.of(Time(10))


class Listed(ProcessWindowFunction):
    """The bounds of a window, and the times of its elements."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        window = context.window()
        yield key, window.start, window.end, " ".join(str(each.at) for each in elements)


def windowed(windows: Any, *, stamped: bool = True) -> Any:
    """A program that lists what is in each window."""

    def program(env: StreamExecutionEnvironment) -> None:
        stream = source(env, "s", SCHEMA)
        if stamped:
            strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
            stream = stream.assign_timestamps_and_watermarks(strategy).uid("time")
        results = windows(stream.key_by("k"))
        if isinstance(results, WindowedStream):
            results = results.process(Listed(), OUTPUT)
        results.uid("windows").sink_to(DiscardSink()).uid("out")

    return program


def output(job: JobHarness) -> list[Any]:
    job.checkpoint()
    return [tuple(row) for row in job.output("out")]


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it has not happened for 30 s"
        time.sleep(0.02)


def test_by_the_clock(tmp_path: Path) -> None:
    tumbling = TumblingProcessingTimeWindows.of(Time(300))
    with JobHarness(windowed(lambda s: s.window(tumbling), stamped=False), tmp_path) as job:
        job.push("s", ("a", 1))
        job.push("s", ("b", 2), ("a", 3))
        wait_for(lambda: sum(len(row[3].split()) for row in output(job)) == 3)
        assert all(start % 300 == 0 and end - start == 300 for _, start, end, _ in output(job))


def test_sessions_by_the_clock(tmp_path: Path) -> None:
    sessions = ProcessingTimeSessionWindows.with_gap(Time(400))
    with JobHarness(windowed(lambda s: s.window(sessions), stamped=False), tmp_path) as job:
        job.push("s", ("a", 1))
        job.push("s", ("a", 2))
        wait_for(lambda: output(job))
        assert [row[3] for row in output(job)] == ["1 2"]


def test_count_windows(tmp_path: Path) -> None:
    with JobHarness(windowed(lambda s: s.count_window(2), stamped=False), tmp_path) as job:
        job.push("s", ("a", 1), ("b", 2), ("a", 3))
        job.push("s", ("a", 4), ("a", 5), ("a", 6))
        assert [(row[0], row[3]) for row in output(job)] == [("a", "1 3"), ("a", "4 5")]


def test_sliding_count_windows(tmp_path: Path) -> None:
    with JobHarness(windowed(lambda s: s.count_window(3, 2), stamped=False), tmp_path) as job:
        job.push("s", *(("a", at) for at in range(1, 8)))
        assert [row[3] for row in output(job)] == ["1 2", "2 3 4", "4 5 6"]


def test_a_global_window_fires_by_its_trigger_alone(tmp_path: Path) -> None:
    def every_second(keyed: Any) -> Any:
        return keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2))

    with JobHarness(windowed(every_second), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 2), ("a", 3), ("a", 4))
        assert [row[3] for row in output(job)] == ["1 2", "1 2 3 4"]


def test_triggers_that_purge_and_go_on(tmp_path: Path) -> None:
    trigger = PurgingTrigger.of(ContinuousEventTimeTrigger.of(Time(4)))
    with JobHarness(windowed(lambda s: s.window(TEN).trigger(trigger)), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 3), ("a", 6), ("a", 9))
        job.push("s", ("a", 12))
        assert output(job) == [("a", 0, 10, "1 3 6"), ("a", 0, 10, "9")]
        job.push("s", ("a", 100))
        for name in ("windows", "window.elements", "window.triggers", "window.alarms"):
            left = job.state("windows", name).get("a", {})
            ends = {bounds for entry in left for bounds in (tuple(entry)[:2], tuple(entry)[-2:])}
            assert (0, 10) not in ends, "nothing of it is left"


@pytest.mark.parametrize(
    ("evictor", "seen"), [(CountEvictor.of(2), "5 8"), (TimeEvictor.of(Time(4)), "5 8")]
)
def test_evictors(tmp_path: Path, evictor: Any, seen: str) -> None:
    with JobHarness(windowed(lambda s: s.window(TEN).evictor(evictor)), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 4), ("a", 5), ("a", 8), ("a", 30))
        assert output(job) == [("a", 0, 10, seen)]


class EveryThird(Trigger):
    """A trigger of one's own, with state."""

    def __init__(self) -> None:
        self.seen = ReducingStateDescriptor("seen", lambda a, b: a + b, Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        seen = ctx.get_partitioned_state(self.seen)
        seen.add(1)
        if seen.get() < 3:
            return TriggerResult.CONTINUE
        seen.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(self.seen)


def test_a_trigger_of_ones_own_over_sessions_that_merge(tmp_path: Path) -> None:
    sessions = EventTimeSessionWindows.with_gap(Time(5))
    with JobHarness(windowed(lambda s: s.window(sessions).trigger(EveryThird())), tmp_path) as job:
        job.push("s", ("a", 1))
        job.push("s", ("a", 4))
        job.crash()
        job.start()
        job.push("s", ("a", 7), ("a", 9))
        assert output(job) == [("a", 1, 12, "1 4 7")]


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


@pytest.mark.parametrize(("before", "after"), list(permutations([1, 2, 3, 8], 2)))
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_after_a_rescale(tmp_path: Path, kind: str, before: int, after: int) -> None:
    windows = {
        "tumbling": TEN,
        "sliding": SlidingEventTimeWindows.of(Time(10), Time(5)),
        "session": EventTimeSessionWindows.with_gap(Time(3)),
    }[kind]

    def counted(keyed: Any) -> Any:
        return keyed.window(windows).aggregate(Count(), Bounds(), int, "k string, at bigint, n int")

    keys = [f"k{i}" for i in range(20)]
    with JobHarness(windowed(counted), tmp_path, parallelism=before) as job:
        job.push("s", *((key, 6) for key in keys), *((key, 7) for key in keys))
        savepoint = job.savepoint()
        job.close()
        job.start(parallelism=after, start_from=savepoint)
        job.push("s", *((key, 8) for key in keys))
        job.push("s", ("last", 100))
        got = [row for row in output(job) if row[0] != "last"]
    starts = {"tumbling": [0], "sliding": [0, 5], "session": [6]}[kind]
    assert sorted(got) == sorted((key, start, 3) for key in keys for start in starts)


class Bounds(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterator[Any]:
        (count,) = inputs
        yield key, window.start, count


def test_windows_are_a_table_in_savepoints(tmp_path: Path) -> None:
    def reduced(keyed: Any) -> Any:
        return keyed.window(TEN).reduce(lambda a, b: a if a.at > b.at else b)

    with JobHarness(windowed(reduced), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 7), ("b", 3))
        savepoint = job.savepoint()
    files = [path for path in savepoint.rglob("*.parquet") if path.parent.name == "windows"]
    files = files or [path for path in savepoint.rglob("*.parquet") if "windows" in str(path)]
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    panes = [(row["key"], row["time"], row["value"]) for row in rows]
    assert {
        (key, last, pane["window_start"], pane["value"]["at"]) for key, last, pane in panes
    } == {
        ("a", 9, 0, 7),
        ("b", 9, 0, 3),
    }


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (lambda s: s.window(TumblingEventTimeWindows), "window takes windows such as"),
        (lambda s: s.window(TumblingEventTimeWindows.of(10)), "must be a Duration"),
        (lambda s: s.window(TumblingEventTimeWindows.of(Time(0))), "must be 1 ms or more"),
        (lambda s: s.window(TumblingEventTimeWindows.of(Time(5), Time(5))), "less than 5 ms"),
        (lambda s: s.window(TEN).trigger(CountTrigger), "takes an instance"),
        (lambda s: s.window(TEN).trigger("count"), "trigger takes a Trigger, got str"),
        (lambda s: s.window(TEN).allowed_lateness(-1), "must be 0 ms or more"),
        (lambda s: s.window(TEN).side_output_late_data("late"), "takes an OutputTag"),
        (lambda s: s.window(TEN).process(Listed()), "need output_type"),
        (lambda s: s.window(TEN).aggregate(Count), "takes an AggregateFunction"),
        (
            lambda s: s.window(TEN).evictor(CountEvictor.of(1)).reduce(lambda a, b: a),
            "an evictor needs all elements",
        ),
        (lambda s: s.count_window(0), "whole number above 0"),
        (
            lambda s: (
                s.window(EventTimeSessionWindows.with_gap(Time(5)))
                .trigger(ContinuousEventTimeTrigger.of(Time(5)))
                .process(Listed(), OUTPUT)
            ),
            "cannot be used with windows that merge",
        ),
    ],
)
def test_windows_that_cannot_be(tmp_path: Path, windows: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message), JobHarness(windowed(windows), tmp_path):
        pass


def test_event_time_windows_need_timestamps(tmp_path: Path) -> None:
    job = JobHarness(windowed(lambda s: s.window(TEN), stamped=False), tmp_path)
    with job, pytest.raises(JobFailedError) as failed:
        job.push("s", ("a", 1))
    assert "needs timestamps" in str(failed.value.__cause__ or failed.value)


def test_late_elements_that_nobody_wants_are_dropped(tmp_path: Path) -> None:
    late = OutputTag("late", SCHEMA)

    def windows(keyed: Any) -> Any:
        return keyed.window(TEN).side_output_late_data(late).process(Listed(), OUTPUT)

    with JobHarness(windowed(windows), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 30), ("a", 2), ("a", 60))
        assert output(job) == [("a", 0, 10, "1"), ("a", 30, 40, "30")]


class ForgetsToReturn(AggregateFunction):
    """What PyFlink never calls for sliding windows is easily left empty."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> Any:
        return None


@pytest.mark.parametrize(
    "windows",
    [SlidingEventTimeWindows.of(Time(10), Time(5)), EventTimeSessionWindows.with_gap(Time(10))],
    ids=["sliding", "session"],
)
def test_a_merge_that_returns_nothing_is_refused(tmp_path: Path, windows: Any) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        by_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(50))
        stream = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(
            by_time.with_timestamp_assigner("at")
        )
        counted = stream.uid("times").key_by("k").window(windows)
        counts = counted.aggregate(ForgetsToReturn(), accumulator_type=int, output_type=int)
        counts.uid("counts").sink_to(DiscardSink()).uid("out")

    with (
        JobHarness(program, tmp_path) as job,
        pytest.raises(JobFailedError, match=r"operator 'counts'.*ForgetsToReturn.merge returned"),
    ):
        job.push("s", ("a", 1), ("a", 20), ("a", 6), ("a", 12), ("a", 200))
