"""Declared aggregates in windows of real jobs: what comes out, upgrades, mistakes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from job_support import Jobs
from turnback import (
    Duration,
    OutputTag,
    StreamExecutionEnvironment,
    Time,
    Types,
    WatermarkStrategy,
    count,
    max_of,
    mean_of,
    sum_of,
)
from turnback.errors import PlanError
from turnback.functions import AggregateFunction, first_of
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source
from turnback.windows import (
    CountTrigger,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)

SCHEMA = "k string, at bigint, n bigint"
TEN = TumblingEventTimeWindows.of(Time(10))
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def program(windows: Any, *, stamped: bool = True) -> Any:
    """A program that ends with what is made of a keyed stream."""

    def build(env: StreamExecutionEnvironment) -> None:
        stream = source(env, "s", SCHEMA)
        if stamped:
            stream = stream.assign_timestamps_and_watermarks(MONOTONOUS).uid("time")
        windows(stream.key_by("k")).uid("windows").sink_to(DiscardSink()).uid("out")

    return build


def counted(assigner: WindowAssigner = TEN, **more: Any) -> Any:
    return program(lambda keyed: keyed.window(assigner).aggregate(n=count(), **more))


def output(job: JobHarness) -> list[Any]:
    job.checkpoint()
    return sorted(map(tuple, job.output("out")))


def test_a_row_per_key_and_window(tmp_path: Path) -> None:
    aggregates = {"total": sum_of("n"), "mean": mean_of("n"), "first": first_of("n", by="at")}
    with JobHarness(counted(**aggregates), tmp_path) as job:
        job.push("s", ("a", 1, 5), ("b", 3, 1), ("a", 9, 2))
        assert output(job) == []
        job.push("s", ("a", 10, 4), ("b", 2, 100))
        assert output(job) == [("a", at(0), at(10), 2, 7, 3.5, 5), ("b", at(0), at(10), 1, 1, 1, 1)]
        (row, *_) = job.output("out")
        assert row.get_field_names() == (
            "k", "window_start", "window_end", "n", "total", "mean", "first",
        )  # fmt: skip


@pytest.mark.parametrize(("before", "after"), list(permutations([1, 2, 3, 8], 2)))
@pytest.mark.parametrize("assigner", [TEN, SlidingEventTimeWindows.of(Time(10), Time(5))])
def test_after_a_rescale(tmp_path: Path, assigner: WindowAssigner, before: int, after: int) -> None:
    keys = [f"k{i}" for i in range(20)]
    with JobHarness(counted(assigner), tmp_path, parallelism=before) as job:
        job.push("s", *((key, 6, 1) for key in keys), *((key, 7, 1) for key in keys))
        savepoint = job.savepoint()
        job.close()
        job.start(parallelism=after, start_from=savepoint)
        job.push("s", *((key, 8, 1) for key in keys))
        job.push("s", ("last", 100, 1))
        got = [row for row in output(job) if row[0] != "last"]
    starts = [0] if assigner is TEN else [0, 5]
    assert got == sorted((k, at(start), at(start + 10), 3) for k in keys for start in starts)


def test_windows_follow_windows(tmp_path: Path) -> None:
    """The result of a window has its last millisecond as timestamp."""

    def twice(keyed: Any) -> Any:
        first = keyed.window(TEN).aggregate(n=count()).uid("first")
        longer = TumblingEventTimeWindows.of(Time(20))
        return first.key_by("k").window(longer).aggregate(windows=count(), n=sum_of("n"))

    with JobHarness(program(twice), tmp_path) as job:
        job.push("s", *(("a", time, 1) for time in (1, 5, 11, 20, 25)))
        job.push("s", ("a", 31, 1), ("a", 40, 1))
        assert output(job) == [("a", at(0), at(20), 2, 3), ("a", at(20), at(40), 2, 3)]


def test_keys_of_several_columns_and_of_a_function(tmp_path: Path) -> None:
    def build(by: Any) -> Any:
        def of(env: StreamExecutionEnvironment) -> None:
            stream = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(MONOTONOUS)
            results = by(stream.uid("time")).window(TEN).aggregate(rows=count())
            results.uid("windows").sink_to(DiscardSink()).uid("out")

        return of

    rows = [("a", 1, 5), ("a", 2, 6), ("b", 3, 5), ("a", 4, 5), ("z", 50, 5)]
    with JobHarness(build(lambda s: s.key_by("n", "k")), tmp_path / "columns") as job:
        job.push("s", *rows)
        assert [(*row[:2], row[-1]) for row in output(job)] == [
            (5, "a", 2), (5, "b", 1), (6, "a", 1),
        ]  # fmt: skip
    by_function = build(lambda s: s.key_by(lambda row: row.n % 2, key_type=int))
    with JobHarness(by_function, tmp_path / "function") as job:
        job.push("s", *rows)
        assert output(job) == [(0, at(0), at(10), 1), (1, at(0), at(10), 3)]
        assert job.output("out")[0].get_field_names()[0] == "key"


def test_aggregates_are_added_and_removed(tmp_path: Path) -> None:
    with JobHarness(counted(most=max_of("n")), tmp_path) as job:
        job.push("s", ("a", 1, 7))
        savepoint = job.savepoint()
        job.close()
        job.start(counted(total=sum_of("n")), start_from=savepoint)
        job.push("s", ("a", 2, 3), ("a", 10, 1))
        assert output(job) == [("a", at(0), at(10), 2, 3)]


def test_allowed_lateness_comes_with_an_upgrade(tmp_path: Path) -> None:
    """Elements are then taken one by one; the state is the same."""
    late = OutputTag("late", SCHEMA)

    def lenient(keyed: Any) -> Any:
        windows = keyed.window(TEN).allowed_lateness(Duration.of_millis(5))
        return windows.side_output_late_data(late).aggregate(n=count())

    with JobHarness(counted(), tmp_path) as job:
        job.push("s", ("a", 1, 7), ("a", 11, 1))
        savepoint = job.savepoint()
        job.close()
        job.start(program(lenient), start_from=savepoint)
        job.push("s", ("a", 12, 1), ("a", 4, 1), ("a", 21, 1))
        job.push("s", ("a", 5, 1), ("a", 15, 1), ("a", 30, 1))
        assert output(job) == [
            ("a", at(0), at(10), 1),
            ("a", at(0), at(10), 1),
            ("a", at(10), at(20), 2),
            ("a", at(10), at(20), 3),
            ("a", at(20), at(30), 1),
        ]


def test_open_windows_are_a_table_in_savepoints(tmp_path: Path) -> None:
    with JobHarness(counted(most=max_of("n")), tmp_path) as job:
        job.push("s", ("a", 1, 7), ("a", 2, 9), ("b", 3, 1))
        savepoint = job.savepoint()
    files = [path for path in savepoint.rglob("*.parquet") if path.parent.name == "windows"]
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert sorted((row["key"], row["time"], row["value"]["window_start"]) for row in rows) == [
        ("a", 9, 0),
        ("b", 9, 0),
    ]
    folded = {row["key"]: tuple(row["value"]["value"].values()) for row in rows}
    assert folded == {"a": (2, 9), "b": (1, 1)}


@pytest.mark.parametrize("lateness", [0, 3], ids=["combined", "one by one"])
def test_nothing_is_left_of_windows_that_have_ended(tmp_path: Path, lateness: int) -> None:
    sliding = SlidingEventTimeWindows.of(Time(10), Time(5))

    def windows(keyed: Any) -> Any:
        return keyed.window(sliding).allowed_lateness(lateness).aggregate(n=count())

    with JobHarness(program(windows), tmp_path) as job:
        job.push("s", ("a", 1, 1), ("b", 8, 1))
        assert set(job.state("windows", "windows")) == {"a", "b"}
        job.push("s", ("c", 100, 1))
        assert set(job.state("windows", "windows")) == {"c"}


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def test_windows_by_the_clock_and_of_counts(tmp_path: Path) -> None:
    def pairs(keyed: Any) -> Any:
        return keyed.count_window(2).aggregate(n=count(), total=sum_of("n"))

    with JobHarness(program(pairs, stamped=False), tmp_path / "counts") as job:
        job.push("s", ("a", 1, 5), ("a", 2, 6), ("a", 3, 7))
        assert output(job) == [("a", None, None, 2, 11)], "it has no bounds"

    def by_the_clock(keyed: Any) -> Any:
        return keyed.window(TumblingProcessingTimeWindows.of(Time(1))).aggregate(n=count())

    with JobHarness(program(by_the_clock, stamped=False), tmp_path / "clock") as job:
        job.push("s", ("a", 1, 5))
        job.push("s")
        (row,) = output(job)
        assert row[2] - row[1] == timedelta(milliseconds=1)


def test_streams_of_several_strategies_are_aggregated_one_by_one(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        streams = [
            source(env, uid, SCHEMA).assign_timestamps_and_watermarks(MONOTONOUS).uid(f"t{uid}")
            for uid in ("s", "r")
        ]
        results = streams[0].union(streams[1]).key_by("k").window(TEN).aggregate(n=count())
        results.uid("windows").sink_to(DiscardSink()).uid("out")

    with JobHarness(build, tmp_path) as job:
        job.push("s", ("a", 1, 1), ("a", 50, 1))
        job.push("r", ("a", 2, 1), ("a", 12, 1))
        assert output(job) == [("a", at(0), at(10), 2)]


def test_elements_without_timestamps(tmp_path: Path) -> None:
    unstamped = program(lambda keyed: keyed.window(TEN).aggregate(n=count()), stamped=False)
    problem = "operator 'windows-combine': TumblingEventTimeWindows needs timestamps"
    with JobHarness(unstamped, tmp_path) as job, pytest.raises(PlanError, match=problem):
        job.push("s", ("a", 1, 1))


def test_a_global_window_needs_no_timestamps(tmp_path: Path) -> None:
    def every_second(keyed: Any) -> Any:
        windows = keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2))
        return windows.aggregate(n=count())

    with JobHarness(program(every_second, stamped=False), tmp_path) as job:
        job.push("s", ("a", 1, 1), ("a", 2, 1), ("a", 3, 1), ("a", 4, 1))
        assert output(job) == [("a", None, None, 2), ("a", None, None, 4)]


def test_over_files_in_several_epochs(jobs: Jobs) -> None:
    """Declared and by a function, side by side."""
    expected = []
    for epoch in range(3):
        rows = [{"k": f"k{i % 3}", "at": epoch * 20 + i, "n": i} for i in range(20)]
        jobs.feed("events", *rows)
        expected += [
            (f"k{k}", start, sum(1 for i in range(20) if i % 3 == k and i // 10 == half))
            for half, start in ((0, epoch * 20), (1, epoch * 20 + 10))
            for k in range(3)
        ]
    env = jobs.env()
    stream = jobs.files(env, "events", SCHEMA)
    keyed = stream.assign_timestamps_and_watermarks(MONOTONOUS).uid("time").key_by("k")
    declared = keyed.window(TEN).aggregate(n=count()).uid("declared")
    as_row = declared.map(
        lambda row: (row.k, (row.window_start - EPOCH) // timedelta(milliseconds=1), row.n),
        Types.ROW_NAMED(["k", "start", "n"], [Types.STRING(), Types.LONG(), Types.LONG()]),
    )
    as_row.sink_to(jobs.sink("declared")).uid("out of declared")
    by_function = keyed.window(TEN).aggregate(Count(), None, int, int).uid("by function")
    by_function.sink_to(jobs.sink("counts")).uid("out of counts")
    env.execute("job", bounded=True)
    assert jobs.out("declared") == sorted(expected, key=repr)
    assert sorted(jobs.out("counts")) == sorted(n for *_, n in expected)
