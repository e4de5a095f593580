"""How many elements each source gave, each operator read, and each sink wrote."""

from pathlib import Path
from typing import Any

import pytest

from turnback import KeyedProcessFunction, Types
from turnback.inspect.jobs import Jobs
from turnback.testing import JobHarness, source


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
    points = Jobs(str(tmp_path / "jobs")).get("job").throughput(30).points
    assert round(sum(point.in_per_s for point in points) * 10) == 6
    assert round(sum(point.out_per_s for point in points) * 10) == 4


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
