"""A stream connected with a broadcast one: every subtask knows the same, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_engine import LocalEngine, collected, environment
from local_engine import source as frame
from turnback import (
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    Savepoint,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.errors import PlanError, StateError, UserFunctionError
from turnback.functions import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedStateFunction,
)
from turnback.sinks import DiscardSink
from turnback.snapshot.preflight import Verdict
from turnback.testing import JobHarness, source

RULES = MapStateDescriptor("rules", str, str)
NUMBERS = MapStateDescriptor("numbers", int, Types.LIST(Types.LONG()))
RULE, ELEMENT = "name string, text string", "k string, n bigint"
OUT = "k string, text string"
CHANGED = OutputTag("changed", RULE)


class Apply(BroadcastProcessFunction):
    """Gives each element with the rule of its key, and each rule to a side output."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.k, ctx.get_broadcast_state(RULES).get(value.k) or "none"

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(value.name, (rules.get(value.name) or "") + value.text)
        yield CHANGED, (value.name, rules.get(value.name))


def applied(env: StreamExecutionEnvironment) -> None:
    rules = source(env, "r", RULE).broadcast(RULES)
    out = source(env, "s", ELEMENT).connect(rules).process(Apply(), OUT).uid("apply")
    out.sink_to(DiscardSink()).uid("out")
    out.get_side_output(CHANGED).sink_to(DiscardSink()).uid("changed")


def test_every_subtask_has_the_rules_and_keeps_them(tmp_path: Path) -> None:
    with JobHarness(applied, tmp_path, parallelism=3) as job:
        job.push("r", ("a", "1"), ("b", "2"))
        job.push("s", *[("a", n) for n in range(6)], *[("c", n) for n in range(6)])
        assert sorted(map(tuple, job.output("out"))) == [("a", "1")] * 6 + [("c", "none")] * 6
        assert job.state("apply", "rules") == {0: {"a": "1", "b": "2"}}
        assert sorted(map(tuple, job.output("changed"))) == [("a", "1")] * 3 + [("b", "2")] * 3
        job.crash()
        job.start()
        job.push("r", ("a", "3"))
        job.restart(parallelism=8, state_backend="rocksdb")
        job.push("s", *[("a", n) for n in range(16)])
        assert [tuple(row) for row in job.output("out")][12:] == [("a", "13")] * 16
        job.restart(parallelism=1)
        job.push("r", ("a", "4"))
        job.push("s", ("a", 0))
        assert tuple(job.output("out")[-1]) == ("a", "134")


def test_all_subtasks_apply_them_in_one_order(tmp_path: Path) -> None:
    """Whatever order a shuffle delivers them in."""
    env = environment(4)
    rules = frame(env, "r", RULE).broadcast(RULES)
    sink = collected(frame(env, "s", ELEMENT).connect(rules).process(Apply(), OUT).uid("a"), "out")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=3)
    deliver = engine.levels._shuffle

    def in_many_orders(program: Any, parts: Any) -> Any:
        delivered = deliver(program, parts)
        return {p: batches[p:] + batches[:p] for p, batches in delivered.items()}

    engine.levels._shuffle = in_many_orders  # type: ignore[method-assign]
    engine.epoch({"r": [("a", text) for text in "uvwxyz"], "s": [("a", n) for n in range(20)]})
    assert {tuple(row) for row in sink.results} == {("a", "uxvywz")}, "task by task, in their order"


def test_event_time_gives_them_the_order_of_their_source(tmp_path: Path) -> None:
    """Spark gives files to tasks as it likes; here to the first task what came last."""
    env = environment(2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    stamped = frame(env, "r", f"{RULE}, at bigint").assign_timestamps_and_watermarks(strategy)
    rules = stamped.uid("time").map(lambda row: row[:2], RULE).uid("rule").broadcast(RULES)
    sink = collected(frame(env, "s", ELEMENT).connect(rules).process(Apply(), OUT).uid("a"), "out")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=3)
    begin = engine.time.begin
    engine.time.begin = lambda files, partitions, ended: begin(  # type: ignore[method-assign]
        {file: -place for file, place in files.items()}, partitions, ended=ended
    )
    engine.epoch({"r": [("a", text, 1) for text in "uvwxyz"], "s": [("a", n) for n in range(9)]})
    assert {tuple(row) for row in sink.results} == {("a", "yzwxuv")}


