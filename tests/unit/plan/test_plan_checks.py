"""What is refused before anything runs, and in which words."""

from __future__ import annotations

import re
import threading

import pytest

from local_engine import FakeFrame, collected, environment, source
from turnback import (
    FileSink,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.errors import PlanError, UnsupportedTypeError
from turnback.functions import KeyedCoProcessFunction, ReduceFunction
from turnback.sinks import DiscardSink

SCHEMA = "a string, n bigint, f double, l array<int>"


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def stateful(*descriptors):
    members = {f"s{i}": d for i, d in enumerate(descriptors)}
    return type("Stateful", (Pass,), members)()


@pytest.fixture
def env():
    return environment(2)


@pytest.fixture
def stream(env):
    return source(env, "s", SCHEMA)


def test_no_source_no_sink(env):
    with pytest.raises(PlanError, match=r"no source.*from_files"):
        env.plan()
    source(env, "s", SCHEMA)
    with pytest.raises(PlanError, match=r"no sink.*sink_to"):
        env.plan()


def test_two_operators_with_one_uid(env, stream):
    collected(stream, "out")
    for _ in ("first", "second"):
        stream.filter(bool).uid("twin")
        env.plan()  # what no sink reads does not count
    for name in ("first", "second"):
        collected(stream.filter(bool).uid("twin").name(name), f"out {name}")
    with pytest.raises(PlanError, match=r"uid 'twin': filter 'first' and filter 'second'; give"):
        env.plan()


def test_a_source_and_a_sink_of_one_uid(env, stream):
    collected(stream, "s")
    with pytest.raises(PlanError, match=r"uid 's': source 's' and sink"):
        env.plan()


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (
            "f",
            "double cannot be a key: NaN .*; cast it to a decimal, a string or a bigint",
        ),
        ("l", "array<int> cannot be a key"),
        (lambda r: r.f, "double cannot be a key"),
    ],
)
def test_keys_of_types_that_cannot_be_keys(env, stream, key, what):
    options = {} if isinstance(key, str) else {"key_type": Types.DOUBLE()}
    collected(stream.key_by(key, **options).process(Pass(), SCHEMA).uid("it"), "out")
    with pytest.raises(PlanError, match=f"operator 'it'.*{what}"):
        env.plan()


@pytest.mark.parametrize(
    "bad",
    [
        ValueStateDescriptor("mine", object),
        ValueStateDescriptor("mine", set),
        ValueStateDescriptor("mine", set[int]),
        ValueStateDescriptor("mine", threading.Lock()),
        ValueStateDescriptor("mine", list),
        MapStateDescriptor("mine", list[int], int),
        MapStateDescriptor("mine", str, object),
    ],
    ids=range(7),
)
def test_a_state_of_a_type_without_serializer(env, stream, bad):
    function = stateful(ValueStateDescriptor("fine", int), bad)
    collected(stream.key_by("a").process(function, SCHEMA).uid("it"), "out")
    with pytest.raises(UnsupportedTypeError, match=r"operator 'it' \(Stateful\): state 'mine': "):
        env.plan()


def test_one_state_declared_twice(env, stream):
    function = stateful(ValueStateDescriptor("mine", int), ValueStateDescriptor("mine", str))
    collected(stream.key_by("a").process(function, SCHEMA).uid("it"), "out")
    with pytest.raises(PlanError, match=r"operator 'it' .*state 'mine' twice"):
        env.plan()


def test_the_state_of_a_reduce_has_its_name(env, stream):
    class Latest(ReduceFunction):
        mine = ValueStateDescriptor("reduced", int)

        def reduce(self, value1, value2):
            return value2

    collected(stream.key_by("a").reduce(Latest()).uid("it"), "out")
    with pytest.raises(PlanError, match=r"operator 'it' .*state 'reduced' twice"):
        env.plan()


def test_declared_state_without_a_key(env, stream):
    class Double(MapFunction):
        seen = ValueStateDescriptor("seen", int)

        def map(self, value):
            return value

    collected(stream.map(Double(), SCHEMA).uid("it"), "out")
    with pytest.raises(PlanError, match=r"'it' .*declares the state 'seen'.*no key; call key_by"):
        env.plan()


def test_more_instances_than_key_groups(env, stream):
    env.set_max_parallelism(4)
    collected(stream.filter(bool).name("wide").set_parallelism(5), "out")
    with pytest.raises(PlanError, match=r"'wide' has parallelism 5, above the maximum of 4"):
        env.plan()


class TestGeneratedUids:
    def plan(self, extra=False, mapped="m"):
        env = environment()
        stream = env.from_dataframe(FakeFrame("a string"))
        if extra:
            collected(env.from_dataframe(FakeFrame("a string")), "extra")
        keyed = (
            stream.map(lambda r: r, "a string").name(mapped).key_by("a").process(Pass(), "a string")
        )
        keyed.sink_to(collected(keyed, "named"))
        return env.plan()

    def test_they_depend_on_the_topology_only(self):
        assert uids(self.plan()) == uids(self.plan(mapped="other name"))
        assert uids(self.plan()) <= uids(self.plan(extra=True))
        assert all(uid.startswith("auto-") for uid in uids(self.plan()) - {"named"})

    def test_operators_with_state_or_position_earn_a_warning(self):
        told = self.plan().warnings
        assert [w.split(" ")[0] for w in told] == ["source", "keyed_process"]
        assert all("Add .uid(...)" in w for w in told)

    def test_only_sinks_that_keep_something_earn_one(self, tmp_path):
        env = environment()
        stream = source(env, "s", SCHEMA)
        stream.print()
        stream.sink_to(DiscardSink())
        assert env.plan().warnings == ()
        stream.sink_to(FileSink(tmp_path, "json"))
        (told,) = env.plan().warnings
        assert told.startswith("sink 'FileSink' has no uid")

    def test_twins_get_different_ones(self):
        env = environment()
        stream = source(env, "s", SCHEMA)
        for i in range(3):
            collected(stream.filter(bool), f"out {i}")
        assert len(uids(env.plan())) == 7


def uids(plan):
    return {op.uid for op in plan.operators()} | {s.uid for s in plan.sources}


class Timed(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield value

    process_element2 = process_element1

    def on_timer(self, timestamp, ctx):
        return ()


class TestStreamsWithoutWatermarks:
    """Timers by event time never fire beside one, which is easily overlooked."""

    BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")

    def warnings(self, second, *, function, first=BY_TIME):
        env = environment()
        a, b = source(env, "a", SCHEMA), source(env, "b", SCHEMA)
        if first is not None:
            a = a.assign_timestamps_and_watermarks(first).uid("time-a")
        if second is not None:
            b = b.assign_timestamps_and_watermarks(second).uid("time-b")
        pairs = a.connect(b).key_by("a", "a").process(function, "a string").uid("pairs")
        collected(pairs, "out")
        return env.plan().warnings

    def test_they_are_named(self):
        (told,) = self.warnings(None, function=Timed())
        assert re.search(r"operator 'pairs'.*because 'b' has no watermarks.*with_idleness", told)
        none = WatermarkStrategy.no_watermarks().with_timestamp_assigner("n")
        (told,) = self.warnings(none, function=Timed())
        assert "because 'time-b' has no watermarks" in told

    def test_where_it_makes_no_difference_nothing_is_said(self):
        assert self.warnings(self.BY_TIME, function=Timed()) == ()
        assert self.warnings(None, function=Timed(), first=None) == (), "it goes by the clock"
        untimed = type("Untimed", (Timed,), {"on_timer": KeyedCoProcessFunction.on_timer})
        assert self.warnings(None, function=untimed()) == ()
