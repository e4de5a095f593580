"""Timers against a plain loop: however epochs and tasks are cut, the same comes out.

Every attempt restores what the one before left, with another parallelism and backend.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any_cut import results_however_cut
from local_engine import LocalEngine, collected, environment, source
from tiers import examples
from turnback import (
    CollectSink,
    DataStream,
    Duration,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    TimestampAssigner,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.functions.event_time import MAX_TIME, MIN_TIME

SCHEMA = "k string, at bigint, delay bigint"
OUTPUT = "k string, what string, n bigint, at bigint, mark bigint"
Event = tuple[str, int, int]
Result = tuple[str, str, int, int, int]


class Alarms(KeyedProcessFunction):
    """Counts; sets an alarm after a delay, which sets another one, or takes an alarm back."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        if value.delay >= 0:
            timers.register_event_time_timer(value.at + value.delay)
        else:
            timers.delete_event_time_timer(value.at - value.delay)
        yield value.k, "element", n, ctx.timestamp(), timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        yield ctx.get_current_key(), "timer", self.count.value(), timestamp, ctx.timestamp()
        if timestamp % 3 == 0:
            timers.register_event_time_timer(timestamp + 1)


def expected(events: list[Event], bound: int) -> list[Result]:
    results: list[Result] = []
    counts: dict[str, int] = {}
    timers: set[tuple[int, str]] = set()

    def fire(upto: int) -> None:
        while timers and min(timers)[0] <= upto:
            at, key = min(timers)
            timers.remove((at, key))
            results.append((key, "timer", counts[key], at, at))
            if at % 3 == 0:
                timers.add((at + 1, key))

    mark, greatest = MIN_TIME, MIN_TIME
    for key, at, delay in events:
        if greatest > MIN_TIME:
            mark = greatest - bound - 1
        fire(mark)
        counts[key] = counts.get(key, 0) + 1
        if delay >= 0:
            timers.add((at + delay, key))
        else:
            timers.discard((at - delay, key))
        results.append((key, "element", counts[key], at, mark))
        greatest = max(greatest, at)
    fire(MAX_TIME)
    return results


def by_key(results: list[Any]) -> dict[str, list[Any]]:
    """What each key got, in order; between keys there is none."""
    keys: dict[str, list[Any]] = {}
    for result in results:
        keys.setdefault(result[0], []).append(tuple(result))
    return keys


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value.at  # type: ignore[no-any-return]


def stamped(stream: DataStream, bound: int, by_column: bool) -> DataStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(bound))
    assigner = "at" if by_column else At()
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(assigner))


events_ = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 40), st.integers(-3, 12)),
    max_size=30,
)


@settings(max_examples=examples(40), deadline=None)
@given(events=events_, bound=st.integers(0, 12), by_column=st.booleans(), data=st.data())
def test_however_the_input_is_cut(
    events: list[Event], bound: int, by_column: bool, data: st.DataObject
) -> None:
    def build(env: StreamExecutionEnvironment) -> list[CollectSink]:
        stream = source(env, "s", SCHEMA)
        if data.draw(st.booleans()):
            stream = stream.filter(lambda row: True)
        stream = stamped(stream, bound, by_column).uid("time")
        if data.draw(st.booleans()):
            stream = stream.flat_map(lambda row: [row], SCHEMA)
        return [collected(stream.key_by("k").process(Alarms(), OUTPUT).uid("op"), "out")]

    (results,) = results_however_cut(data, {"s": events}, build)
    assert by_key(results) == by_key(expected(events, bound))


@settings(max_examples=examples(40), deadline=None)
@given(
    first=events_,
    second=events_,
    bounds=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    data=st.data(),
)
def test_two_sources_at_their_own_pace(
    first: list[Event], second: list[Event], bounds: tuple[int, int], data: st.DataObject
) -> None:
    """Elements that are ahead of the other source wait for it."""
    sides = {"x": [(f"x{k}", *e) for k, *e in first], "y": [(f"y{k}", *e) for k, *e in second]}

    def run(cuts: list[tuple[int, int]], root: Path, tasks: int) -> dict[str, list[Any]]:
        env = environment(2).set_max_parallelism(8)
        streams = [
            stamped(source(env, uid, SCHEMA), bound, True).uid(f"time-{uid}")
            for uid, bound in zip(sides, bounds, strict=True)
        ]
        both = streams[0].union(streams[1]).key_by("k").process(Alarms(), OUTPUT).uid("op")
        sink = collected(both, "out")
        engine = LocalEngine(env.plan(), root, source_tasks=tasks)
        at = [0, 0]
        for upto in [*cuts, (len(first), len(second))]:
            ends = [max(a, b) for a, b in zip(at, upto, strict=True)]
            each = zip(sides.items(), at, ends, strict=True)
            engine.epoch({uid: rows[a:b] for (uid, rows), a, b in each})
            at = ends
        engine.epoch({}, ended=True)
        return by_key(sink.results)

    def ends(size: int) -> st.SearchStrategy[list[int]]:
        return st.lists(st.integers(0, size), min_size=3, max_size=3).map(sorted)

    cuts = list(zip(data.draw(ends(len(first))), data.draw(ends(len(second))), strict=True))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole = run([], Path(one), 1)
        assert run(cuts, Path(other), data.draw(st.integers(1, 3))) == whole


def test_a_timer_without_on_timer_is_refused(tmp_path: Path) -> None:
    class Forgetful(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(5)

    env = environment(1)
    keyed = stamped(source(env, "s", SCHEMA), 0, True).key_by("k")
    collected(keyed.process(Forgetful(), OUTPUT).uid("op"), "out")
    with pytest.raises(Exception, match=r"Forgetful has no on_timer"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": [("a", 1, 1)]})