class Count(KeyedBroadcastProcessFunction, CheckpointedFunction):
    """Counts per key from where rules say, has timers, and state of all kinds."""

    count = ValueStateDescriptor("count", int)
    names = ListStateDescriptor("names", str)

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen", str))

    def snapshot_state(self, context: Any) -> None:
        pass

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.get_current_key() == value.k
        self.count.update((self.count.value() or 0) + value.n)
        self.names.add(value.k)
        self.seen.add(value.k)
        if ctx.timestamp() is not None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield value.k, str(self.count.value())

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.name, value.text)

        class Reset(KeyedStateFunction):
            def process(self, key: Any, state: Any) -> None:
                if key.startswith(value.name):
                    state.update(int(value.text) if value.text else None)

        ctx.apply_to_keyed_state(Count.count, Reset())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        yield ctx.get_current_key(), f"{timestamp} {ctx.time_domain().name} {dict(rules.items())}"


def counted(env: StreamExecutionEnvironment, timed: bool = False) -> None:
    elements = source(env, "s", ELEMENT)
    if timed:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
        elements = elements.assign_timestamps_and_watermarks(strategy).uid("time")
    rules = source(env, "r", RULE).broadcast(RULES)
    out = elements.key_by("k").connect(rules).process(Count(), OUT).uid("count")
    out.sink_to(DiscardSink()).uid("out")


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_keyed_state_can_be_reached_from_the_broadcast_side(tmp_path: Path, backend: str) -> None:
    long = "x" * 300
    with JobHarness(counted, tmp_path, parallelism=3, state_backend=backend) as job:
        job.push("s", *[(k, 1) for k in ("a1", "a2", "b", long)])
        job.push("r", ("a", "10"), ("x", "20"))
        job.push("s", *[(k, 1) for k in ("a1", "b", long)])
        assert job.state("count", "count") == {"a1": 11, "a2": 10, "b": 2, long: 21}
        job.push("r", ("b", ""), ("b", "5"))
        job.restart(parallelism=2)
        assert job.state("count", "count") == {"a1": 11, "a2": 10, long: 21}
        assert len([k for keys in job.state("count", "seen").values() for k in keys]) == 7


def test_timers_know_the_broadcast_state_and_event_time_goes_by_the_main_stream(
    tmp_path: Path,
) -> None:
    with JobHarness(lambda env: counted(env, timed=True), tmp_path, parallelism=2) as job:
        job.push("s", ("a", 1), ("b", 5))
        job.push("r", ("rule", "7"))
        job.push("s", ("b", 12))
        assert ("a", "11 EVENT_TIME {'rule': '7'}") in map(tuple, job.output("out"))
        job.restart(parallelism=3)
        job.push("s", ("c", 100))
        fired = sorted(tuple(row)[1] for row in job.output("out") if "EVENT" in row[1])
        assert fired == [f"{at} EVENT_TIME {{'rule': '7'}}" for at in (11, 15, 22)]


class Writing(BroadcastProcessFunction):
    """Does with the state what it is told to, on one side or the other."""

    def __init__(self, do: Any, broadcast: bool = False) -> None:
        self.do, self.broadcast = do, broadcast

    def process_element(self, value: Any, ctx: Any) -> Any:
        if not self.broadcast:
            self.do(ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        if self.broadcast:
            self.do(ctx)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            Writing(lambda ctx: ctx.get_broadcast_state(RULES).put("a", "b")),
            "broadcast state can only be changed in process_broadcast_element",
        ),
        (
            Writing(lambda ctx: ctx.get_broadcast_state(RULES).clear()),
            "broadcast state can only be changed in process_broadcast_element",
        ),
        (
            Writing(lambda ctx: ctx.get_broadcast_state(MapStateDescriptor("x", str, str))),
            r"descriptors that broadcast\(...\) was given: 'rules'; got 'x'",
        ),
        (
            Writing(lambda ctx: ctx.apply_to_keyed_state(Count.count, print), broadcast=True),
            "operator 'a' has no keyed state 'count'",
        ),
        (
            Writing(lambda ctx: 1 / 0, broadcast=True),
            "process_broadcast_element.* failed: ZeroDivisionError",
        ),
    ],
)
def test_misuse_is_refused_by_name(tmp_path: Path, function: Any, message: str) -> None:
    env = environment(2)
    rules = frame(env, "r", RULE).broadcast(RULES)
    collected(frame(env, "s", ELEMENT).connect(rules).process(function, OUT).uid("a"), "out")
    with pytest.raises(UserFunctionError, match=message):
        LocalEngine(env.plan(), tmp_path).epoch({"r": [("a", "b")], "s": [("a", 1)]})


