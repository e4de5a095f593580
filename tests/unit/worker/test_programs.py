"""Whole programs, level by level without Spark, against a plain Python model."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import LocalEngine, collected, environment, source
from turnback import (
    CollectSink,
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.functions import KeyedBatchFunction

SCHEMA = "k string, n bigint"
Elements = Counter[tuple[str, int]]


class Count(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, value, ctx):
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        key = ctx.get_current_key()
        yield key if isinstance(key, str) else repr(key), n


class CountBatches(KeyedBatchFunction):
    """`Count`, of whole batches."""

    count = ValueStateDescriptor("count", int)

    def process_batch(self, batch, state):
        keys, counts = state.keys.to_pylist(), state.read(self.count).fill_null(0).to_pylist()
        rows = []
        for i in state.index.tolist():
            counts[i] += 1
            rows.append({"k": keys[i], "n": counts[i]})
        state.write(self.count, counts)
        return pa.Table.from_pylist(rows)


# -- random programs


class Step(NamedTuple):
    kind: str
    inputs: tuple[int, ...]
    parallelism: int | None


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    steps = [Step("source", (), None)] * draw(st.integers(1, 2))
    keyed = ["by column", "by both", "by function", "batches"]
    kinds = ["map", "filter", "flat_map", *keyed, "union"]
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(kinds))
        one = st.integers(0, len(steps) - 1)
        inputs = draw(st.lists(one, min_size=2, max_size=3)) if kind == "union" else [draw(one)]
        parallelism = None if kind == "union" else draw(st.sampled_from([None, None, 1, 2, 3]))
        steps.append(Step(kind, tuple(inputs), parallelism))
    return steps


def build(env: StreamExecutionEnvironment, steps: list[Step]) -> list[DataStream]:
    streams: list[Any] = []
    for i, (kind, inputs, parallelism) in enumerate(steps):
        first = streams[inputs[0]] if inputs else None
        match kind:
            case "source":
                stream = source(env, f"op {i}", SCHEMA)
            case "map":
                stream = first.map(lambda r: (r.k, r.n + 1), SCHEMA)
            case "filter":
                stream = first.filter(lambda r: r.n % 2 == 0)
            case "flat_map":
                stream = first.flat_map(lambda r: [r, Row(r.k + "x", r.n)], SCHEMA)
            case "by column":
                stream = first.key_by("k").process(Count(), SCHEMA)
            case "batches":
                stream = first.key_by("k").process(CountBatches(), SCHEMA)
            case "by both":
                stream = first.key_by("n", "k").process(Count(), SCHEMA)
            case "by function":
                stream = first.key_by(lambda r: r.n % 3, key_type=int).process(Count(), SCHEMA)
            case "union":
                stream = first.union(*(streams[j] for j in inputs[1:]))
        if kind not in ("union", "source"):
            stream = stream.uid(f"op {i}")
        if parallelism is not None:
            stream = stream.set_parallelism(parallelism)
        streams.append(stream)
    return streams


class Model:
    """What a program should do."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self.counts: list[Counter[Any]] = [Counter() for _ in steps]

    def epoch(self, inputs: dict[int, list[tuple[str, int]]]) -> list[Elements]:
        out: list[Elements] = []
        for i, (kind, before, _) in enumerate(self.steps):
            given = sum((out[j] for j in before), Counter()) if before else Counter(inputs[i])
            out.append(Counter(self._run(i, kind, list(given.elements()))))
        return out

    def _run(self, i: int, kind: str, given: list[tuple[str, int]]) -> list[tuple[str, int]]:
        if kind == "map":
            return [(k, n + 1) for k, n in given]
        if kind == "filter":
            return [(k, n) for k, n in given if n % 2 == 0]
        if kind == "flat_map":
            return [pair for k, n in given for pair in ((k, n), (k + "x", n))]
        keys = {
            "by column": lambda k, _: k,
            "batches": lambda k, _: k,
            "by both": lambda k, n: repr((n, k)),
            "by function": lambda _, n: repr(n % 3),
        }.get(kind)
        if keys is None:
            return given
        result = []
        for k, n in given:
            key = keys(k, n)
            self.counts[i][key] += 1
            result.append((key, self.counts[i][key]))
        return result


batches = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), max_size=12)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(steps=programs(), data=st.data())
def test_random_programs_survive_rescaling_and_changes_of_backend(steps, data):
    model, files, number = Model(steps), (), 0
    sources = [i for i, step in enumerate(steps) if step.kind == "source"]
    with tempfile.TemporaryDirectory() as root:
        for attempt in range(1, 4):
            env = environment(data.draw(st.integers(1, 4))).set_max_parallelism(16)
            sinks = [collected(s, f"out {i}") for i, s in enumerate(build(env, steps))]
            engine = LocalEngine(
                env.plan(), Path(root), attempt=attempt, files=files, epoch=number,
                backend=data.draw(st.sampled_from(["rocksdb", "hashmap"])),
            )  # fmt: skip
            wanted = [Counter() for _ in steps]
            for _ in range(data.draw(st.integers(1, 2))):
                inputs = {i: data.draw(batches) for i in sources}
                for total, new in zip(wanted, model.epoch(inputs), strict=True):
                    total.update(new)
                engine.epoch({f"op {i}": rows for i, rows in inputs.items()})
            for i, (sink, expected) in enumerate(zip(sinks, wanted, strict=True)):
                assert Counter(map(tuple, sink.results)) == expected, f"op {i}: {steps[i]}"
            files, number = engine.file_index.live(), engine.number


# -- shapes by name


