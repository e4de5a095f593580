"""Wrong arguments to what connects two streams: refused at once, in words that help."""

from __future__ import annotations

import pytest

from local_engine import collected, environment, source
from turnback import ValueStateDescriptor
from turnback.errors import PlanError
from turnback.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from turnback.plan.graph import NodeKind
from turnback.plan.plan import InputId

ONE, TWO = "a string, n bigint", "b string, m int"


class Map(CoMapFunction):
    def map1(self, value) -> int:
        return 1

    def map2(self, value):
        return 2


class Untyped(CoMapFunction):
    def map1(self, value):
        return 1

    map2 = map1


class FlatMap(CoFlatMapFunction):
    def flat_map1(self, value):
        return [value.a]

    def flat_map2(self, value):
        return [value.b]


class Process(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield value.a

    def process_element2(self, value, ctx):
        yield value.b


class Keyed(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield value.a

    def process_element2(self, value, ctx):
        yield value.b


class Stateful(Process):
    count = ValueStateDescriptor("count", int)


WRONG = {
    "no stream": (lambda a, b: a.connect("b"), "connect takes streams, got str"),
    "another environment": (
        lambda a, b: a.connect(source(environment(), "c", TWO)),
        "connect takes streams of the same environment",
    ),
    "a class": (lambda a, b: a.connect(b).map(Map), r"map takes an instance; write Map\(\)"),
    "another function": (
        lambda a, b: a.connect(b).map(FlatMap(), int),
        "map takes a CoMapFunction, got FlatMap",
    ),
    "a plain function": (
        lambda a, b: a.connect(b).flat_map(lambda v: [v], int),
        "flat_map takes a CoFlatMapFunction, got function",
    ),
    "a map to process": (
        lambda a, b: a.connect(b).process(Map(), int),
        "process takes a CoProcessFunction or a KeyedCoProcessFunction, got Map",
    ),
    "no type": (lambda a, b: a.connect(b).map(Untyped()), "map needs output_type"),
    "no type of flat_map": (lambda a, b: a.connect(b).flat_map(FlatMap()), "flat_map needs output"),
    "no type of process": (lambda a, b: a.connect(b).process(Process()), "process needs output"),
    "no key": (
        lambda a, b: a.connect(b).process(Keyed(), str),
        r"Keyed is a KeyedCoProcessFunction; put key_by\(...\) before process",
    ),
    "one key": (
        lambda a, b: a.key_by("a").connect(b).process(Process(), str),
        "the second of two connected streams has no key; key both or neither",
    ),
    "the other key": (
        lambda a, b: a.connect(b.key_by("b")).process(Keyed(), str),
        "the first of two connected streams has no key",
    ),
    "two types of keys": (
        lambda a, b: a.connect(b).key_by("n", "m").process(Keyed(), str),
        "keys of two connected streams must have the same type, but they are .*; cast one",
    ),
    "an unknown column": (
        lambda a, b: a.connect(b).key_by("a", "a"),
        r"no column 'a'; the columns are \['b', 'm'\]",
    ),
    "a key without a type": (
        lambda a, b: a.connect(b).key_by("a", lambda v: v.b),
        "key_by with a function needs key_type",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    build, message = WRONG[case]
    env = environment()
    with pytest.raises(PlanError, match=message):
        build(source(env, "a", ONE), source(env, "b", TWO))


def test_state_needs_a_key():
    env = environment()
    connected = source(env, "a", ONE).connect(source(env, "b", TWO))
    collected(connected.process(Stateful(), str).uid("op"), "out")
    with pytest.raises(PlanError, match="declares the state 'count', but its stream has no key"):
        env.plan()


def test_the_type_comes_from_the_annotation():
    env = environment()
    out = source(env, "a", ONE).connect(source(env, "b", TWO)).map(Map())
    assert str(out.type) == "bigint"


def test_two_sources_need_no_python_before_the_shuffle():
    env = environment(3)
    one, two = source(env, "a", ONE), source(env, "b", TWO)
    collected(one.connect(two).key_by("a", "b").process(Keyed(), str).uid("op"), "out")
    plan = env.plan()
    assert plan.native
    (operator,) = (op for op in plan.operators() if op.kind is NodeKind.CO_PROCESS)
    assert [channel.consumers for channel in plan.channels] == [
        (InputId(operator.id, 0),),
        (InputId(operator.id, 1),),
    ]
    assert [each.type for each in operator.inputs] == [one.type, two.type]
    assert [each.key.columns for each in operator.inputs] == [("a",), ("b",)]


def test_one_stream_at_both_inputs_is_sent_once():
    env = environment()
    one = source(env, "a", ONE)
    collected(one.connect(one).key_by("a", "a").map(Map(), int).uid("op"), "out")
    (channel,) = env.plan().channels
    assert [each.number for each in channel.consumers] == [0, 1]


def test_a_function_that_meets_columns_sends_keys_where_spark_does():
    env = environment()
    one, two = source(env, "a", ONE), source(env, "b", TWO)
    mixed = one.connect(two).key_by("a", lambda v: v.b, key_type=str)
    collected(mixed.process(Keyed(), str).uid("op"), "out")
    (operator,) = (op for op in env.plan().operators() if op.kind is NodeKind.CO_PROCESS)
    groups = [each.key.codec().group("key", 128) for each in operator.inputs]
    assert groups[0] == groups[1]
