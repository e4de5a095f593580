"""What has one watermark comes in one order, whichever way it has gone and however input is cut."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any_cut import Build, Inputs, Results, results_however_cut
from local_engine import LocalEngine, collected, environment, source
from turnback import (
    AsyncDataStream,
    CollectSink,
    DataStream,
    Duration,
    KeyedProcessFunction,
    ListStateDescriptor,
    OutputTag,
    Row,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    sum_of,
)
from turnback.functions import AsyncFunction, KeyedCoProcessFunction, ProcessWindowFunction, list_of
from turnback.values.hints import as_type
from turnback.windows import SlidingEventTimeWindows, TumblingEventTimeWindows

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


class Listing(ProcessWindowFunction):
    """Tells in which order the elements of a window have come."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        order = 0
        for element in elements:
            order = order * 31 + element.n
        yield Row(key, context.window().end, order % 1_000_003)


def listed(stream: DataStream) -> CollectSink:
    together = stream.key_by(lambda row: 0, key_type=Types.INT())
    kind = "of string, at bigint, seen array<bigint>"
    return collected(together.process(Listed(), output_type=kind).uid("listed"), "out")


def timed(events: DataStream, uid: str = "time") -> DataStream:
    return events.assign_timestamps_and_watermarks(BY_TIME).uid(uid)


def split(events: DataStream) -> list[CollectSink]:
    """A stream that is split and united again."""
    events = timed(events)
    one = events.map(lambda e: Row(e.key, e.at, e.n), output_type=EVENT).uid("one")
    two = events.map(lambda e: Row(e.key, e.at, e.n + 100), output_type=EVENT).uid("two")
    return [listed(one.union(two))]


def through_keys(events: DataStream) -> list[CollectSink]:
    """What timers of many keys give, in one place."""
    return [
        listed(timed(events).key_by("key").process(Numbered(), output_type=SEEN).uid("numbers"))
    ]


def united(events: DataStream) -> list[CollectSink]:
    """What two operators with timers give, and what they were given."""
    events = timed(events)
    one = events.key_by("key").process(Numbered(), output_type=SEEN).uid("by-key")
    two = events.key_by("n").process(Numbered(), output_type=SEEN).uid("by-n")
    same = events.map(lambda e: Row(e.key, 0, e.n), output_type=SEEN).uid("same")
    return [listed(one.union(two, same))]