def test_what_connect_and_broadcast_take() -> None:
    env = environment(2)
    elements, rules = frame(env, "s", ELEMENT), frame(env, "r", RULE)
    with pytest.raises(PlanError, match="broadcast takes MapStateDescriptors, got str"):
        rules.broadcast("rules")  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="broadcast has two states named 'rules'"):
        rules.broadcast(RULES, MapStateDescriptor("rules", str, int))
    with pytest.raises(PlanError, match="state 'rules' has a time to live, which broadcast"):
        hour = StateTtlConfig.new_builder(Time.hours(1)).build()
        rules.broadcast(MapStateDescriptor("rules", str, str).enable_time_to_live(hour))
    with pytest.raises(PlanError, match="and broadcast would undo that"):
        rules.key_by("name").broadcast(RULES)
    connected = elements.connect(rules.broadcast(RULES))
    with pytest.raises(PlanError, match=r"Count is a KeyedBroadcast.*put key_by\(...\) before"):
        connected.process(Count(), OUT)
    with pytest.raises(PlanError, match="process needs output_type"):
        connected.process(Apply())
    with pytest.raises(PlanError, match="process takes a KeyedBroadcastProcessFunction, got Apply"):
        elements.key_by("k").connect(rules.broadcast(RULES)).process(Apply(), OUT)
    with pytest.raises(PlanError, match="of the same environment"):
        frame(environment(1), "t", ELEMENT).connect(rules.broadcast(RULES))


def test_one_name_for_keyed_and_broadcast_state_is_refused(tmp_path: Path) -> None:
    env = environment(1)
    rules = frame(env, "r", RULE).broadcast(MapStateDescriptor("count", str, str))
    keyed = frame(env, "s", ELEMENT).key_by("k")
    collected(keyed.connect(rules).process(Count(), OUT).uid("a"), "out")
    with pytest.raises(StateError, match="both named 'count'; rename one of them"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": [("a", 1)]})


def test_elements_of_any_type_can_be_broadcast(tmp_path: Path) -> None:
    class Longest(BroadcastProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield sum(ctx.get_broadcast_state(NUMBERS).get(1) or [])

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(NUMBERS).put(1, value)

    env = environment(2)
    lists = frame(env, "r", Types.LIST(Types.LONG())).broadcast(NUMBERS)
    out = frame(env, "s", ELEMENT).connect(lists).process(Longest(), Types.LONG()).uid("a")
    sink = collected(out, "out")
    LocalEngine(env.plan(), tmp_path).epoch({"r": [[1, 2], [3, 4]], "s": [("a", 1), ("b", 2)]})
    assert set(sink.results) == {7}


def test_preflight_knows_the_broadcast_states(tmp_path: Path) -> None:
    with JobHarness(applied, tmp_path, parallelism=2) as job:
        job.push("r", ("a", "1"))
        saved = job.savepoint()
    for descriptor, verdict in (
        (RULES, Verdict.RESTORED),
        (MapStateDescriptor("rules", str, int), Verdict.INCOMPATIBLE),
        (MapStateDescriptor("others", str, str), Verdict.UNCLAIMED),
    ):
        env = environment(2)
        rules = frame(env, "r", RULE).broadcast(descriptor)
        out = frame(env, "s", ELEMENT).connect(rules).process(Apply(), OUT).uid("apply")
        collected(out, "out")
        report = Savepoint.load(saved).check(env)
        assert {row.verdict for row in report.rows if row.state == "rules"} == {verdict}
