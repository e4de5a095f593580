"""Timestamps that are assigned behind a shuffle, and those of several sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import (
    CollectSink,
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    Row,
    StreamExecutionEnvironment,
    Time,
    Types,
    WatermarkStrategy,
    count,
)
from turnback.functions.event_time import MAX_TIME
from turnback.values.hints import as_type
from turnback.windows import SlidingEventTimeWindows, TumblingEventTimeWindows

EVENT = "key string, at bigint"
BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
LATE = OutputTag("late", as_type(EVENT))


class Passed(KeyedProcessFunction):
    """Gives what comes, which has no time yet."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() is None
        yield value


def passed(events: DataStream) -> DataStream:
    return events.key_by("at").process(Passed(), EVENT).uid("passed")


def windows(events: DataStream) -> tuple[CollectSink, CollectSink]:
    """The last time in each window of ten, and what came too late."""
    keyed = events.assign_timestamps_and_watermarks(BY_TIME).uid("time").key_by("key")
    window = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    last = window.side_output_late_data(LATE).reduce(lambda a, b: Row(a.key, max(a.at, b.at)))
    late = collected(last.uid("windows").get_side_output(LATE), "late")
    return collected(last, "out"), late


def times(sink: CollectSink) -> list[int]:
    return sorted(row.at for row in sink.results)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return environment(3)


@pytest.mark.parametrize("shuffle", [passed, lambda events: events.rebalance()])
@pytest.mark.parametrize("cut", [3, 2, 1])
def test_what_is_late_does_not_depend_on_epochs(
    env: StreamExecutionEnvironment,
    tmp_path: Path,
    shuffle: Callable[[DataStream], DataStream],
    cut: int,
) -> None:
    events = [("a", 3), ("b", 100), ("a", 7)]
    out, late = windows(shuffle(source(env, "s", EVENT)))
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": events[:cut]})
    engine.epoch({"s": events[cut:]})
    assert (times(out), times(late)) == ([3], [7])
    assert engine.time.watermarks()["time"] == 99
    engine.epoch({}, ended=True)
    assert times(out) == [3, 100]


