"""A new version of the program changes nothing that it does not mean to change.

Streams come to an operator and go, and watermark strategies get other uids, while elements wait for
slower streams: what comes out is what comes out without that upgrade.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnback import (
    DataStream,
    Duration,
    KeyedProcessFunction,
    Row,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from turnback.functions import KeyedCoProcessFunction, ProcessJoinFunction, ProcessWindowFunction
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source
from turnback.windows import TumblingEventTimeWindows

EVENT = "key string, at bigint, n bigint"
TOLD = "key string, position bigint, what string"
BY_TIME = WatermarkStrategy.for_bounded_out_of_orderness(
    Duration.of_millis(3)
).with_timestamp_assigner("at")

Program = Callable[[StreamExecutionEnvironment], None]
Push = tuple[str, list[tuple[str, int, int]]]
"""A source, and what it is given."""
Told = dict[str, list[tuple[Any, ...]]]


class _Numbering:
    """Numbers all that happens to a key: elements, by their input, and timers."""

    position: Any

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Row]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value.n % 7)
        yield self._next(ctx, f"one {value.n}")

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Row]:
        yield self._next(ctx, f"two {value.n}")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Row]:
        yield self._next(ctx, f"timer {timestamp}")

    def _next(self, ctx: Any, what: str) -> Row:
        self.position.update((self.position.value() or 0) + 1)
        return Row(ctx.get_current_key(), self.position.value(), what)


class Numbered(_Numbering, KeyedProcessFunction):
    position = ValueStateDescriptor("position", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Row]:
        return self.process_element1(value, ctx)


class NumberedPairs(_Numbering, KeyedCoProcessFunction):
    position = ValueStateDescriptor("position", int)


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Row]:
        yield Row(left.key, 0, f"{left.n} and {right.n}")


Shape = Callable[[DataStream, DataStream], DataStream]


def united(a: DataStream, b: DataStream) -> DataStream:
    return a.union(b).key_by("key").process(Numbered(), TOLD)


def connected(a: DataStream, b: DataStream) -> DataStream:
    return a.connect(b).key_by("key", "key").process(NumberedPairs(), TOLD)


def joined(a: DataStream, b: DataStream) -> DataStream:
    pairs = a.key_by("key").interval_join(b.key_by("key"))
    return pairs.between(Time.milliseconds(-6), Time.milliseconds(6)).process(Pairs(), TOLD)


shapes = pytest.mark.parametrize("shape", [united, connected, joined], ids=lambda s: s.__name__)


def program(
    shape: Shape, *, more: bool = False, strategies: tuple[str, str] = ("ta", "tb")
) -> Program:
    """Two streams that come to one operator; with a third one at its first input, if wanted."""

    def build(env: StreamExecutionEnvironment) -> None:
        def timed(uid: str, strategy: str) -> DataStream:
            stream = source(env, uid, EVENT)
            return stream.assign_timestamps_and_watermarks(BY_TIME).uid(strategy)

        first = timed("a", strategies[0])
        if more:
            first = first.union(timed("c", "ta-more"))
        out = shape(first, timed("b", strategies[1])).uid("p")
        out.sink_to(DiscardSink()).uid("out")

    return build


def windows(strategy: str) -> Program:
    def build(env: StreamExecutionEnvironment) -> None:
        events = source(env, "a", EVENT).assign_timestamps_and_watermarks(BY_TIME).uid(strategy)
        tumbling = TumblingEventTimeWindows.of(Time.milliseconds(10))
        counts = events.key_by("key").window(tumbling).aggregate(n=count()).uid("w")
        counts.sink_to(DiscardSink()).uid("out")

    return build


def results(steps: Sequence[Program | Push], **upgrade: Any) -> Told:
    """What comes out for each key if a job is given elements and new versions of its program."""
    first, *others = steps
    assert callable(first)
    with tempfile.TemporaryDirectory() as root, JobHarness(first, Path(root) / "job") as job:
        for step in others:
            if callable(step):
                job.restart(step, **upgrade)
            else:
                job.push(step[0], *step[1], checkpoint=False)
        job._running().client.stop_with_savepoint(True, f"{root}/drained").result()
        told: Told = {}
        for row in job.output("out"):
            told.setdefault(row.key, []).append(tuple(row))
        return told


def pushes(streams: str, least: int, most: int) -> st.SearchStrategy[list[Push]]:
    """Elements of some streams; the keys of a and b are the same, that of c is another one."""

    def push(uid: str) -> st.SearchStrategy[Push]:
        keys = st.just("c") if uid == "c" else st.sampled_from("xy")
        elements = st.tuples(keys, st.integers(least, most), st.integers(0, 99))
        return st.tuples(st.just(uid), st.lists(elements, min_size=1, max_size=5))

    return st.lists(st.sampled_from(streams).flatmap(push), min_size=1, max_size=4)


@shapes
@settings(max_examples=4, deadline=None)
@given(before=pushes("ab", 0, 40), after=pushes("abc", 20, 60))
def test_a_stream_that_is_added_to_an_input(
    shape: Shape, before: list[Push], after: list[Push]
) -> None:
    told = results([program(shape), *before, program(shape, more=True), *after])
    told.pop("c", None)
    others = [push for push in after if push[0] != "c"]
    assert told == results([program(shape), *before, *others])


@shapes
@settings(max_examples=4, deadline=None)
@given(before=pushes("abc", 0, 40), after=pushes("ab", 20, 60))
@example(
    before=[("a", [("x", 0, 0)]), ("b", [("x", 0, 0)])],
    after=[("a", [("x", 20, 0)])],
)
def test_a_stream_that_is_removed(shape: Shape, before: list[Push], after: list[Push]) -> None:
    both = program(shape, more=True)
    told = results([both, *before, program(shape), *after], allow_non_restored_state=True)
    assert told == results([both, *before, *after])


@shapes
@settings(max_examples=4, deadline=None)
@given(before=pushes("ab", 0, 40), after=pushes("ab", 0, 60))
def test_strategies_of_other_names(shape: Shape, before: list[Push], after: list[Push]) -> None:
    named = program(shape, strategies=("ta1", "tb1"))
    told = results([program(shape), *before, named, *after], renames={"ta": "ta1", "tb": "tb1"})
    assert told == results([program(shape), *before, *after])


@settings(max_examples=4, deadline=None)
@given(before=pushes("a", 0, 40), after=pushes("a", 0, 60))
def test_windows_behind_a_strategy_of_another_name(before: list[Push], after: list[Push]) -> None:
    """What is over stays over: what is late is late, and no window fires twice."""
    same = results([windows("time"), *before, *after])
    steps = [windows("time"), *before, windows("clock"), *after]
    assert results(steps, renames={"time": "clock"}) == same
    for of_key in results(steps).values():
        starts = [row[1] for row in of_key]
        assert len(starts) == len(set(starts)), "also if nobody says what it is called now"


ENDS: list[Push] = [("a", [("x", 60, 8)]), ("b", [("x", 60, 9)])]


@shapes
def test_the_order_of_an_added_stream_does_not_depend_on_what_comes_first(shape: Shape) -> None:
    """It begins behind the watermark that the operator has reached, and has that one."""
    before: list[Push] = [("a", [("x", 10, 1)]), ("b", [("x", 10, 2)])]
    more: Push = ("c", [("x", 11, 3), ("x", 30, 4)])
    others: Push = ("a", [("x", 12, 5), ("x", 30, 6)])
    first, then = (
        results([program(shape), *before, program(shape, more=True), *pushed, *ENDS])
        for pushed in ([more, others], [others, more])
    )
    assert first == then


@pytest.mark.parametrize("cut", [1, 2])
def test_what_has_waited_of_a_stream_that_is_removed_comes_first_at_its_watermark(cut: int) -> None:
    names = ("ta", "sb")
    both = program(united, more=True, strategies=names)
    before: list[Push] = [
        ("a", [("x", 10, 1)]),
        ("b", [("x", 10, 2)]),
        ("c", [("x", 20, 3), ("x", 13, 4)]),
    ]
    late: list[tuple[str, int, int]] = [("x", 20, 5), ("x", 21, 6), ("x", 22, 7)]
    after: list[Push] = [("b", [("x", 40, 8)]), ("a", late[:cut]), ("a", late[cut:])]
    steps = [both, *before, program(united, strategies=names), *after, *ENDS]
    told = results(steps, allow_non_restored_state=True)
    order = [row[2] for row in told["x"]]
    assert order.index("one 4") < order.index("one 6")


@shapes
def test_what_has_waited_keeps_its_place_if_its_strategy_is_renamed(shape: Shape) -> None:
    before: list[Push] = [("a", [("x", 10, 1), ("x", 8, 2)])]
    after: list[Push] = [("a", [("x", 9, 3)]), ("b", [("x", 20, 4)])]
    named = program(shape, strategies=("sa", "sb"))
    told = results([program(shape), *before, named, *after], renames={"ta": "sa", "tb": "sb"})
    assert told == results([program(shape), *before, *after])


class Together(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Row]:
        yield Row(key, context.window().end, " ".join(str(each.n) for each in elements))


def folded(a: DataStream, b: DataStream) -> DataStream:
    windows = TumblingEventTimeWindows.of(Time.milliseconds(10))
    return a.union(b).key_by("key").window(windows).reduce(added, Together(), output_type=TOLD)


def added(one: Any, other: Any) -> Row:
    return Row(one.key, one.at, one.n + other.n)


def kept(a: DataStream, b: DataStream) -> DataStream:
    windows = TumblingEventTimeWindows.of(Time.milliseconds(10))
    return a.union(b).key_by("key").window(windows).process(Together(), TOLD)


@pytest.mark.parametrize("shape", [united, connected, joined, folded, kept])
def test_nothing_is_late_if_a_stream_is_removed_that_never_had_anything(shape: Shape) -> None:
    """The others have waited for it from the beginning, so event time begins with them."""
    several = [("x", at, n) for n, at in enumerate((1, 12, 14, 23, 31))]
    before: list[Push] = [("a", several), ("b", several)]
    after: list[Push] = [("a", [("x", 15, 7), ("x", 60, 8)]), ("b", [("x", 60, 9)])]
    both = program(shape, more=True)
    told = results([both, *before, program(shape), *after], allow_non_restored_state=True)
    assert told == results([both, *before, *after])


@pytest.mark.parametrize("gone", ["b", "bc"])
def test_nothing_is_late_if_a_source_is_removed_that_never_had_anything(gone: str) -> None:
    def build(names: str) -> Program:
        def read(env: StreamExecutionEnvironment) -> None:
            first, *others = (source(env, name, EVENT) for name in names)
            events = first.union(*others) if others else first
            events = events.assign_timestamps_and_watermarks(BY_TIME).uid("time")
            windows = TumblingEventTimeWindows.of(Time.milliseconds(10))
            numbers = events.key_by("key").window(windows).process(Together(), TOLD)
            numbers.uid("p").sink_to(DiscardSink()).uid("out")

        return read

    before: list[Push] = [("a", [("x", 1, 1), ("x", 12, 2), ("x", 31, 3)])]
    after: list[Push] = [("a", [("x", 13, 4), ("x", 60, 5)])]
    first, then = build("a" + gone), build("a")
    told = results([first, *before, then, *after], allow_non_restored_state=True)
    assert told == results([first, *before, *after])
