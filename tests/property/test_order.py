"""What has one watermark comes in one order, whichever way it has gone and however input is cut."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any_cut import Build, Results, results_however_cut
from local_engine import LocalEngine, collected, environment, source
from turnback import (
    CollectSink,
    DataStream,
    Duration,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    Row,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    list_of,
)

EVENT = "key string, at bigint, n bigint"
BY_TIME = WatermarkStrategy.for_bounded_out_of_orderness(
    Duration.of_millis(5)
).with_timestamp_assigner("at")
SEEN = "of string, position bigint, n bigint"


class Numbered(KeyedProcessFunction):
    """Gives every element its number, and one more element for every timer."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield self._next(ctx.get_current_key(), value[-1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value[-1] % 7 - 3)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self._next(ctx.get_current_key(), -timestamp)

    def _next(self, key: Any, n: int) -> Row:
        self.count.update((self.count.value() or 0) + 1)
        return Row(str(key), self.count.value(), n)


class NumberedPairs(KeyedCoProcessFunction):
    """The same for two inputs."""

    count = ValueStateDescriptor("count", int)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value[-1] % 7)
        yield self._next(ctx, value[-1])

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield self._next(ctx, 1000 + value[-1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self._next(ctx, -timestamp)

    def _next(self, ctx: Any, n: int) -> Row:
        self.count.update((self.count.value() or 0) + 1)
        return Row(str(ctx.get_current_key()), self.count.value(), n)


class Listed(KeyedProcessFunction):
    """Gives all that has come so far, at every timer: its order counts."""

    seen = ListStateDescriptor("seen", Types.LONG())

    def process_element(self, value: Any, ctx: Any) -> None:
        self.seen.add(value[-1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield Row(str(ctx.get_current_key()), timestamp, [*self.seen])


def listed(stream: DataStream) -> CollectSink:
    together = stream.key_by(lambda row: 0, key_type=Types.INT())
    kind = "of string, at bigint, seen array<bigint>"
    return collected(together.process(Listed(), output_type=kind).uid("listed"), "out")


def timed(env: StreamExecutionEnvironment) -> DataStream:
    return source(env, "s", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid("time")


def split(env: StreamExecutionEnvironment) -> list[CollectSink]:
    """A stream that is split and united again."""
    events = timed(env)
    one = events.map(lambda e: Row(e.key, e.at, e.n), output_type=EVENT).uid("one")
    two = events.map(lambda e: Row(e.key, e.at, e.n + 100), output_type=EVENT).uid("two")
    return [listed(one.union(two))]


def through_keys(env: StreamExecutionEnvironment) -> list[CollectSink]:
    """What timers of many keys give, in one place."""
    return [listed(timed(env).key_by("key").process(Numbered(), output_type=SEEN).uid("numbers"))]


def united(env: StreamExecutionEnvironment) -> list[CollectSink]:
    """What two operators with timers give, and what they were given."""
    events = timed(env)
    one = events.key_by("key").process(Numbered(), output_type=SEEN).uid("by-key")
    two = events.key_by("n").process(Numbered(), output_type=SEEN).uid("by-n")
    same = events.map(lambda e: Row(e.key, 0, e.n), output_type=SEEN).uid("same")
    return [listed(one.union(two, same))]


def waiting(env: StreamExecutionEnvironment) -> list[CollectSink]:
    """Two strategies: elements wait for the slower one, twice."""
    events = source(env, "s", EVENT)
    fast = events.filter(lambda e: e.n % 2 == 0).uid("even")
    slow = events.filter(lambda e: e.n % 2 == 1).uid("odd")
    slow = slow.map(lambda e: Row(e.key, e.at // 2, e.n), output_type=EVENT).uid("slower")
    a = fast.assign_timestamps_and_watermarks(BY_TIME).uid("a")
    b = slow.assign_timestamps_and_watermarks(BY_TIME).uid("b")
    numbers = a.union(b).key_by("key").process(Numbered(), output_type=SEEN).uid("numbers")
    return [listed(numbers)]


def connected(env: StreamExecutionEnvironment) -> list[CollectSink]:
    """Two inputs of one strategy each."""
    events = source(env, "s", EVENT)
    fast = events.filter(lambda e: e.n % 2 == 0).uid("even")
    slow = events.filter(lambda e: e.n % 2 == 1).uid("odd")
    a = fast.assign_timestamps_and_watermarks(BY_TIME).uid("a")
    b = slow.assign_timestamps_and_watermarks(BY_TIME).uid("b")
    pairs = b.key_by("key").connect(a.key_by("key"))
    return [listed(pairs.process(NumberedPairs(), output_type=SEEN).uid("pairs"))]


def windows(env: StreamExecutionEnvironment) -> list[CollectSink]:
    """Windows of many keys, declared and not."""
    keyed = timed(env).key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    declared = keyed.aggregate(all=list_of("n")).uid("declared")
    first = declared.map(lambda w: Row(w.key, 0, w.all[0]), output_type=SEEN).uid("first")
    reduced = keyed.reduce(lambda a, b: Row(a.key, a.at, a.n * 3 + b.n)).uid("reduced")
    plain = reduced.map(lambda e: Row(e.key, 0, e.n), output_type=SEEN).uid("plain")
    return [listed(first.union(plain))]


PROGRAMS: list[Callable[..., list[CollectSink]]] = [
    split,
    through_keys,
    united,
    waiting,
    connected,
    windows,
]


def results_in_one(events: Sequence[Any], build: Build) -> Results:
    """What each sink gets if all is one epoch and one task."""
    with tempfile.TemporaryDirectory() as root:
        env = environment(1).set_max_parallelism(8)
        sinks = build(env)
        engine = LocalEngine(env.plan(), Path(root))
        engine.epoch({"s": events})
        engine.epoch({}, ended=True)
        return [list(map(tuple, sink.results)) for sink in sinks]


EVENTS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 40)), min_size=1, max_size=14
).map(lambda pairs: [(key, at, n) for n, (key, at) in enumerate(pairs)])


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), events=EVENTS)
def test_order(build: Build, data: st.DataObject, events: list[Any]) -> None:
    assert results_however_cut(data, {"s": events}, build) == results_in_one(events, build)


def test_strategies_before_and_after_a_shuffle(tmp_path: Path) -> None:
    env = environment(2)
    numbers = timed(env).key_by("key").process(Numbered(), output_type=SEEN).uid("numbers")
    again = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("position")
    listed(numbers.assign_timestamps_and_watermarks(again).uid("again"))
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 100, 0), ("b", 200, 0), ("a", 150, 0)]})
    marks = engine.time.watermarks()
    # The timers of a, at 97 and 147, and that of b, at 197: 195 is not yet there.
    assert (marks["time"], marks["again"]) == (194, 3)
