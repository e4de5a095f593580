"""Joins of two streams: by intervals of event time, and by windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from job_support import Jobs
from turnback import (
    CollectSink,
    DataStream,
    OutputTag,
    StreamExecutionEnvironment,
    Time,
    WatermarkStrategy,
)
from turnback.errors import JobFailedError, PlanError
from turnback.functions import CoGroupFunction, FlatJoinFunction, JoinFunction, ProcessJoinFunction
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source
from turnback.windows import (
    CountTrigger,
    Evictor,
    GlobalWindows,
    PurgingTrigger,
    TumblingEventTimeWindows,
)

CLICKS = "user string, at bigint"
VIEWS = "id string, at bigint, page string"
PAIRS = "user string, page string, after bigint"
SLOW = OutputTag("slow", PAIRS)
LATE = OutputTag("late", CLICKS)


class After(ProcessJoinFunction):
    """Clicks with the pages that were viewed; slow ones go aside."""

    def open(self, runtime_context: Any) -> None:
        self.factor = 1

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        after = self.factor * (ctx.get_left_timestamp() - ctx.get_right_timestamp())
        pair = left.user, right.page, after
        yield (SLOW, pair) if after > 3 else pair


def timed(stream: DataStream, uid: str) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    return stream.assign_timestamps_and_watermarks(strategy).uid(uid)


def streams(env: StreamExecutionEnvironment) -> tuple[DataStream, DataStream]:
    clicks = timed(source(env, "clicks", CLICKS), "time-clicks")
    return clicks, timed(source(env, "views", VIEWS), "time-views")


def by_interval(env: StreamExecutionEnvironment) -> None:
    clicks, views = streams(env)
    join = clicks.key_by("user").interval_join(views.key_by("id")).between(Time(-5), Time(0))
    joined = join.side_output_left_late_data(LATE).process(After(), PAIRS).uid("join")
    joined.sink_to(DiscardSink()).uid("out")
    joined.get_side_output(SLOW).sink_to(DiscardSink()).uid("slow")
    joined.get_side_output(LATE).sink_to(DiscardSink()).uid("late")


def within(most: int) -> Any:
    """Clicks with the views of so many milliseconds before."""

    def build(env: StreamExecutionEnvironment) -> None:
        clicks, views = streams(env)
        join = clicks.key_by("user").interval_join(views.key_by("id"))
        joined = join.between(Time(-most), Time(0)).process(After(), PAIRS).uid("join")
        joined.sink_to(DiscardSink()).uid("out")

    return build


def test_an_interval_that_becomes_longer_leaves_nothing_behind(tmp_path: Path) -> None:
    """The timers of what is stored are those of the shorter one."""
    with JobHarness(within(2), tmp_path) as job:
        job.push("views", ("a", 10, "home"))
        job.push("clicks", ("b", 10))
        job.restart(within(20))
        job.push("views", ("b", 18, "home"))
        job.push("clicks", ("b", 18))
        assert job.state("join", "join.right")["a"].keys() == {10}, "it is kept for longer now"
        job.push("views", ("b", 100, "home"))
        job.push("clicks", ("b", 100))
        assert "a" not in job.state("join", "join.right")


def test_pairs_at_most_so_far_apart(tmp_path: Path) -> None:
    with JobHarness(by_interval, tmp_path) as job:
        job.push("views", ("a", 1, "home"), ("b", 2, "home"), ("a", 4, "shop"))
        job.push("clicks", ("a", 5), ("b", 9), ("a", 10))
        job.push("views", ("a", 7, "cart"), ("a", 30, "end"))
        job.push("clicks", ("a", 3), ("z", 30), ("z", 31))
        assert sorted(job.output("out")) == [("a", "cart", 3), ("a", "shop", 1)]
        assert job.output("slow") == [("a", "home", 4)]
        assert job.output("late") == [("a", 3)]


def test_what_no_partner_can_come_for_is_forgotten(tmp_path: Path) -> None:
    with JobHarness(by_interval, tmp_path) as job:
        job.push("views", ("a", 1, "home"), ("a", 20, "shop"))
        job.push("clicks", ("a", 2), ("a", 6))
        job.push("clicks", ("a", 21))
        assert list(job.state("join", "join.right")["a"]) == [20]
        assert list(job.state("join", "join.left")["a"]) == [21]


@pytest.mark.parametrize("before", [1, 2, 3, 8])
@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_an_interval_join_after_a_rescale(tmp_path: Path, before: int, after: int) -> None:
    users = [f"u{i}" for i in range(20)]
    with JobHarness(by_interval, tmp_path, parallelism=before) as job:
        job.push("views", *((user, 10, "home") for user in users))
        job.push("clicks", *((user, 11) for user in users[:10]), ("x", 12))
        savepoint = job.savepoint()
        job.close()
        job.start(parallelism=after, start_from=savepoint)
        job.push("clicks", *((user, 13) for user in users[10:]))
        job.push("views", ("x", 50, "end"))
        job.push("clicks", ("x", 60))
        job.checkpoint()
        wanted = [(user, "home", 1 if i < 10 else 3) for i, user in enumerate(users)]
        assert sorted(map(tuple, job.output("out"))) == sorted(wanted)


class Together(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return first.user, second.page, first.at - second.at


class Later(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Iterator[Any]:
        if first.at > second.at:
            yield first.user, second.page, first.at - second.at


class Counts(CoGroupFunction):
    def co_group(self, first: list[Any], second: list[Any]) -> Iterator[Any]:
        yield (first[0].user if first else second[0].id), f"{len(first)} {len(second)}", 0


class NotHome(Evictor):
    def evict_before(self, elements: Any, window: Any, now: int) -> Any:
        return [each for each in elements if each[1][2] is None or each[1][2].page != "home"]


def by_windows(env: StreamExecutionEnvironment) -> None:
    clicks, views = streams(env)
    tens = TumblingEventTimeWindows.of(Time(10))
    joined = clicks.join(views).where("user").equal_to("id").window(tens)
    for uid, stream in {
        "join": joined.apply(Together(), PAIRS),
        "flat": joined.apply(Later(), PAIRS),
        "plain": joined.apply(lambda one, two: (one.user, two.page, 1), PAIRS),
        "evicted": joined.evictor(NotHome()).apply(Together(), PAIRS),
        "groups": clicks.co_group(views)
        .where(lambda click: click.user, key_type=str)
        .equal_to("id")
        .window(tens)
        .apply(Counts(), PAIRS),
        "counted": clicks.co_group(views)
        .where("user")
        .equal_to(["id"])
        .window(GlobalWindows.create())
        .trigger(PurgingTrigger.of(CountTrigger.of(3)))
        .apply(Counts(), PAIRS),
    }.items():
        stream.uid(uid).sink_to(DiscardSink()).uid(f"{uid}-out")


def test_pairs_and_groups_of_windows(tmp_path: Path) -> None:
    with JobHarness(by_windows, tmp_path) as job:
        job.push("views", ("a", 1, "home"), ("a", 4, "shop"), ("b", 12, "home"))
        job.push("clicks", ("a", 3), ("a", 5), ("c", 14), ("z", 100))
        job.push("views", ("z", 100, "end"))
        pairs = [("a", "home", 2), ("a", "home", 4), ("a", "shop", -1), ("a", "shop", 1)]
        assert sorted(job.output("join-out")) == pairs
        assert sorted(job.output("flat-out")) == [each for each in pairs if each[2] > 0]
        assert sorted(job.output("plain-out")) == [
            ("a", "home", 1), ("a", "home", 1), ("a", "shop", 1), ("a", "shop", 1),
        ]  # fmt: skip
        assert sorted(job.output("evicted-out")) == pairs[2:]
        groups = [("a", "2 2", 0), ("b", "0 1", 0), ("c", "1 0", 0)]
        assert sorted(job.output("groups-out")) == groups
        (counted,) = job.output("counted-out")
        assert counted[0] == "a"


@pytest.mark.parametrize("before", [1, 2, 3, 8])
@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_a_window_join_after_a_rescale(tmp_path: Path, before: int, after: int) -> None:
    users = [f"u{i}" for i in range(20)]
    with JobHarness(by_windows, tmp_path, parallelism=before) as job:
        job.push("views", *((user, 10, "home") for user in users))
        job.push("clicks", *((user, 11) for user in users[:10]), ("x", 12))
        savepoint = job.savepoint()
        job.close()
        job.start(parallelism=after, start_from=savepoint)
        job.push("clicks", *((user, 13) for user in users[10:]), ("x", 60))
        job.push("views", ("x", 60, "end"), ("x", 61, "end"))
        job.checkpoint()
        wanted = [(user, "home", 1 if i < 10 else 3) for i, user in enumerate(users)]
        assert sorted(map(tuple, job.output("join-out"))) == sorted(wanted)


def test_streams_without_timestamps_are_refused(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        clicks, views = source(env, "clicks", CLICKS), source(env, "views", VIEWS)
        join = clicks.key_by("user").interval_join(views.key_by("id")).between(Time(0), Time(1))
        join.process(After(), PAIRS).uid("join").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job, pytest.raises((JobFailedError, PlanError)) as failed:
        job.push("clicks", ("a", 1))
    text = str(failed.value.__cause__ or failed.value)
    assert "interval_join needs timestamps" in text


def test_clicks_and_views_of_files(jobs: Jobs) -> None:
    """The whole way: two directories, event time, an interval join, the end of the input."""
    jobs.feed("clicks", {"user": "a", "at": 3}, {"user": "b", "at": 9})
    jobs.feed("clicks", {"user": "a", "at": 10})
    jobs.feed("views", {"id": "a", "at": 1, "page": "home"}, {"id": "b", "at": 7, "page": "shop"})
    jobs.feed("views", {"id": "a", "at": 9, "page": "cart"})
    env, sink = jobs.env(), CollectSink()
    clicks = timed(jobs.files(env, "clicks", CLICKS), "time-clicks")
    views = timed(jobs.files(env, "views", VIEWS), "time-views")
    join = clicks.key_by("user").interval_join(views.key_by("id")).between(Time(-5), Time(0))
    join.process(After(), PAIRS).uid("join").sink_to(sink).uid("out")
    env.execute("job", bounded=True)
    assert sorted(map(tuple, sink.results)) == [
        ("a", "cart", 1), ("a", "home", 2), ("b", "shop", 2),
    ]  # fmt: skip