def waiting(events: DataStream) -> list[CollectSink]:
    """Two strategies: elements wait for the slower one, twice."""
    fast = events.filter(lambda e: e.n % 2 == 0).uid("even")
    slow = events.filter(lambda e: e.n % 2 == 1).uid("odd")
    slow = slow.map(lambda e: Row(e.key, e.at // 2, e.n), output_type=EVENT).uid("slower")
    a = fast.assign_timestamps_and_watermarks(BY_TIME).uid("a")
    b = slow.assign_timestamps_and_watermarks(BY_TIME).uid("b")
    numbers = a.union(b).key_by("key").process(Numbered(), output_type=SEEN).uid("numbers")
    return [listed(numbers)]


def connected(events: DataStream) -> list[CollectSink]:
    """Two inputs of one strategy each."""
    fast = events.filter(lambda e: e.n % 2 == 0).uid("even")
    slow = events.filter(lambda e: e.n % 2 == 1).uid("odd")
    a = fast.assign_timestamps_and_watermarks(BY_TIME).uid("a")
    b = slow.assign_timestamps_and_watermarks(BY_TIME).uid("b")
    pairs = b.key_by("key").connect(a.key_by("key"))
    return [listed(pairs.process(NumberedPairs(), output_type=SEEN).uid("pairs"))]


def windows(events: DataStream) -> list[CollectSink]:
    """Windows of many keys, declared and not."""
    keyed = timed(events).key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    declared = keyed.aggregate(all=list_of("n")).uid("declared")
    first = declared.map(lambda w: Row(w.key, 0, w.all[0]), output_type=SEEN).uid("first")
    reduced = keyed.reduce(lambda a, b: Row(a.key, a.at, a.n * 3 + b.n)).uid("reduced")
    plain = reduced.map(lambda e: Row(e.key, 0, e.n), output_type=SEEN).uid("plain")
    return [listed(first.union(plain))]


def late(events: DataStream, uid: str = "time") -> list[CollectSink]:
    """Sliding windows, some of whose elements come late, and some too late."""
    late = OutputTag("late", as_type(EVENT))
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(12), Time.milliseconds(4))
    keyed = timed(events, uid).key_by("key").window(sliding)
    lists = keyed.allowed_lateness(3).side_output_late_data(late).process(Listing(), SEEN)
    seen = lists.uid("lists").get_side_output(late)
    plain = seen.map(lambda e: Row(e.key, -1, e.n), output_type=SEEN).uid("late")
    return [listed(lists.union(plain))]


def declared(events: DataStream) -> list[CollectSink]:
    """Aggregates that do not wait for anything, in windows that share elements and others."""
    keyed = timed(events).key_by("key")
    outputs = []
    for uid, assigner in [
        ("tumbling", TumblingEventTimeWindows.of(Time.milliseconds(10))),
        ("sliding", SlidingEventTimeWindows.of(Time.milliseconds(12), Time.milliseconds(4))),
    ]:
        counts = keyed.window(assigner).aggregate(all=count(), total=sum_of("n")).uid(uid)
        rows = counts.map(lambda w: Row(w.key, w.all, w.total), output_type=SEEN)
        outputs.append(rows.uid(f"{uid}-rows"))
    return [listed(outputs[0].union(outputs[1]))]


class Passed(KeyedProcessFunction):
    """Gives what comes, without a look at the time."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


def passed(events: DataStream) -> DataStream:
    return events.key_by("n").process(Passed(), output_type=EVENT).uid("passed")


def split_by_levels(events: DataStream) -> list[CollectSink]:
    """One way is longer than the other, so who comes first is up to the shuffle."""
    events = timed(events)
    two = events.map(lambda e: Row(e.key, e.at, e.n + 100), output_type=EVENT).uid("two")
    return [listed(passed(events).union(two))]


def late_behind_state(events: DataStream) -> list[CollectSink]:
    """Timestamps that are assigned behind a shuffle."""
    return late(passed(events))


def late_behind_rebalance(events: DataStream) -> list[CollectSink]:
    return late(events.rebalance())


def declared_behind_state(events: DataStream) -> list[CollectSink]:
    return declared(passed(events))


def late_behind_timers(events: DataStream) -> list[CollectSink]:
    """Other timestamps, for what functions with timers give at their watermarks."""
    numbers = timed(events).key_by("key").process(Numbered(), output_type=SEEN).uid("numbers")
    again = numbers.map(lambda e: Row(e.of, abs(e.n), e.position), output_type=EVENT).uid("again")
    return late(again, "time-again")


def late_behind_two_strategies(events: DataStream) -> list[CollectSink]:
    """The same, where elements wait for a slower strategy."""
    odd = events.filter(lambda e: e.n % 2 == 1).uid("odd")
    slow = odd.map(lambda e: Row(e.key, e.at // 2, e.n), output_type=EVENT).uid("slower")
    a = events.assign_timestamps_and_watermarks(BY_TIME).uid("a")
    b = slow.assign_timestamps_and_watermarks(BY_TIME).uid("b")
    return late(passed(a.union(b)))


def odd_only(event: Any) -> Any:
    if event.n % 2 == 0:
        raise ValueError(event.n)
    return event


def letters(events: DataStream) -> list[CollectSink]:
    """Dead letters beside what they were left out of: each has the time of its element."""
    odd = timed(events).map(odd_only, EVENT).uid("odd").on_error("dead_letter")
    left_out = odd.dead_letters().map(of_letter, EVENT).uid("left-out")
    both = odd.union(left_out)
    numbers = both.key_by("key").process(Numbered(), output_type=SEEN).uid("numbers")
    return [listed(numbers)]


def of_letter(letter: Any) -> Row:
    n = int(re.search(r"n=(\d+)", letter.element)[1])  # type: ignore[index]
    return Row("letters", -1, n)


class Untimed(KeyedProcessFunction):
    """Takes what has no timestamps without a word."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n % 2:
            yield Row(value.key, ctx.timer_service().current_watermark(), value.n)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + value.n % 7)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield Row(ctx.get_current_key(), timestamp, 0)


def beside_batches(events: DataStream) -> list[CollectSink]:
    """Timestamps are the same beside elements that functions over batches have left without."""
    events = timed(events)
    odd = events.filter(lambda e: e.n % 2 == 1).uid("odd")
    even = events.filter(lambda e: e.n % 2 == 0).uid("even").map_batches(lambda b: b).uid("batches")
    untimed = odd.union(even).key_by("key").process(Untimed(), output_type=SEEN).uid("untimed")
    return [listed(untimed)]


