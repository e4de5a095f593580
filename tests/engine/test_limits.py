"""Programs that are large in one respect: they run, or are refused by name."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from turnback import (
    CollectSink,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.errors import JobFailedError, PlanError, TooLargeError
from turnback.functions.partitioning import KeySpec
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Channel, Input, InputId, Operator
from turnback.state import delta
from turnback.state.key_context import KeyContext
from turnback.state.rocks_store import RocksStore
from turnback.testing import JobHarness, source
from turnback.values.columns import Batch
from turnback.values.hints import as_type
from turnback.values.keys import KeyCodec
from turnback.worker.level import MOST_BYTES, Router, bounded
from turnback.worker.runners import FunctionOutput, MapBatchesRunner

LONG_CHAIN = 700
"""Operators; with two nested calls for each, Python's limit of 1,000 would be passed."""


def test_a_chain_longer_than_calls_can_be_nested(tmp_path):
    def program(env: StreamExecutionEnvironment) -> None:
        numbers = source(env, "numbers", "n bigint")
        for i in range(LONG_CHAIN):
            numbers = numbers.map(lambda row: (row.n + 1,), "n bigint").uid(f"add-{i}")
        numbers.sink_to(CollectSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("numbers", (1,), (2,))
        assert sorted(row.n for row in job.output("out")) == [LONG_CHAIN + 1, LONG_CHAIN + 2]


class TooManyStates(KeyedProcessFunction):
    """More states than the 16 bits that number them in a state file can tell apart."""

    def open(self, runtime_context: Any) -> None:
        self.states = [
            runtime_context.get_state(ValueStateDescriptor(f"s{i}", int)) for i in range(32_769)
        ]

    def process_element(self, value: Any, ctx: Any) -> Any:
        for state in self.states:
            state.update(value.n)
        yield value


def test_more_states_than_a_state_file_can_number_are_refused(tmp_path):
    def program(env: StreamExecutionEnvironment) -> None:
        rows = source(env, "rows", "k string, n bigint").key_by("k")
        rows.process(TooManyStates(), "k string, n bigint").uid("many").sink_to(CollectSink())

    with (
        pytest.raises(PlanError, match=r"32,769 states.*limit is 32,768"),
        JobHarness(program, tmp_path) as job,
    ):
        job.push("rows", ("a", 1))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_elements_of_more_than_2_gib_leave_a_level_in_several_batches():
    """Arrow ends an array there, and gives two where one was asked for."""
    large = bytes(64 << 20)
    rows = [(i, large) for i in range(33)]
    output = FunctionOutput(as_type("n bigint, data binary"), rows, "operator 'large' (map)")
    numbers = []
    for batch in bounded(output):
        assert batch.arrow.nbytes <= MOST_BYTES + 100
        assert pc.binary_length(batch.arrow["data"]).to_pylist() == [64 << 20] * len(batch)
        numbers += batch.arrow["n"].to_pylist()
    assert numbers == list(range(33))


@pytest.mark.slow
def test_a_function_over_batches_that_gives_more_than_2_gib_is_named():
    piece = pa.record_batch({"data": [bytes(64 << 20)]})

    def enlarge(batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([piece] * 33)

    type = as_type("data binary")
    operator = Operator(
        1, "enlarge", "MapBatches", NodeKind.MAP_BATCHES, enlarge, type, (Input(type),), 1, (), ()
    )
    with pytest.raises(TooLargeError, match=r"operator 'enlarge' .*2 GiB"):
        MapBatchesRunner(operator).run(Batch(type, pa.record_batch({"data": [b"x"]})))


def test_long_keys_are_not_remembered_for_ever():
    codec = KeyCodec((Types.STRING(),), by_columns=True)
    context = KeyContext("op", codec, 128)
    for i in range(70):
        context.locate(f"{i}" + "x" * (1 << 20))
    with tempfile.TemporaryDirectory() as directory:
        store = RocksStore(Path(directory))
        context.use(store, 1, 0)
        store.close()
    assert not context.locations


class LargeValue(KeyedProcessFunction):
    large = ValueStateDescriptor("large", bytes)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.large.update(bytes(value.n))
        yield value


def test_a_value_larger_than_a_state_file_can_hold_is_refused(tmp_path, monkeypatch):
    """With a lower limit, for the true one takes 10 GiB of memory."""
    monkeypatch.setattr(delta, "_MOST_OFFSET", 10_000)

    def program(env: StreamExecutionEnvironment) -> None:
        rows = source(env, "rows", "k string, n bigint").key_by("k")
        rows.process(LargeValue(), "k string, n bigint").uid("many").sink_to(CollectSink())

    with JobHarness(program, tmp_path) as job:
        job.push("rows", ("a", 9_000), ("b", 9_000))
        refused = r"state 'large' of operator 'many' has a value of 11,\d+ bytes"
        with pytest.raises(JobFailedError, match=refused):
            job.push("rows", ("a", 1), ("b", 11_000))


def test_a_router_does_not_remember_long_keys_for_ever():
    text = as_type("string")
    key = KeySpec((), lambda element: element, (Types.STRING(),))
    router = Router(Channel(0, 1, (InputId(2),), text, key, 2, 0, 1, "count"), 1, 2, 128)
    keys = [f"{i}" + "x" * (1 << 20) for i in range(70)]
    targets = router.targets(Batch(text, keys))
    assert router.targets(Batch(text, keys[:1]))[0] == targets[0]
    assert len(router._known) == 1


class Node:
    """Refers to itself, as do exceptions with their traceback, or the nodes of a document."""

    alive = 0
    most = 0

    def __init__(self) -> None:
        self.me = self
        Node.alive += 1
        Node.most = max(Node.most, Node.alive)

    def __del__(self) -> None:
        Node.alive -= 1


class LeavesCycles(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        Node()
        return ()


def test_cycles_are_collected_between_the_batches_of_an_epoch(tmp_path: Path) -> None:
    """Spark gives batches of 10,000 rows, and so does the engine in process."""

    def program(env: StreamExecutionEnvironment) -> None:
        keyed = source(env, "s", "k string").key_by("k")
        keyed.process(LeavesCycles(), "k string").uid("p").sink_to(CollectSink())

    with JobHarness(program, tmp_path, parallelism=1) as job:
        job.push("s", *[("a",)] * 50_000)
    assert 10_000 <= Node.most < 20_000


class LeavesCyclesLater(LeavesCycles):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(0)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        for _ in range(1_000):
            Node()


def test_cycles_are_collected_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """There all timers and windows fire."""

    def program(env: StreamExecutionEnvironment) -> None:
        keyed = source(env, "s", "k string").key_by("k")
        keyed.process(LeavesCyclesLater(), "k string").uid("p").sink_to(CollectSink())

    gc.collect()
    Node.most = 0
    thresholds = gc.get_threshold()
    with JobHarness(program, tmp_path, parallelism=1) as job:
        job.push("s", *[(f"{number}",) for number in range(200)])
    assert 10_000 <= Node.most < 100_000
    assert gc.isenabled()
    assert gc.get_threshold() == thresholds
