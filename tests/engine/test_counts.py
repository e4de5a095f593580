"""How many elements each source gave, each operator read, and each sink wrote."""

import time
from pathlib import Path
from typing import Any

import pytest

from turnback import Duration, KeyedProcessFunction, Types, WatermarkStrategy
from turnback.job.throughput import read_throughput
from turnback.testing import JobHarness, source
from turnback.views.jobs import Jobs


class Every(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.n >= 0:
            yield value.n


@pytest.mark.parametrize("mapped", [False, True])
def test_united_sources_are_counted_each(tmp_path: Path, mapped: bool) -> None:
    """Whether Spark feeds the shuffle alone, or a function in Python comes before it."""

    def program(env: Any) -> None:
        streams = [source(env, uid, "k string, n bigint") for uid in ("a", "b", "c")]
        both = streams[0].union(streams[1])
        if mapped:
            both = both.filter(lambda row: True).uid("all")
        kept = both.key_by("k").process(Every(), Types.LONG()).uid("every")
        kept.print().uid("out")
        streams[2].key_by("k").process(Every(), Types.LONG()).uid("third").print().uid("third-out")

    with JobHarness(program, tmp_path) as job:
        job.push("a", ("x", 1), ("y", -2))
        job.push("b", ("x", 3), ("y", 4), ("z", -5))
        job.push("c", ("x", 6))
        metrics = job._running().client._runner._status_update().metrics
        assert metrics.records["a"] == (2, 2)
        assert metrics.records["b"] == (3, 3)
        assert metrics.records["c"] == (1, 1)
        assert metrics.records["every"] == (5, 3)
        assert metrics.records["out"] == (3, 3)
        assert metrics.records["third-out"] == (1, 1)
        assert metrics.read == 6
    ended = Jobs(str(tmp_path / "jobs")).get("job")
    buckets = read_throughput(ended.directory.storage, ended.info().job_id)
    assert sum(bucket.records_in for bucket in buckets) == pytest.approx(6, abs=0.1)
    assert sum(bucket.records_out for bucket in buckets) == pytest.approx(4, abs=0.1)
    assert ended.throughput(30).points


class Slow(KeyedProcessFunction):
    """Works for some milliseconds, and most in the task of one key."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        end = time.perf_counter() + (0.004 if value.k == "hot" else 0.0)
        while time.perf_counter() < end:
            pass
        yield value.n


def test_busy_tasks_skew_and_watermarks_of_sources_are_measured(tmp_path: Path) -> None:
    def program(env: Any) -> None:
        env.set_parallelism(2)
        events = source(env, "a", "k string, n bigint").filter(lambda row: True).uid("all")
        timed = events.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_bounded_out_of_orderness(
                Duration.of_millis(5)
            ).with_timestamp_assigner("n")
        ).uid("timed")
        timed.key_by("k").process(Slow(), Types.LONG()).uid("slow").print().uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("a", *[("hot", n) for n in range(90)], *[("cold", n) for n in range(10)])
        job.push("a", ("hot", 1_000))
        metrics = job._running().client._runner._status_update().metrics
    assert metrics.watermarks == {"a": 994, "timed": 994, "slow": 994, "out": 994}
    slow, before, sink = (metrics.load[uid] for uid in ("slow", "all", "out"))
    assert slow.tasks == 2
    assert slow.busiest > 10 * before.busiest
    assert slow.busiest > 10 * sink.busiest
    hot = next(each for each in slow.by_task if each.task == slow.skewed)
    assert slow.skew == pytest.approx(2 * hot.records_in / 101, abs=0.05)
    assert hot.busy == slow.busiest
    assert hot.records_in >= 91
    assert sum(each.records_in for each in slow.by_task) == 101
    assert 0 < slow.busiest <= (metrics.busy or 0)


def test_the_newest_checkpoint_has_its_numbers_while_nothing_happens(tmp_path: Path) -> None:
    def program(env: Any) -> None:
        events = source(env, "a", "k string, n bigint")
        events.key_by("k").process(Every(), Types.LONG()).uid("every").print().uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("a", ("x", 1))
        name = job.checkpoint()
        runner = job._running().client._runner
        runner._history._flushed -= 60  # as if the last was written a minute ago
        runner._status_update()  # which the heartbeat does
        (newest, *_) = Jobs(str(tmp_path / "jobs")).get("job").checkpoints().rows
        assert f"chk-{newest.number}" == name
        assert newest.duration_ms is not None
        assert newest.full_bytes is not None
