"""Functions over whole batches: when they are called, and what becomes of their output."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from turnback.errors import (
    ElementTypeError,
    PlanError,
    StateError,
    UserFunctionError,
)
from turnback.functions import KeyedBatchFunction
from turnback.values.columns import Batch
from turnback.values.hints import as_type
from turnback.worker import runners as batch_runners
from turnback.worker.event_time import EpochTime

SCHEMA = "k string, n bigint"
CALLS: list[tuple[list[int], list[str], list[int]]] = []


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


class Sum(KeyedBatchFunction):
    """The sum of each key after a batch."""

    sum = ValueStateDescriptor("sum", int)

    def process_batch(self, batch, state):
        CALLS.append((batch["n"].to_pylist(), state.keys.to_pylist(), state.index.tolist()))
        new = np.bincount(state.index, batch["n"]).astype(np.int64)
        sums = pc.fill_null(state.read(self.sum), 0).to_numpy() + new
        state.write(self.sum, sums)
        return pa.table({"k": state.keys, "n": sums})


def keyed_by(*key, schema=SCHEMA, parallelism=1, **how):
    env = environment(parallelism)
    return env, source(env, "s", schema).key_by(*key, **how)


def sums(tmp_path, *epochs, parallelism=1, **how):
    env, keyed = keyed_by("k", parallelism=parallelism)
    sink = collected(keyed.process(Sum(), SCHEMA).uid("sum"), "out")
    engine = LocalEngine(env.plan(), tmp_path, **how)
    for rows in epochs:
        engine.epoch({"s": rows})
    return list(map(tuple, sink.results)), engine


# -- when it is called, with what


def test_an_epoch_is_one_batch_whatever_pieces_it_came_in(tmp_path):
    rows = [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("c", 5)]
    out, _ = sums(tmp_path, rows, [("b", 6)], source_tasks=5)
    assert CALLS == [
        ([1, 2, 3, 4, 5], ["a", "b", "c"], [0, 1, 0, 0, 2]),
        ([6], ["b"], [0]),
    ]
    assert out == [("a", 8), ("b", 2), ("c", 5), ("b", 8)]


def test_it_is_not_called_without_elements(tmp_path):
    out, engine = sums(tmp_path, [], [("a", 1)], [], parallelism=3)
    assert len(CALLS) == 1
    assert out == [("a", 1)]
    assert engine.number == 3


@pytest.mark.parametrize(("bound", "most"), [("MOST_ROWS", 2), ("MOST_BYTES", 34)])
def test_a_batch_is_cut_where_it_would_take_too_much_memory(tmp_path, monkeypatch, bound, most):
    monkeypatch.setattr(batch_runners, bound, most)
    rows = [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("c", 5)]
    out, engine = sums(tmp_path, rows, source_tasks=5)
    assert [n for numbers, _, _ in CALLS for n in numbers] == [1, 2, 3, 4, 5]
    assert [len(numbers) for numbers, _, _ in CALLS] == [2, 2, 1]
    assert out == [("a", 1), ("b", 2), ("a", 8), ("c", 5)]  # each call sees what others wrote
    assert engine.acks.acks[0].records["sum"] == (5, 4)


def test_a_piece_larger_than_the_bound_comes_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_runners, "MOST_ROWS", 2)
    sums(tmp_path, [("a", n) for n in range(9)], source_tasks=3)
    assert [len(numbers) for numbers, _, _ in CALLS] == [3, 3, 3]


def test_what_a_failed_epoch_gathered_is_forgotten(tmp_path):
    env, keyed = keyed_by("k")
    collected(keyed.process(Sum(), SCHEMA).uid("sum"), "out")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=1)
    engine.epoch({"s": [("a", 1)]})
    (instance,) = engine.levels._instances.values()
    channel = instance.program.input.channels[0].id
    data = pa.record_batch({"k": ["a"], "n": [100]})

    def breaks_off():
        yield instance.program.input.pack(channel, Batch(as_type(SCHEMA), data), None)
        raise ConnectionError("Spark went away")

    with pytest.raises(ConnectionError):
        list(instance.run(engine._command(0, EpochTime()), engine.acks.acks[0].name, breaks_off()))
    engine.epoch({"s": [("a", 2)]})
    assert CALLS[-1] == ([2], ["a"], [0])


# -- where its output goes


def test_output_flows_on_in_its_level_and_over_shuffles(tmp_path):
    env, keyed = keyed_by("k", parallelism=2)
    totals = keyed.process(Sum(), SCHEMA).uid("sum")
    chained = collected(totals.map(lambda r: (r.k * 2, r.n), SCHEMA).uid("map"), "chained")
    again = totals.key_by("n").process(Sum(), SCHEMA.replace("string", "bigint")).uid("again")
    moved = collected(again, "moved")
    engine = LocalEngine(env.plan(), tmp_path)
    assert len(engine.plan.levels) == 2
    engine.epoch({"s": [("a", 1), ("b", 1), ("a", 1), ("c", 2)]})
    engine.epoch({"s": []})
    assert sorted(map(tuple, chained.results)) == [("aa", 2), ("bb", 1), ("cc", 2)]
    assert sorted(map(tuple, moved.results)) == [(1, 1), (2, 4)]
    engine.epoch({"s": [("a", 1)]})
    records = engine.acks.records()
    assert {uid: records[uid] for uid in ("sum", "map", "again")} == dict.fromkeys(
        ("sum", "map", "again"), (1, 1)
    )


class Gives(KeyedBatchFunction):
    def __init__(self, give):
        self.give = give

    def process_batch(self, batch, state):
        return self.give(batch)


def given_by(tmp_path, give, rows=(("a", 1), ("b", 2))):
    env, keyed = keyed_by("k")
    sink = collected(keyed.process(Gives(give), SCHEMA).uid("gives"), "out")
    LocalEngine(env.plan(), tmp_path, source_tasks=1).epoch({"s": list(rows)})
    return list(map(tuple, sink.results))


@pytest.mark.parametrize(
    "give",
    [
        lambda b: b,
        lambda b: pa.table(b),
        lambda b: b.select(["n", "k"]),
        lambda b: [b[:1], None, pa.table(b[1:])],
        lambda b: (b[i : i + 1] for i in range(len(b))),
        lambda b: pa.table({"k": b["k"], "n": b["n"].cast(pa.int8())}),
    ],
)
def test_what_it_may_give(tmp_path, give):
    assert given_by(tmp_path, give) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("give", [lambda b: None, lambda b: b[:0], lambda b: []])
def test_it_may_give_nothing(tmp_path, give):
    assert given_by(tmp_path, give) == []


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda b: b.select(["k"]), r"got \['k'\], expected the columns \['k', 'n'\]"),
        (lambda b: pa.table({"k": ["x"], "n": ["y"]}), "Failed to parse string"),
        (lambda b: [("a", 1)], r"got \('a', 1\), expected the columns"),
    ],
)
def test_what_it_must_not_give(tmp_path, give, message):
    wanted = rf"(?s)operator 'gives' \(Gives\): process_batch must return Arrow .*{message}"
    with pytest.raises(ElementTypeError, match=wanted):
        given_by(tmp_path, give)


def test_an_error_names_operator_line_and_number_of_elements(tmp_path):
    with pytest.raises(UserFunctionError) as caught:
        given_by(tmp_path, lambda b: b["k"][0].as_py() / 0)
    text = str(caught.value)
    assert text.startswith("operator 'gives' (Gives) failed: TypeError")
    assert "batch_of: '2 elements'" in text
    assert 'b["k"][0].as_py() / 0' in text


def test_an_error_in_a_generator_is_the_users_too(tmp_path):
    def give(batch):
        yield batch
        raise KeyError("late")

    with pytest.raises(UserFunctionError, match=r"'gives'.*KeyError"):
        given_by(tmp_path, give)


# -- state it cannot have


class WithList(Gives):
    seen = ListStateDescriptor("seen", int)


class WithMap(Gives):
    seen = MapStateDescriptor("seen", str, int)


@pytest.mark.parametrize(("function", "kind"), [(WithList, "list"), (WithMap, "map")])
def test_state_without_a_column_is_refused_before_anything_runs(function, kind):
    env, keyed = keyed_by("k")
    collected(keyed.process(function(None), SCHEMA).uid("op"), "out")
    with pytest.raises(PlanError, match=rf"'op' .*the {kind} state 'seen'.*KeyedProcessFunction"):
        env.plan()


class InOpen(KeyedBatchFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", str, int))

    def process_batch(self, batch, state):
        state.read(self.seen)


class OneByOne(KeyedBatchFunction):
    sum = ValueStateDescriptor("sum", int)

    def process_batch(self, batch, state):
        self.sum.update(1 if self.sum.value() is None else 2)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (InOpen(), "'op': process_batch reads and writes value, reducing and aggregating state"),
        (OneByOne(), "'op' was used without a current key.*process_batch, use its read and write"),
    ],
)
def test_state_used_in_a_way_that_does_not_work(tmp_path, function, message):
    env, keyed = keyed_by("k")
    collected(keyed.process(function, SCHEMA).uid("op"), "out")
    with pytest.raises((UserFunctionError, StateError), match=f"(?s){message}"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": [("a", 1)]})