def run(plan, tmp_path, *epochs, **how) -> LocalEngine:
    engine = LocalEngine(plan, tmp_path, **how)
    for inputs in epochs:
        engine.epoch(inputs)
    return engine


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_a_diamond_with_an_edge_that_skips_levels(tmp_path, parallelism):
    env = environment(parallelism)
    stream = source(env, "s", SCHEMA)
    twice = stream.key_by("k").process(Count(), SCHEMA).key_by("n").process(Count(), SCHEMA)
    joined = twice.union(stream).key_by(lambda r: r.k, key_type=str).process(Count(), SCHEMA)
    sink = collected(joined, "out")
    plan = env.plan()
    assert len(plan.levels) == 4
    run(plan, tmp_path, {"s": [("a", 1), ("b", 1)]}, {"s": [("a", 2)]})
    assert Counter(map(tuple, sink.results)) == Counter(
        [("1", 1), ("1", 2), ("2", 1), ("a", 1), ("a", 2), ("b", 1)]
    )


def test_one_function_object_in_two_operators_of_one_level(tmp_path):
    """each operator has states of its own, so each needs a function of its own"""
    env, count = environment(2), Count()
    stream = source(env, "s", SCHEMA)
    by_k = collected(stream.key_by("k").process(count, SCHEMA), "by k")
    by_n = collected(stream.key_by("n").process(count, SCHEMA), "by n")
    run(env.plan(), tmp_path, {"s": [("a", 1), ("b", 1), ("a", 1)]})
    assert Counter(map(tuple, by_k.results)) == Counter([("a", 1), ("a", 2), ("b", 1)])
    assert Counter(map(tuple, by_n.results)) == Counter([("1", 1), ("1", 2), ("1", 3)])


class Named(NamedTuple):
    k: str
    n: int


@dataclass(frozen=True)
class Data:
    k: str
    n: int


def test_elements_are_what_their_stream_declares(tmp_path):
    """whether the reader is in the same level or behind a shuffle, and whatever the giver gave"""
    env = environment(1)
    stream = source(env, "s", SCHEMA)
    given = {
        "tuple": lambda r: (r.k, r.n),
        "list": lambda r: [r.k, r.n],
        "dict": lambda r: {"n": r.n, "k": r.k},
        "row": lambda r: Row(r.k, r.n),
        "object": lambda r: Data(r.k, r.n),
    }
    declared, sinks = {"Named": Named, "Data": Data, "Row": SCHEMA}, {}
    for form, give in given.items():
        for name, spec in declared.items():
            mapped = stream.map(give, spec)
            sinks[form, name, "chained"] = collected(
                mapped.map(lambda it: (kind_of(it), it.k), "kind string, k string"),
                f"{form} {name} chained",
            )
            sinks[form, name, "moved"] = collected(
                mapped.key_by("k").process(Kind(), "kind string, k string"), f"{form} {name} moved"
            )
    run(env.plan(), tmp_path, {"s": [("a", 1)]})
    for (_, name, _), sink in sinks.items():
        assert sink.results == [(name, "a")]


def kind_of(element):
    return "Row" if isinstance(element, Row) else type(element).__name__


def test_streams_of_a_union_come_as_the_first_of_them(tmp_path):
    env = environment(1)
    one = source(env, "one", Data)
    two = source(env, "two", Named)
    both = one.union(two)
    chained = collected(both.map(lambda d: type(d).__name__, str), "chained")
    moved = collected(both.key_by("k").process(Kind(), "kind string, k string"), "moved")
    run(env.plan(), tmp_path, {"one": [Data("a", 1)], "two": [Named("b", 2)]})
    assert chained.results == ["Data", "Data"]
    assert [row.kind for row in moved.results] == ["Data", "Data"]


class Kind(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield kind_of(value), value.k


def test_a_reduce_hands_out_what_is_declared(tmp_path):
    """in the epoch in which a value was set as in later ones"""
    env = environment(2)
    sink = CollectSink()
    stream = source(env, "s", SCHEMA)
    stream.key_by("k").reduce(lambda a, b: (a.k, a.n + b.n)).sink_to(sink)
    rows = [("a", 1), ("a", 2), ("a", 3)]
    run(env.plan(), tmp_path, {"s": rows}, {"s": rows}, source_tasks=1)
    assert sink.results == [("a", n) for n in (1, 3, 6, 7, 9, 12)]


class Gather(KeyedProcessFunction):
    def open(self, runtime_context):
        self.context = runtime_context
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", int))

    def process_element(self, value, ctx):
        self.seen.add(value.n)
        about = self.context
        yield (
            about.get_task_name(),
            about.get_operator_uid(),
            about.get_index_of_this_subtask(),
            about.get_number_of_parallel_subtasks(),
            about.get_max_number_of_parallel_subtasks(),
            list(self.seen.get()),
        )


def test_what_a_function_learns_about_itself(tmp_path):
    env = environment(3).set_max_parallelism(16)
    output = "name string, uid string, i int, of int, groups int, seen array<bigint>"
    stream = source(env, "s", SCHEMA).key_by("k").process(Gather(), output).name("g").uid("me")
    sink = collected(stream, "out")
    keys = [(k, 1) for k in "abcdefgh"]
    run(env.plan(), tmp_path, {"s": keys}, {"s": keys})
    assert {row[:2] for row in sink.results} == {("g", "me")}
    assert {row.i for row in sink.results} == {0, 1, 2}
    assert {(row.of, row.groups) for row in sink.results} == {(3, 16)}
    assert Counter(tuple(row.seen) for row in sink.results) == {(1,): 8, (1, 1): 8}