class Called(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(0.0001 * (value.at % 3))
        return [value] * (value.at % 3)


def late_behind_calls(events: DataStream) -> list[CollectSink]:
    """Timestamps of what comes from outside, and goes through whole batches."""
    calls = AsyncDataStream.unordered_wait(events, Called(), Duration.of_seconds(60), 10, EVENT)
    return late(calls.uid("calls").map_batches(lambda batch: batch).uid("batches"))


PROGRAMS: list[Callable[[DataStream], list[CollectSink]]] = [
    split,
    split_by_levels,
    through_keys,
    united,
    waiting,
    connected,
    windows,
    late,
    declared,
    late_behind_state,
    late_behind_rebalance,
    declared_behind_state,
    late_behind_timers,
    late_behind_two_strategies,
    letters,
    beside_batches,
    late_behind_calls,
]


def results_in_one(inputs: Inputs, build: Build) -> Results:
    """What each sink gets if all is one epoch and one task."""
    with tempfile.TemporaryDirectory() as root:
        env = environment(1).set_max_parallelism(8)
        sinks = build(env)
        engine = LocalEngine(env.plan(), Path(root), source_tasks=1)
        engine.epoch(inputs)
        engine.epoch({}, ended=True)
        return [list(map(tuple, sink.results)) for sink in sinks]


EVENTS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 40)), min_size=1, max_size=14
).map(lambda pairs: [(key, at, n) for n, (key, at) in enumerate(pairs)])


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@settings(max_examples=5, deadline=None)
@given(data=st.data(), events=EVENTS)
def test_order(
    program: Callable[[DataStream], list[CollectSink]],
    partitions: int,
    data: st.DataObject,
    events: list[Any],
) -> None:
    def build(env: StreamExecutionEnvironment) -> list[CollectSink]:
        return program(source(env, "s", EVENT, partitions))

    inputs: Inputs = {"s": events}
    if partitions:
        inputs = {f"s-{i}": events[i::partitions] for i in range(partitions)}
    assert results_however_cut(data, inputs, build) == results_in_one(inputs, build)


@pytest.mark.parametrize("behind", [False, True], ids=["read", "behind-state"])
@settings(max_examples=5, deadline=None)
@given(data=st.data(), one=EVENTS, two=EVENTS)
def test_several_sources_of_one_strategy(
    behind: bool, data: st.DataObject, one: list[Any], two: list[Any]
) -> None:
    """Each of them has a watermark of its own: nobody knows how they compare."""

    def build(env: StreamExecutionEnvironment) -> list[CollectSink]:
        both = source(env, "one", EVENT).union(source(env, "two", EVENT))
        return late(passed(both) if behind else both)

    inputs: Inputs = {"one": one, "two": two}
    assert results_however_cut(data, inputs, build) == results_in_one(inputs, build)


def test_strategies_before_and_after_a_shuffle(tmp_path: Path) -> None:
    env = environment(2)
    numbers = (
        timed(source(env, "s", EVENT))
        .key_by("key")
        .process(Numbered(), output_type=SEEN)
        .uid("numbers")
    )
    again = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("position")
    listed(numbers.assign_timestamps_and_watermarks(again).uid("again"))
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 100, 0), ("b", 200, 0), ("a", 150, 0)]})
    marks = engine.time.watermarks()
    # The timers of a, at 97 and 147, and that of b, at 197: 195 is not yet there.
    assert (marks["time"], marks["again"]) == (194, 3)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_becomes_of_one_element_stays_in_its_order_on_a_longer_way(
    tmp_path: Path, parallelism: int
) -> None:
    """Past levels in which something else is done: what comes after it has a timer due at once."""
    env = environment(parallelism)
    short = timed(passed(source(env, "other", EVENT)), "other-time")
    events = timed(source(env, "s", EVENT))
    numbers = events.key_by("key").process(Numbered(), output_type=SEEN).uid("numbers")
    further = short.key_by("key").process(Passed(), output_type=EVENT).uid("further")
    other = further.map(lambda e: Row(e.key, 0, e.n), output_type=SEEN).uid("seen")
    sink = listed(numbers.union(other))
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("c", 138, 7), ("c", 103, 7), ("c", 93, 7), ("c", 53, 7)]})
    engine.epoch({}, ended=True)
    everything = [7, 7, -100, 7, -90, 7, -50, -135]
    assert max(sink.results, key=lambda row: len(row.seen)).seen == everything


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_becomes_of_one_element_has_one_order_whether_it_waits_or_not(
    tmp_path: Path, parallelism: int
) -> None:
    """Under several keys, which the state has in an order of its own."""
    seen = []
    for number, first in enumerate(("fast", "slow")):
        env = environment(parallelism)
        fast, slow = (timed(source(env, uid, EVENT), f"{uid}-time") for uid in ("fast", "slow"))
        many = fast.flat_map(
            lambda e: [Row(key, e.at, e.n + i) for i, key in enumerate("edcba")], output_type=EVENT
        )
        both = many.uid("many").union(slow).key_by("key")
        sink = listed(both.process(Numbered(), output_type=SEEN).uid("numbers"))
        engine = LocalEngine(env.plan(), tmp_path / str(number))
        elements = {
            "fast": [("", at, 10 * at) for at in (10, 20, 30)],
            "slow": [("z", at, 10 * at) for at in (12, 50)],
        }
        engine.epoch({first: elements.pop(first)})
        engine.epoch(elements)
        engine.epoch({}, ended=True)
        seen.append(max(sink.results, key=lambda row: len(row.seen)).seen)
    assert seen[0] == seen[1]
