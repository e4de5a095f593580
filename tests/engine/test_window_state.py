"""State of windows and of keys over all their windows, in functions and triggers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import add
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from turnback import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.errors import JobFailedError
from turnback.functions import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ProcessWindowFunction,
    ReducingStateDescriptor,
)
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source
from turnback.timing.window_state import keeps_window_state
from turnback.windows import (
    EventTimeSessionWindows,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)

SCHEMA = "k string, at bigint"
OUTPUT = "k string, start bigint, told string"
TEN = TumblingEventTimeWindows.of(Time(10))


class Sum(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> str:
        return f"={accumulator}"

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Everything(ProcessWindowFunction):
    """Tells how often the window has fired, and how many windows of the key are gone."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        mine, all_of_key = context.window_state(), context.global_state()
        size = len(list(elements))
        fired = mine.get_state(ValueStateDescriptor("fired", int))
        fired.update((fired.value() or 0) + 1)
        sizes = mine.get_list_state(ListStateDescriptor("sizes", int))
        sizes.add(size)
        by_size = mine.get_map_state(MapStateDescriptor("by size", int, str))
        by_size[size] = f"n{fired.value()}"
        most = mine.get_reducing_state(ReducingStateDescriptor("most", max, int))
        most.add(size)
        total = mine.get_aggregating_state(AggregatingStateDescriptor("total", Sum(), int))
        total.add(size)
        gone = all_of_key.get_state(ValueStateDescriptor("gone", int)).value()
        told = [fired.value(), list(sizes), by_size.items(), most.get(), total.get(), gone]
        yield key, context.window().start, " ".join(map(str, told))

    def clear(self, context: Any) -> None:
        fired = context.window_state().get_state(ValueStateDescriptor("fired", int)).value()
        gone = context.global_state().get_state(ValueStateDescriptor("gone", int))
        gone.update((gone.value() or 0) + fired)


def program(function: Any, windows: Any = TEN, trigger: Trigger | None = None) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        stream = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy).uid("time")
        windowed = stream.key_by("k").window(windows)
        if windows is TEN:
            windowed = windowed.allowed_lateness(Time(5))
        if trigger is not None:
            windowed = windowed.trigger(trigger)
        made = windowed.process(function, OUTPUT).uid("windows")
        made.sink_to(DiscardSink()).uid("out")

    return build


def output(job: JobHarness) -> list[Any]:
    job.checkpoint()
    return [tuple(row) for row in job.output("out")]


def test_a_window_has_state_of_every_kind_which_goes_with_it(tmp_path: Path) -> None:
    with JobHarness(program(Everything()), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 12))
        job.crash()
        job.start()
        job.push("s", ("a", 2), ("b", 3))
        job.push("s", ("a", 20), ("a", 40))
        job.crash()
        job.start()
        job.push("s", ("a", 52))
        assert output(job) == [
            ("a", 0, "1 [1] [(1, 'n1')] 1 =1 None"),
            ("a", 0, "2 [1, 2] [(1, 'n1'), (2, 'n2')] 2 =3 None"),
            ("b", 0, "1 [1] [(1, 'n1')] 1 =1 None"),
            # The first window of the key is gone, which had fired twice.
            ("a", 10, "1 [1] [(1, 'n1')] 1 =1 2"),
            ("a", 20, "1 [1] [(1, 'n1')] 1 =1 3"),
            ("a", 40, "1 [1] [(1, 'n1')] 1 =1 4"),
        ]
        path = job.savepoint(tmp_path / "sp")
    named = pq.read_table(Path(path) / "state" / "windows" / "window.state").to_pylist()
    assert {(row["start"], row["end"]) for row in named} == {(40, 50)}
    assert "by size" in {row["name"] for row in named}
    kept = pq.read_table(Path(path) / "state" / "windows" / "window.global").to_pylist()
    assert [(row["key"], row["map_key"]) for row in kept] == [("a", "gone"), ("b", "gone")]


class InSessions(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        seen = context.global_state().get_state(ValueStateDescriptor("seen", int))
        seen.update((seen.value() or 0) + 1)
        yield key, context.window().start, str(seen.value())


class StateOfSession(InSessions):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield context.window_state().get_state(ValueStateDescriptor("x", int))


def test_windows_that_merge_have_state_of_the_key_only(tmp_path: Path) -> None:
    sessions = EventTimeSessionWindows.with_gap(Time(5))
    with JobHarness(program(InSessions(), sessions), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 3), ("a", 20), ("a", 40))
        assert output(job) == [("a", 1, "1"), ("a", 20, "2")]
    other = JobHarness(program(StateOfSession(), sessions), tmp_path / "other")
    with other, pytest.raises(JobFailedError, match=r"windows that merge, such as sessions, ca"):
        other.push("s", ("a", 1), ("a", 20))


