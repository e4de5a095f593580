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
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from turnback.values.hints import as_type

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
    assert "what map_batches 'batches' gives" in warning
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
    assert "'time' are assigned to what partition" in plan.warnings[0]
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
