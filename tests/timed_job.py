"""A job with all that goes by time: state that expires, timers, windows, and their own state.

`python tests/timed_job.py timed DIRECTORY` takes a savepoint of it, like those in `golden` called
`timed`, with `panes` of windows that are kept in panes, with `joins` of two streams, with `windows`
of windows that keep their elements. Those in `golden` are never made anew: they show that what
older versions wrote can still be read.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from turnback import (
    DataStream,
    Duration,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    max_of,
    sum_of,
)
from turnback.functions import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedCoProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
)
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source
from turnback.windows import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

SCHEMA = "k string, at bigint, n bigint"
OUTPUT = "k string, told string"
CENTURY = StateTtlConfig.new_builder(Time.days(36_500)).build()
YEAR_2100_MS = 4_102_444_800_000
OUTPUTS = ("forgetful", "timers", "tumbling", "sessions", "every-third")


class Sum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + (value if isinstance(value, int) else value.n)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class Forgetful(KeyedProcessFunction):
    """Every kind of state, with a time to live that no test sees the end of."""

    value = ValueStateDescriptor("value", int).enable_time_to_live(CENTURY)
    list = ListStateDescriptor("list", int).enable_time_to_live(CENTURY)
    map = MapStateDescriptor("map", str, int).enable_time_to_live(CENTURY)
    most = ReducingStateDescriptor("most", max, int).enable_time_to_live(CENTURY)
    sum = AggregatingStateDescriptor("sum", Sum(), int).enable_time_to_live(CENTURY)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.value.update((self.value.value() or 0) + 1)
        self.list.add(value.n)
        self.map[f"m{value.n % 2}"] = value.n
        self.most.add(value.n)
        self.sum.add(value.n)
        told = [self.value.value(), self.list.get(), sorted(self.map.items())]
        yield value.k, f"{told} {self.most.get()} {self.sum.get()}"


class Timers(KeyedProcessFunction):
    """Tells what has come until ten milliseconds later; and waits for the year 2100."""

    sum = ValueStateDescriptor("sum", int)

    def process_element(self, value: Any, ctx: Any) -> None:
        self.sum.update((self.sum.value() or 0) + value.n)
        ctx.timer_service().register_event_time_timer(value.at + 10)
        ctx.timer_service().register_processing_time_timer(YEAR_2100_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), f"{timestamp}: {self.sum.value()}"


class Bounds(ProcessWindowFunction):
    """Tells the bounds of a window, what is in it, how often it fired, and how many are gone."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        window = context.window()
        fired = context.window_state().get_state(ValueStateDescriptor("fired", int))
        fired.update((fired.value() or 0) + 1)
        gone = context.global_state().get_state(ValueStateDescriptor("gone", int)).value()
        held = [each.n for each in elements]
        yield key, f"{window.start}-{window.end}: {held} {fired.value()} {gone}"

    def clear(self, context: Any) -> None:
        gone = context.global_state().get_state(ValueStateDescriptor("gone", int))
        gone.update((gone.value() or 0) + 1)


class Labelled(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, f"{context.window().start}-{context.window().end}: {next(iter(elements))}"


def build(env: StreamExecutionEnvironment) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(3))
    timed = (
        source(env, "s", SCHEMA)
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
        .uid("time")
    )
    keyed = timed.key_by("k")
    tumbling = keyed.window(TumblingEventTimeWindows.of(Time(10))).allowed_lateness(Time(15))
    sessions = keyed.window(EventTimeSessionWindows.with_gap(Time(4)))
    longer = keyed.window(EventTimeSessionWindows.with_gap(Time(12)))
    streams = {
        "forgetful": keyed.process(Forgetful(), OUTPUT),
        "timers": keyed.process(Timers(), OUTPUT),
        "tumbling": tumbling.process(Bounds(), OUTPUT),
        "sessions": sessions.aggregate(Sum(), Labelled(), Types.LONG(), OUTPUT),
        "every-third": longer.trigger(CountTrigger.of(3)).process(Bare(), OUTPUT),
    }
    for uid in OUTPUTS:
        streams[uid].uid(uid).sink_to(DiscardSink()).uid(f"{uid}-out")


PANES = ("sliding", "tumbling", "declared")