def test_each_source_of_a_strategy_has_a_watermark_of_its_own(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    out, late = windows(source(env, "one", EVENT).union(source(env, "two", EVENT)))
    plan = env.plan()
    engine = LocalEngine(plan, tmp_path)
    engine.epoch({"one": [("a", 3), ("a", 100)]})
    assert engine.time.watermarks() == {"time#source:one": 99}
    assert times(out) == []
    engine.epoch({"two": [("a", 7), ("a", 30), ("a", 8), ("a", 40)]})
    assert (times(out), times(late)) == ([7, 30], [8])
    marks = engine.time.watermarks()
    assert (marks["time"], marks["time#source:two"], marks["windows"]) == (39, 39, 39)
    again = LocalEngine(plan, tmp_path, attempt=2, epoch=2, watermarks=marks)
    assert again.time.watermarks() == marks


def test_a_silent_source_is_not_waited_for_if_it_may_be_idle(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    both = source(env, "one", EVENT).union(source(env, "two", EVENT))
    strategy = BY_TIME.with_idleness(Time.seconds(1))
    keyed = both.assign_timestamps_and_watermarks(strategy).uid("time").key_by("key")
    window = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    out = collected(window.reduce(lambda a, b: b).uid("windows"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"one": [("a", 3)]})
    engine.clock.advance(2_000)
    engine.epoch({"one": [("a", 100)]})
    assert times(out) == []  # it was idle itself
    engine.epoch({"one": [("a", 110)]})
    assert times(out) == [3, 100]


def test_one_task_gives_them_and_others_go_on(env: StreamExecutionEnvironment) -> None:
    windows(passed(source(env, "s", EVENT)))
    plan = env.plan()
    assert not plan.native  # Python notes where elements come from
    found = {
        op.uid: (level.index, op.parallelism) for level in plan.levels for op in level.operators
    }
    assert found["passed"] == (1, 3)
    assert found["time"] == (2, 1)
    assert found["windows"] == (3, 3)


def test_before_a_shuffle_they_are_given_where_elements_are_read(
    env: StreamExecutionEnvironment,
) -> None:
    stamped = source(env, "s", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid("time")
    sink = collected(stamped.set_parallelism(2), "out")
    (level,) = env.plan().levels
    assert [op.uid for op in level.operators] == ["s", "time", "out"]
    spread = stamped.map(lambda row: row, EVENT).uid("spread").set_parallelism(2)
    spread.sink_to(sink).uid("out2")
    _, second = env.plan().levels
    assert ([op.uid for op in second.operators], second.parallelism) == (["spread", "out2"], 2)


def test_whole_batches_have_no_order_and_that_is_said(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    batches = passed(source(env, "s", EVENT)).map_batches(lambda batch: batch).uid("batches")
    out, late = windows(batches)
    plan = env.plan()
    (warning,) = plan.warnings
    assert "timestamps 'time'" in warning
    assert "the output of map_batches 'batches'" in warning
    engine = LocalEngine(plan, tmp_path)
    engine.epoch({"s": [("a", 3), ("b", 100), ("a", 7)]})
    assert (times(out), times(late)) == ([7], [])  # the epoch began without a watermark
    engine.epoch({"s": [("a", 8)]})
    assert times(late) == [8]


def test_copies_for_all_subtasks_stay_copies(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    stamped = source(env, "s", EVENT).broadcast().assign_timestamps_and_watermarks(BY_TIME)
    out = collected(stamped.uid("time"), "out")
    plan = env.plan()
    assert "'time' are assigned to the output of partition" in plan.warnings[0]
    LocalEngine(plan, tmp_path).epoch({"s": [("a", 3)]})
    assert times(out) == [3, 3, 3]


def test_what_timers_by_the_clock_give_moves_time_from_epoch_to_epoch(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    class Soon(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_processing_time_timer(0)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield Row("a", ctx.get_current_key())

    soon = source(env, "s", EVENT).key_by("at").process(Soon(), EVENT).uid("soon")
    out, late = windows(soon)
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 3), ("a", 100)]})
    assert engine.time.watermarks()["time"] == 99
    engine.epoch({"s": [("a", 7)]})
    assert (times(out), times(late)) == ([3], [7])


class Timers(KeyedProcessFunction):
    """What it gives in the end has the last time there is."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(MAX_TIME)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), 0


def counted(events: DataStream) -> DataStream:
    return events.key_by("key").count_window(1).reduce(lambda a, b: a).uid("counted")


def at_the_end(events: DataStream) -> DataStream:
    return events.key_by("key").process(Timers(), EVENT).uid("timers")


@pytest.mark.parametrize("cut", range(3))
@pytest.mark.parametrize("size", [Time.milliseconds(10), Time.days(1)])
def test_windows_of_what_global_windows_give(
    env: StreamExecutionEnvironment, tmp_path: Path, size: Time, cut: int
) -> None:
    """It comes at the end of time, and has waited for a slower stream."""
    fast = source(env, "fast", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid("fast-time")
    slow = source(env, "slow", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid("slow-time")
    counts = counted(fast)
    both = counts.union(slow).key_by(lambda row: 0, key_type=Types.INT())
    last = both.window(TumblingEventTimeWindows.of(size)).reduce(lambda a, b: max(a, b))
    out = collected(last.uid("windows"), "out")
    declared = counts.key_by("key").window(SlidingEventTimeWindows.of(size, size))
    rows = collected(declared.aggregate(all=count()).uid("declared"), "rows")
    engine = LocalEngine(env.plan(), tmp_path)
    events = [("a", 10), ("a", 70), ("b", 90)]
    engine.epoch({"fast": events[:cut]})
    engine.epoch({"slow": [("s", 40)]})
    engine.epoch({"fast": events[cut:]})
    assert out.results == []
    engine.epoch({}, ended=True)
    assert sorted(map(tuple, out.results)) == [("b", 90), ("s", 40)]
    assert sorted(map(tuple, rows.results)) == [("a", None, None, 2), ("b", None, None, 1)]


def test_what_timers_give_at_the_end_of_time_is_late_for_windows(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    events = source(env, "s", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid("first")
    window = at_the_end(events).key_by("key").window(TumblingEventTimeWindows.of(Time.days(1)))
    plain = window.side_output_late_data(LATE).reduce(lambda a, b: b).uid("windows")
    out = collected(plain, "out")
    late = collected(plain.get_side_output(LATE), "late")
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 3), ("b", 5)]})
    engine.epoch({}, ended=True)
    assert (out.results, sorted(map(tuple, late.results))) == ([], [("a", 0), ("b", 0)])


def test_what_waits_with_the_last_time_there_is_comes_from_older_versions(
    env: StreamExecutionEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = source(env, "fast", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid("time-of-fast")
    slow = source(env, "slow", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid("slow-time")
    both = slow.union(counted(fast)).key_by("key")
    last = both.window(TumblingEventTimeWindows.of(Time(10))).reduce(lambda a, b: max(a, b))
    out = collected(last.uid("windows"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    with monkeypatch.context() as before:
        before.setattr("turnback.worker.ordering.within_reach", lambda time: time)
        engine.epoch({"fast": [("a", 10), ("a", 70)]})
    engine.epoch({"slow": [("s", 60)]})
    engine.epoch({}, ended=True)
    assert sorted(map(tuple, out.results)) == [("a", 70), ("s", 60)]
