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
    Duration,
    OutputTag,
    Row,
    StreamExecutionEnvironment,
    Time,
    Types,
    WatermarkStrategy,
    count,
    sum_of,
)
from turnback.api import WindowedStream
from turnback.errors import JobFailedError, PlanError
from turnback.functions import (
    AggregateFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    WindowFunction,
)
from turnback.sinks import DiscardSink
from turnback.state.list_and_map import MapState
from turnback.testing import JobHarness, source
from turnback.windows import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

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
    sessions = ProcessingTimeSessionWindows.with_gap(Time(2000))
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


def summed(windows: WindowedStream, how: str) -> Any:
    """The sum of the times of each window, in one of the ways to have it."""
    if how == "reduce":
        return windows.reduce(lambda a, b: Row(a.k, a.at + b.at))
    if how == "aggregate":
        return windows.aggregate(SumOfTimes(), Labelled(), int, SCHEMA)
    declared = windows.aggregate(at=sum_of("at"))
    return declared.uid("declared").map(lambda row: Row(row.k, row.at), SCHEMA)


class SumOfTimes(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.at)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Labelled(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterator[Any]:
        for total in inputs:
            yield key, total


@pytest.mark.parametrize("how", ["reduce", "aggregate", "declared"])
def test_sliding_count_windows_are_folded_when_they_fire(tmp_path: Path, how: str) -> None:
    program = windowed(lambda s: summed(s.count_window(3, 2), how), stamped=False)
    with JobHarness(program, tmp_path) as job:
        job.push("s", ("a", 1), ("a", 2), ("a", 3))
        job.crash()
        job.start()
        job.push("s", ("b", 10), ("a", 4), ("a", 5), ("a", 6), ("b", 20))
        assert output(job) == [("a", 3), ("a", 9), ("a", 15), ("b", 30)]


class Everything(Evictor):
    """Leaves nothing for the function."""

    def evict_before(self, elements: Any, window: Any, now: int) -> Any:
        return [each for each in elements if each[1].at < 0]


@pytest.mark.parametrize("how", ["reduce", "aggregate", "declared"])
def test_a_window_without_elements_is_not_folded(tmp_path: Path, how: str) -> None:
    evicted = windowed(lambda s: summed(s.window(TEN).evictor(Everything()), how))
    with JobHarness(evicted, tmp_path) as job:
        job.push("s", ("a", 1), ("a", 30))
        assert output(job) == []


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


@pytest.mark.parametrize("lateness", [0, 40])
@pytest.mark.parametrize(
    "made",
    [
        lambda windows: windows.process(Listed(), OUTPUT),
        lambda windows: windows.reduce(lambda a, b: b),
        lambda windows: windows.aggregate(n=count()),
    ],
    ids=["process", "reduce", "declared"],
)
def test_what_lies_between_windows_is_not_late(tmp_path: Path, made: Any, lateness: int) -> None:
    late = OutputTag("late", SCHEMA)

    def with_gaps(keyed: Any) -> Any:
        windows = keyed.window(SlidingEventTimeWindows.of(Time(10), Time(100)))
        results = made(windows.allowed_lateness(lateness).side_output_late_data(late))
        results.get_side_output(late).sink_to(DiscardSink()).uid("late")
        return results

    with JobHarness(windowed(with_gaps), tmp_path) as job:
        job.push("s", ("a", 5), ("a", 50), ("a", 105), ("a", 150), ("a", 300))
        assert len(output(job)) == 2
        assert job.output("late") == []
        # Event time has passed these, in a window or not.
        job.push("s", ("a", 155), ("a", 205), ("a", 290))
        passed = [155, 205] if lateness else [155, 205, 290]
        assert [row.at for row in job.output("late")] == passed


def left(job: JobHarness, *more: str) -> set[tuple[int, int]]:
    """The windows of which anything is stored, whatever it is."""
    bounds = {
        tuple(entry)[-2:] if name == "window.alarms" else tuple(entry)[:2]
        for name in ("windows", "window.triggers", "window.alarms", *more)
        for entries in job.state("windows", name).values()
        for entry in entries
    }
    timers = job.state("windows", "timers.event").values()
    named = {tuple(each) for entries in timers for names in entries.values() for each in names}
    return bounds | named


def test_a_session_that_was_purged_goes_on(tmp_path: Path) -> None:
    sessions = EventTimeSessionWindows.with_gap(Time(100))
    pairs = PurgingTrigger.of(CountTrigger.of(2))
    with JobHarness(windowed(lambda s: s.window(sessions).trigger(pairs)), tmp_path) as job:
        job.push("s", ("a", 0), ("a", 10), ("a", 20))
        job.crash()
        job.start()
        job.push("s", ("a", 30), ("a", 1000))
        assert output(job) == [("a", 0, 110, "0 10"), ("a", 0, 130, "20 30")]
        assert left(job, "window.elements") == {(1000, 1100)}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("folded", [False, True])
def test_a_late_element_goes_to_the_session_that_was_purged(
    tmp_path: Path, folded: bool, parallelism: int
) -> None:
    """Also if it is empty when a savepoint is taken."""

    def windows(keyed: Any) -> Any:
        sessions = keyed.window(EventTimeSessionWindows.with_gap(Time(100)))
        at_its_end = PurgingTrigger.of(EventTimeTrigger.create())
        late = sessions.allowed_lateness(Duration.of_seconds(3)).trigger(at_its_end)
        return late.aggregate(SumOfTimes(), Sums(), int, OUTPUT) if folded else late

    with JobHarness(windowed(windows), tmp_path) as job:
        job.push("s", ("a", 0), ("a", 50), ("b", 1000))
        savepoint = job.savepoint()
        job.close()
        job.start(start_from=savepoint, parallelism=parallelism)
        job.push("s", ("a", 30), ("a", 120), ("b", 1001))
        held = ["50", "30", "120"] if folded else ["0 50", "30", "120"]
        assert [row for row in output(job) if row[0] == "a"] == [
            ("a", 0, 150, held[0]),
            ("a", 0, 150, held[1]),
            ("a", 0, 220, held[2]),
        ]
        job.push("s", ("b", 5000))
        assert left(job) == {(5000, 5100)}


class Sums(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterator[Any]:
        (total,) = inputs
        yield key, window.start, window.end, str(total)


class Touched:
    """How many entries of maps were read or written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        every = MapState._all

        def count_all(state: Any) -> Any:
            found = every(state)
            self.count += 1 + len(state._entries().known)
            return found

        monkeypatch.setattr(MapState, "_find", self._counted(MapState._find))
        monkeypatch.setattr(MapState, "_set", self._counted(MapState._set))
        monkeypatch.setattr(MapState, "_all", count_all)

    def _counted(self, method: Any) -> Any:
        def counted(state: Any, *args: Any) -> Any:
            self.count += 1
            return method(state, *args)

        return counted


@pytest.mark.parametrize("size", ["one epoch", "many epochs"])
@pytest.mark.parametrize("lateness", ["all stay open", "all are gone"])
def test_work_grows_with_the_number_of_windows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, lateness: str
) -> None:
    """Not with its square: a timer looks at the windows that it is for."""
    touched = Touched(monkeypatch)

    def work(windows: int) -> int:
        touched.count = 0
        program = windowed(lambda s: s.window(TEN).allowed_lateness(10_000_000))
        with JobHarness(program, tmp_path / str(windows), parallelism=1) as job:
            rows = [("a", 10 * number) for number in range(windows)]
            rows += [("a", 100_000_000)] * (lateness == "all are gone")
            for push in [rows] if size == "one epoch" else [[row] for row in rows]:
                job.push("s", *push)
        return touched.count

    assert work(90) < 3.3 * work(30)


@pytest.mark.parametrize("size", ["one epoch", "many epochs"])
def test_work_grows_with_the_number_of_elements_of_a_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """Not with its square: its elements stay where they are while it becomes longer."""
    touched = Touched(monkeypatch)

    def work(elements: int) -> int:
        touched.count = 0
        program = windowed(lambda s: s.window(EventTimeSessionWindows.with_gap(Time(5))))
        with JobHarness(program, tmp_path / str(elements), parallelism=1) as job:
            rows = [("a", number) for number in range(elements)]
            for push in [rows] if size == "one epoch" else [[row] for row in rows]:
                job.push("s", *push)
        return touched.count

    assert work(90) < 3.3 * work(30)


def test_elements_of_sessions_that_become_one_are_in_the_order_of_the_sessions(
    tmp_path: Path,
) -> None:
    """Also if they are in others already, and the job goes on with other tasks."""
    late = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(100))

    def program(env: StreamExecutionEnvironment) -> None:
        strategy = late.with_timestamp_assigner("at")
        stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy).uid("time")
        sessions = stamped.key_by("k").window(EventTimeSessionWindows.with_gap(Time(5)))
        sessions.process(Listed(), OUTPUT).uid("windows").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("s", ("a", 20), ("a", 24), ("a", 0), ("a", 3), ("a", 22), ("a", 40))
        job.restart(parallelism=3)
        job.push("s", ("a", 11), ("a", 7), ("a", 15), ("a", 36))
        job.push("s", ("a", 32), ("a", 28), ("a", 1000))
        assert output(job) == [("a", 0, 45, "0 3 11 7 20 24 22 15 40 36 32 28")]
        assert set(job.state("windows", "window.elements")["a"]) == {(1000, 1005, 0)}
        assert not job.state("windows", "window.places").get("a")


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


VALUES: dict[str, tuple[Any, Any]] = {
    "bigint": (lambda row: row.n, lambda value: value),
    "n bigint, at bigint": (lambda row: Row(row.n, row.at), lambda value: value.n),
    "array<bigint>": (lambda row: [row.n], lambda value: value[0]),
}


@pytest.mark.parametrize("sizes", [(6,), (2, 4), (3, 3), (2, 2, 2), (1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("kind", sorted(VALUES))
@pytest.mark.parametrize("assigner", [TEN, EventTimeSessionWindows.with_gap(Time(10))])
def test_a_reduce_that_returns_nothing_begins_anew_wherever_epochs_end(
    tmp_path: Path, assigner: Any, kind: str, sizes: tuple[int, ...]
) -> None:
    make, number = VALUES[kind]

    def add(one: Any, other: Any) -> Any:
        if number(other) == 0:
            return None
        return make(Row(n=number(one) + number(other), at=0))

    def program(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        events = source(env, "s", "n bigint, at bigint")
        stamped = events.assign_timestamps_and_watermarks(strategy).uid("time")
        values = stamped.map(make, kind).uid("values")
        keyed = values.key_by(lambda value: 0, Types.INT())
        sums = keyed.window(assigner).reduce(add).uid("sums")
        sums.map(number, "bigint").uid("numbers").sink_to(DiscardSink()).uid("out")

    events = iter([(1, 1), (2, 2), (0, 3), (5, 4), (7, 100), (0, 101)])
    with JobHarness(program, tmp_path) as job:
        for size in sizes:
            job.push("s", *(next(events) for _ in range(size)))
        job._running().client.stop_with_savepoint(True, str(tmp_path / "drained")).result()
        assert job.output("out") == [5]