def build_panes(env: StreamExecutionEnvironment) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(3))
    timed = (
        source(env, "s", SCHEMA)
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
        .uid("time")
    )
    tumbling = timed.key_by("k").window(TumblingEventTimeWindows.of(Time(10)))
    sliding = timed.key_by("k").window(SlidingEventTimeWindows.of(Time(20), Time(10)))
    streams: dict[str, DataStream] = {
        "sliding": sliding.aggregate(Sum(), Labelled(), Types.LONG(), OUTPUT),
        "tumbling": tumbling.aggregate(Sum(), Labelled(), Types.LONG(), OUTPUT),
        "declared": sliding.aggregate(total=sum_of("n"), most=max_of("n")),
    }
    for uid in PANES:
        streams[uid].uid(uid).sink_to(DiscardSink()).uid(f"{uid}-out")


WINDOWS = ("purged", "overlapping", "counted", "with-gaps")


def build_windows(env: StreamExecutionEnvironment) -> None:
    """Windows that keep their elements: some purged, some that have fired and wait to be gone."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(3))
    timed = (
        source(env, "s", SCHEMA)
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
        .uid("time")
    )
    keyed = timed.key_by("k")
    again = PurgingTrigger.of(ContinuousEventTimeTrigger.of(Time(4)))
    purged = keyed.window(TumblingEventTimeWindows.of(Time(30))).trigger(again)
    overlapping = keyed.window(SlidingEventTimeWindows.of(Time(40), Time(20)))
    with_gaps = keyed.window(SlidingEventTimeWindows.of(Time(13), Time(25)))
    streams: dict[str, DataStream] = {
        "purged": purged.allowed_lateness(Time(15)).process(Bounds(), OUTPUT),
        "overlapping": overlapping.allowed_lateness(Time(35)).process(Bounds(), OUTPUT),
        "counted": keyed.count_window(3).process(Bare(), OUTPUT),
        "with-gaps": with_gaps.aggregate(Sum(), Labelled(), Types.LONG(), OUTPUT),
    }
    for uid in WINDOWS:
        streams[uid].uid(uid).sink_to(DiscardSink()).uid(f"{uid}-out")


JOINS = ("pairs", "together", "windowed")


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left.k, f"{left.n} {right.n}"


class Together(KeyedCoProcessFunction):
    """Tells what has come on either side until ten milliseconds later."""

    seen = ListStateDescriptor("seen", str)

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.seen.add(f"+{value.n}")
        ctx.timer_service().register_event_time_timer(value.at + 10)

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.seen.add(f"-{value.n}")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), f"{timestamp}: {' '.join(self.seen.get())}"


def build_joins(env: StreamExecutionEnvironment) -> None:
    """Two streams, of which one is behind, so that elements of the other have to wait for it."""
    events = source(env, "s", SCHEMA)

    def part(uid: str, which: int, bound: int) -> DataStream:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(bound))
        mine = events.filter(lambda row: row.n // 5 % 2 == which).uid(uid)
        strategy = strategy.with_timestamp_assigner("at")
        return mine.assign_timestamps_and_watermarks(strategy).uid(f"{uid}-time")

    left, right = part("left", 0, 3), part("right", 1, 9)
    pairs = left.key_by("k").interval_join(right.key_by("k")).between(Time(-15), Time(25))
    windowed = left.join(right).where("k").equal_to("k")
    in_windows = windowed.window(TumblingEventTimeWindows.of(Time(40)))
    streams: dict[str, DataStream] = {
        "pairs": pairs.process(Pairs(), OUTPUT),
        "together": left.connect(right).key_by("k", "k").process(Together(), OUTPUT),
        "windowed": in_windows.apply(lambda one, other: (one.k, f"{one.n} {other.n}"), OUTPUT),
    }
    for uid in JOINS:
        streams[uid].uid(uid).sink_to(DiscardSink()).uid(f"{uid}-out")


class Bare(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, f"{context.window().start}: {[each.n for each in elements]}"


def elements(numbers: range) -> list[tuple[str, int, int]]:
    """Elements of five keys, a little out of order."""
    return [(f"k/{n % 5}", 2 * n - (n % 3) + 12 * (n % 7 == 0), n) for n in numbers]


def push_first(job: JobHarness) -> None:
    """What comes before the savepoint: 40 elements, in as many pushes as its source counts."""
    for start in range(0, 40, 10):
        job.push("s", *elements(range(start, start + 10)))


PROGRAMS = {
    "timed": (build, OUTPUTS),
    "panes": (build_panes, PANES),
    "joins": (build_joins, JOINS),
    "windows": (build_windows, WINDOWS),
}


def main(name: str, target: Path) -> None:
    program, _ = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as place, JobHarness(program, place) as job:
        push_first(job)
        job.savepoint(target)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())
