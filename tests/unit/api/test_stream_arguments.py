"""Wrong arguments to every method of a stream: refused at once, in words that help."""

from __future__ import annotations

import pytest

from local_engine import collected, environment, source
from turnback import (
    CollectSink,
    FileSink,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    Types,
    count,
    mean_of,
    sum_of,
)
from turnback.errors import PlanError, UnsupportedTypeError
from turnback.functions import KeyedBatchFunction, KeySelector, ReduceFunction

SCHEMA = "a string, n bigint"


class Batches(KeyedBatchFunction):
    def process_batch(self, batch, state):
        return batch


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Same(MapFunction):
    def map(self, value):
        return value


class Annotated(MapFunction):
    def map(self, value) -> int:
        return 1


class Key(KeySelector):
    def get_key(self, value) -> str:
        return value.a


class Opened(Key):
    def open(self, runtime_context):
        self.more = 1


class Sum(ReduceFunction):
    def reduce(self, value1, value2):
        return value1


def annotated(value) -> dict[str, int]:
    return {}


@pytest.fixture
def stream():
    return source(environment(), "s", SCHEMA)


WRONG = {
    "map without a type": (lambda s: s.map(lambda r: r), "map needs output_type: a DDL string"),
    "map with a class": (lambda s: s.map(Same, SCHEMA), r"map takes an instance; write Same\(\)"),
    "map with a reduce": (lambda s: s.map(Sum(), SCHEMA), "map takes a MapFunction or a function"),
    "map with a number": (lambda s: s.map(3, SCHEMA), "map takes a MapFunction .*got int"),
    "a type that is none": (lambda s: s.map(str, "strange"), "strange"),
    "a type with a typo": (lambda s: s.map(str, "a strin, n bigint"), "strin"),
    "a type that is an object": (lambda s: s.map(str, object()), "not a type that can be used"),
    "flat_map without a type": (lambda s: s.flat_map(list), "flat_map needs output_type"),
    "flat_map with None": (lambda s: s.flat_map(None, SCHEMA), "flat_map takes a FlatMapFunction"),
    "filter with text": (lambda s: s.filter("n > 1"), "filter takes a FilterFunction"),
    "map_batches with None": (lambda s: s.map_batches(None), "map_batches takes a function"),
    "map_batches, bad type": (lambda s: s.map_batches(list, {}), "not a type that can be used"),
    "process, keyed function": (
        lambda s: s.process(Keyed(), SCHEMA),
        r"Keyed is a KeyedProcessFunction; put key_by\(...\) before process",
    ),
    "process, keyed batch function": (
        lambda s: s.process(Batches(), SCHEMA),
        r"Batches is a KeyedBatchFunction; put key_by\(...\) before process",
    ),
    "keyed batches, a class": (
        lambda s: s.key_by("a").process(Batches, SCHEMA),
        r"write Batches\(\)",
    ),
    "keyed batches without a type": (
        lambda s: s.key_by("a").process(Batches()),
        "process needs output_type",
    ),
    "map with keyed batches": (lambda s: s.map(Batches(), SCHEMA), "map takes a MapFunction"),
    "process, plain function": (lambda s: s.process(list, SCHEMA), "plain function: use flat_map"),
    "process without a type": (lambda s: s.process(Plain()), "process needs output_type"),
    "keyed process, not keyed": (
        lambda s: s.key_by("a").process(Plain(), SCHEMA),
        "takes a KeyedProcessFunction or a function, got Plain",
    ),
    "keyed process, a class": (lambda s: s.key_by("a").process(Keyed, SCHEMA), r"write Keyed\(\)"),
    "aggregate nothing": (lambda s: s.key_by("a").aggregate(), r"such as n=count\(\)"),
    "aggregate a name": (
        lambda s: s.key_by("a").aggregate(n="count"),
        r"n='count' is not an aggregate; use for example n=count\(\)",
    ),
    "aggregate a function": (lambda s: s.key_by("a").aggregate(n=count), "is not an aggregate"),
    "aggregate no column": (
        lambda s: s.key_by("a").aggregate(x=sum_of("nn")),
        r"x: there is no column 'nn'; the columns are \[",
    ),
    "aggregate the key": (
        lambda s: s.key_by("a").aggregate(a=count()),
        "'a' is the name of the key",
    ),
    "aggregate text": (
        lambda s: s.key_by("a").aggregate(x=sum_of("a")),
        "x: column 'a' of type string does not contain numbers",
    ),
    "reduce with a map": (lambda s: s.key_by("a").reduce(Same()), "reduce takes a ReduceFunction"),
    "key_by nothing": (lambda s: s.key_by(), "key_by needs at least one column"),
    "key_by unknown column": (
        lambda s: s.key_by("b"),
        r"no column 'b'; the columns are \['a', 'n'\]",
    ),
    "key_by one unknown": (lambda s: s.key_by("a", "b"), "no column 'b'"),
    "key_by a list": (lambda s: s.key_by(["a"]), "takes column names or a function, got list"),
    "key_by without a type": (lambda s: s.key_by(lambda r: r.a), "needs key_type=..., or a return"),
    "key_by a class": (lambda s: s.key_by(Key), r"write Key\(\)"),
    "key_by an opened selector": (lambda s: s.key_by(Opened()), "not opened; prepare it in its"),
    "key_by a typed column": (lambda s: s.key_by("a", key_type=str), "omit key_type"),
    "union with a list": (lambda s: s.union([s]), "union takes streams, got list"),
    "union of two types": (lambda s: s.union(s.map(str, str)), r"streams of one type, got .*map"),
    "union of two jobs": (
        lambda s: s.union(source(environment(), "s", SCHEMA)),
        "streams of the same environment",
    ),
    "sink_to a path": (lambda s: s.sink_to("/tmp/x"), r"a sink such as FileSink\(...\), got str"),
    "sink_to a class": (lambda s: s.sink_to(CollectSink), "got ABCMeta"),
    "an empty uid": (lambda s: s.uid(" "), "uid must not be empty"),
    "a uid that is a number": (lambda s: s.filter(bool).uid(3), "uid must be a string, got 3"),
    "a uid with a newline": (lambda s: s.filter(bool).uid("a\nb"), "not printable"),
    "an empty name": (lambda s: s.name(""), "name must be a non-empty string"),
    "parallelism 0": (lambda s: s.filter(bool).set_parallelism(0), "whole number above 0, got 0"),
    "parallelism True": (lambda s: s.filter(bool).set_parallelism(True), "got True"),
    "parallelism '2'": (lambda s: s.filter(bool).set_parallelism("2"), "got '2'"),
    "of a source": (lambda s: s.set_parallelism(2), "Spark sets the parallelism of a source"),
    "uid of key_by": (lambda s: s.key_by("a").uid("x"), "key_by is not an operator"),
    "name of key_by": (lambda s: s.key_by("a").name("x"), "key_by is not an operator"),
    "parallelism of key_by": (
        lambda s: s.key_by("a").set_parallelism(2),
        "key_by is not an operator",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(stream, case):
    call, message = WRONG[case]
    with pytest.raises(PlanError, match=message):
        call(stream)


def test_bad_types_are_unsupported_types(stream):
    for spec in (set, object, "a strin", 3, {"a": int}, list):
        with pytest.raises(UnsupportedTypeError):
            stream.map(str, spec)


def test_types_from_annotations(stream):
    assert stream.map(annotated).type == Types.MAP(Types.STRING(), Types.LONG())
    assert stream.map(Annotated()).type == Types.LONG()
    assert stream.map(Annotated(), str).type == Types.STRING()  # what is said wins
    assert stream.key_by(Key())._key.types == (Types.STRING(),)


def test_builtins_are_functions_too(stream):
    assert stream.map(str, str).filter(bool).key_by(len, key_type=int).reduce(max).type == (
        Types.STRING()
    )


def test_types_that_do_not_change(stream):
    for same in (
        stream.filter(bool),
        stream.key_by("a"),
        stream.key_by("a").reduce(Sum()),
        stream.union(stream),
        stream.map_batches(lambda b: b),
    ):
        assert same.type == stream.type


def test_the_type_of_an_aggregation(stream):
    def of(keyed):
        return keyed.aggregate(n=count(), m=mean_of("n")).type

    results = [Types.LONG(), Types.DOUBLE()]
    assert of(stream.key_by("a")) == Types.ROW_NAMED(["a", "n", "m"], [Types.STRING(), *results])
    by_function = stream.key_by(lambda row: row.n % 2, key_type=int)
    assert of(by_function) == Types.ROW_NAMED(["key", "n", "m"], [Types.LONG(), *results])


def test_an_aggregation_has_one_uid(stream):
    aggregated = stream.key_by("a").aggregate(x=count()).uid("mine").name("x")
    assert (aggregated._node.uid, aggregated._node.inputs[0].uid) == ("mine", "mine-combine")


def test_names_and_prints(stream, tmp_path):
    def double(row):
        return row

    named = [
        stream.map(double, SCHEMA),
        stream.map(lambda r: r, SCHEMA),
        stream.map(Same(), SCHEMA),
        stream.map(Same(), SCHEMA).name("mine"),
        stream.sink_to(FileSink(tmp_path)),
        stream.print("x"),
    ]
    assert [s._node.name for s in named] == [
        "double", "function", "Same", "mine", "FileSink", "print",
    ]  # fmt: skip


def test_methods_can_be_chained_in_any_order(stream):
    mapped = stream.map(Same(), SCHEMA).name("x").set_parallelism(3).uid("y")
    node = mapped._node
    assert (node.name, node.parallelism, node.uid) == ("x", 3, "y")
    sink = stream.sink_to(CollectSink()).uid("out").name("o").set_parallelism(1)
    assert (sink._node.uid, sink._node.parallelism) == ("out", 1)
    collected(mapped, "z")