class Misused(ProcessWindowFunction):
    def __init__(self, call: Any) -> None:
        self.call = call

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        self.call(context)
        yield key, 0, ""

    def clear(self, context: Any) -> None:
        pass


HOUR = StateTtlConfig.new_builder(Time.hours(1)).build()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.window_state().get_state(ListStateDescriptor("x", int)),
            "get_state takes a ValueStateDescriptor, got ListStateDescriptor",
        ),
        (lambda c: c.global_state().get_map_state(5), "get_map_state takes a MapStateDescriptor"),
        (
            lambda c: c.window_state().get_state(
                ValueStateDescriptor("x", int).enable_time_to_live(HOUR)
            ),
            "state 'x' has a time to live, which window state does not support",
        ),
        (
            lambda c: c.window_state().get_state(ValueStateDescriptor("x", int)).update("text"),
            "'text' of class str does not match the type bigint",
        ),
    ],
)
def test_misuse_is_refused(tmp_path: Path, call: Any, message: str) -> None:
    job = JobHarness(program(Misused(call)), tmp_path)
    with job, pytest.raises(JobFailedError, match=message):
        job.push("s", ("a", 1), ("a", 20))


class Listing(Trigger):
    """Fires when its list, map and sum of the window are as the test wants them."""

    def __init__(self) -> None:
        self.list = ListStateDescriptor("list", Types.LONG())
        self.sum = AggregatingStateDescriptor("sum", Sum(), Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.get_partitioned_state(self.list).add(timestamp)
        ctx.get_partitioned_state(self.sum).add(1)
        full = len(ctx.get_partitioned_state(self.list).get()) == 3
        full = full and ctx.get_partitioned_state(self.sum).get() == "=3"
        return TriggerResult.FIRE if full else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(self.list)
        ctx.merge_partitioned_state(self.sum)


class Bounds(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, context.window().start, str(context.window().end)


def test_lists_and_sums_of_triggers_are_merged_with_their_windows(tmp_path: Path) -> None:
    sessions = EventTimeSessionWindows.with_gap(Time(5))
    with JobHarness(program(Bounds(), sessions, Listing()), tmp_path) as job:
        job.push("s", ("a", 1))
        job.push("s", ("b", 2))
        job.crash()
        job.start()
        job.push("s", ("a", 4), ("a", 8))
        assert output(job) == [("a", 1, "13")]


def test_which_functions_keep_state_of_windows() -> None:
    assert keeps_window_state(Everything())
    assert keeps_window_state(StateOfSession())
    assert keeps_window_state(Misused(None))
    assert not keeps_window_state(InSessions())
    assert not keeps_window_state(Bounds())
    assert not keeps_window_state(Listing())


class Summed(ProcessWindowFunction):
    """Gets the sum of a window, and keeps the sum of all windows of the key."""

    def __init__(self, call: Any = None) -> None:
        self.call = call

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        if self.call is not None:
            self.call(context)
        total = context.global_state().get_reducing_state(ReducingStateDescriptor("t", add, int))
        (mine,) = elements
        total.add(int(mine[1:]))
        yield key, context.window().start, f"{mine} {total.get()}"


class Counting(Summed):
    """The same, and how many windows are gone."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        for given in super().process(key, context, elements):
            gone = context.global_state().get_state(ValueStateDescriptor("gone", int)).value()
            yield *given[:2], f"{given[2]} {gone}"

    def clear(self, context: Any) -> None:
        gone = context.global_state().get_state(ValueStateDescriptor("gone", int))
        gone.update((gone.value() or 0) + 1)


class SumOfAts(Sum):
    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.at)


def folded(function: Any) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        stream = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy).uid("time")
        summed = stream.key_by("k").window(TEN).aggregate(SumOfAts(), function, int, OUTPUT)
        summed.uid("windows").sink_to(DiscardSink()).uid("out")

    return build


@pytest.mark.parametrize(
    ("function", "gone"), [(Summed(), ["", ""]), (Counting(), [" None", " 1"])]
)
def test_windows_that_are_folded_have_state_too(
    tmp_path: Path, function: Any, gone: list[str]
) -> None:
    with JobHarness(folded(function), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 4), ("a", 12))
        job.crash()
        job.start()
        job.push("s", ("a", 30))
        assert output(job) == [("a", 0, f"=5 5{gone[0]}"), ("a", 10, f"=12 17{gone[1]}")]


def test_state_of_folded_windows_has_to_be_foreseen(tmp_path: Path) -> None:
    job = JobHarness(folded(Summed(lambda context: context.window_state())), tmp_path)
    with job, pytest.raises(JobFailedError, match=r"override clear\(self, context\) in the Proces"):
        job.push("s", ("a", 1), ("a", 20))
