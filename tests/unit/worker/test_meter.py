from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manual_clock import ManualClock
from turnback.driver.job import describe
from turnback.driver.metrics import Meter
from turnback.functions.base import KeyedProcessFunction
from turnback.functions.partitioning import KeySpec
from turnback.plan.graph import NodeKind, StreamGraph
from turnback.plan.plan import Plan
from turnback.plan.planner import plan
from turnback.sinks import DiscardSink
from turnback.state.files import StateFile
from turnback.values.hints import as_type

ROW = as_type("key string, n bigint")


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return ()


class Coordinator:
    """As much of a coordinator as the meter asks."""

    completed, failed = 2, 1

    def under_way(self) -> tuple[Any, ...]:
        return ()


def program(*, native: bool, consumers: int = 1) -> Plan:
    """Source, and keyed operators with a sink each; Spark feeds them alone if native."""
    graph = StreamGraph()
    source = graph.add(NodeKind.SOURCE, "source", ROW, uid="source")
    if not native:
        source = graph.add(NodeKind.MAP, "map", ROW, (source,), function=lambda row: row, uid="map")
    for i in range(consumers):
        key = KeySpec(("key",), None, (as_type("string"),))
        process = graph.add(
            NodeKind.KEYED_PROCESS,
            f"p{i}",
            ROW,
            (source,),
            key=key,
            function=Nothing(),
            uid=f"p{i}",
        )
        graph.add(NodeKind.SINK, f"s{i}", None, (process,), function=DiscardSink(), uid=f"s{i}")
    return plan(graph, 2, 128)


def file(path: str, length: int, *operators: str) -> StateFile:
    return StateFile(path, length, "", 1, 1, 1, 0, 127, operators)


def test_sources_that_spark_reads_alone_are_counted_by_their_channel() -> None:
    made = program(native=True)
    assert made.native
    (channel,) = made.channels
    meter = Meter(made, ManualClock())
    assert meter.count({"p0": (10, 7), "s0": (7, 7)}, [], fed={channel.id: 10}) == 10
    assert meter.count({"p0": (5, 5), "s0": (5, 5)}, [], fed={channel.id: 5}) == 5
    metrics = meter.metrics(Coordinator(), 3, 4)  # type: ignore[arg-type]
    assert metrics.read == 15
    assert metrics.records == {"p0": (15, 12), "s0": (12, 12), "source": (15, 15)}
    assert (metrics.completed, metrics.failed) == (5, 5)


def test_sources_that_are_read_in_python_count_themselves() -> None:
    made = program(native=False, consumers=2)
    assert not made.native
    meter = Meter(made, ManualClock())
    records = {"source": (10, 10), "map": (10, 10), "p0": (10, 1), "p1": (10, 1)}
    assert meter.count(records, []) == 10


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = ManualClock()
    meter = Meter(program(native=True), clock)
    for _ in range(30):
        clock.advance(1_000)
        meter.count({}, [], fed={0: 100})
    assert meter.metrics(Coordinator(), 0, 0).per_s == pytest.approx(100, rel=0.15)  # type: ignore[arg-type]
    clock.advance(60_000)
    assert meter.metrics(Coordinator(), 0, 0).per_s == pytest.approx(0, abs=2)  # type: ignore[arg-type]


def test_files_of_several_operators_are_divided_and_counted_once() -> None:
    meter = Meter(program(native=True), ManualClock())
    shared = file("a", 100, "p0", "p1")
    meter.count({}, [shared, shared, file("b", 11, "p0")])
    metrics = meter.metrics(Coordinator(), 0, 0)  # type: ignore[arg-type]
    assert metrics.state_bytes == {"p0": 61, "p1": 50}


@pytest.mark.parametrize("native", [True, False])
def test_the_graph_is_told_from_sources_to_sinks(native: bool, tmp_path: Path) -> None:
    class Spec:
        program_settings, script = (), ("job.py",)

    made = program(native=native, consumers=1 if native else 2)
    told = describe(made, Spec(), 3)  # type: ignore[arg-type]
    by_uid = {op.uid: op for op in told.operators}
    assert told.operators[0].uid == "source"
    assert by_uid["source"].parallelism is None
    assert by_uid["p0"].inputs == (("source",) if native else ("map",))
    assert by_uid["p0"].key == "key"
    assert by_uid["s0"].inputs == ("p0",)
    assert (told.attempt, told.script) == (3, ("job.py",))
