"""The distinct keys of a batch, and that they are those of functions per element."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import KeyedProcessFunction, Types, ValueStateDescriptor
from turnback.errors import ElementTypeError, NullKeyError
from turnback.functions import KeyedBatchFunction

pytestmark = pytest.mark.slow

SCHEMA = "k string, n bigint"


def keyed_by(*key, schema=SCHEMA, parallelism=1, **how):
    env = environment(parallelism)
    return env, source(env, "s", schema).key_by(*key, **how)


class Sum(KeyedBatchFunction):
    """The keys of a batch as they come, with the sum of each."""

    def process_batch(self, batch, state):
        assert state.index.dtype == np.intp
        sums = np.bincount(state.index, batch["n"])
        return pa.table({"k": state.keys, "n": sums.astype(np.int64)})


@pytest.mark.parametrize("key", ["k", lambda row: row.k])
def test_a_null_key_is_refused(tmp_path, key):
    how = {} if isinstance(key, str) else {"key_type": str}
    env, keyed = keyed_by(key, **how)
    collected(keyed.process(Sum(), SCHEMA).uid("sum"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    with pytest.raises(NullKeyError, match=r"operator 'sum': .*null for an element; filter such"):
        engine.epoch({"s": [("a", 1), (None, 2)]})


def test_a_key_of_several_columns_is_a_struct(tmp_path):
    env = environment(1)
    stream = source(env, "s", "k string, g int, n bigint")
    summed = stream.key_by("g", "k").process(Sum(), "k struct<g: int, k: string>, n bigint")
    sink = collected(summed, "out")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=1)
    engine.epoch({"s": [("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("b", 1, 4), ("a", 1, 5)]})
    found = [(row.k.g, row.k.k, row.n) for row in sink.results]
    assert found == [(1, "a", 6), (1, "b", 6), (2, "a", 3)]


def test_three_columns_of_many_values(tmp_path):
    """every combination is one key, none is taken for another"""
    env = environment(1)
    stream = source(env, "s", "a int, b int, c int, n bigint")
    kind = "k struct<a: int, b: int, c: int>, n bigint"
    sink = collected(stream.key_by("a", "b", "c").process(Sum(), kind), "out")
    rows = [(a, b, c, 1) for a in range(7) for b in range(11) for c in range(13)]
    LocalEngine(env.plan(), tmp_path, source_tasks=1).epoch({"s": rows + rows[::-1]})
    assert [(*row.k, row.n) for row in sink.results] == [(a, b, c, 2) for a, b, c, _ in rows]


@dataclass(eq=False)
class Place:
    name: str
    number: int


class Read(KeyedProcessFunction):
    sum = ValueStateDescriptor("sum", int)

    def process_element(self, value, ctx):
        yield repr(ctx.get_current_key()), self.sum.value()


class Add(KeyedProcessFunction):
    sum = ValueStateDescriptor("sum", int)

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value.n)


class AddBatch(KeyedBatchFunction):
    sum = ValueStateDescriptor("sum", int)

    def process_batch(self, batch, state):
        new = np.bincount(state.index, batch["n"]).astype(np.int64)
        state.write(self.sum, pc.add(pc.fill_null(state.read(self.sum), 0), new))


COLUMNS = {
    "string": (Types.STRING(), ["", "a", "A", "é", "a\0"]),
    "binary": (Types.BYTES(), [b"", b"a", b"\0"]),
    "boolean": (Types.BOOLEAN(), [True, False]),
    "byte": (Types.BYTE(), [-128, 0, 1, 127]),
    "long": (Types.LONG(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "big int": (Types.BIG_INT(), [-(10**37), 0, 1]),
    "decimal": (Types.BIG_DEC(10, 2), [Decimal(text) for text in ("1", "1.00", "-0.0", "0")]),
    "date": (Types.SQL_DATE(), [date(1, 1, 1), date(2024, 2, 29)]),
    "time": (Types.SQL_TIME(), [time(0), time(23, 59, 59, 999_999)]),
    "timestamp": (Types.SQL_TIMESTAMP(), [datetime(1969, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)]),
    "instant": (Types.INSTANT(), [datetime(2021, 11, 7, h, tzinfo=UTC) for h in (4, 5, 6)]),
    "struct": (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()]), [(1, "a"), (2, "a")]),
}
FUNCTIONS = {
    "number": (lambda row: len(row.k), int),
    "object": (lambda row: Place("x", len(row.k)), Place),
    "instant": (lambda row: datetime(2024, 1, len(row.k), tzinfo=UTC), datetime),
}
CHANGES = [(Add, AddBatch), (AddBatch, Add), (AddBatch, AddBatch)]
"""What is tried beside functions per element."""


def read_back(root, functions, kind, rows, *key, **how):
    """The state of every key that functions have made, one after the other, rescaled each time."""
    files, number = (), 0
    for attempt, function in enumerate((*functions, Read), 1):
        schema = Types.ROW_NAMED(["k", "n"], [kind, Types.LONG()])
        env, keyed = keyed_by(*key, schema=schema, parallelism=attempt, **how)
        sink = collected(keyed.process(function(), "k string, n bigint").uid("op"), "out")
        engine = LocalEngine(env.plan(), root, attempt=attempt, files=files, epoch=number)
        engine.epoch({"s": rows})
        files, number = engine.file_index.live(), engine.number
    found = sorted(map(tuple, sink.results))
    assert len(set(found)) > 1
    return found


def assert_same_keys(root, *arguments, **how):
    """Whichever functions come after each other, they find the state that the others have left."""
    expected = read_back(root / "expected", (Add, Add), *arguments, **how)
    for number, functions in enumerate(CHANGES):
        assert read_back(root / str(number), functions, *arguments, **how) == expected, functions


@pytest.mark.parametrize(
    "key", [("k",), pytest.param(("k", "n"), marks=pytest.mark.slow)], ids=["one", "two"]
)
@pytest.mark.parametrize("case", COLUMNS)
def test_state_lies_under_the_same_keys_as_that_of_a_function_per_element(tmp_path, case, key):
    kind, values = COLUMNS[case]
    rows = [(value, n % 3) for n, value in enumerate(values * 4)]
    assert_same_keys(tmp_path, kind, rows, *key)


@pytest.mark.parametrize("case", FUNCTIONS)
def test_so_it_does_when_a_function_gives_the_keys(tmp_path, case):
    key, key_type = FUNCTIONS[case]
    rows = [("x" * (1 + n % 3), n) for n in range(9)]
    assert_same_keys(tmp_path, Types.STRING(), rows, key, key_type=key_type)


def test_a_key_that_no_column_holds_is_named(tmp_path):
    env, keyed = keyed_by(lambda row: 10**40, key_type=Types.BIG_INT())
    collected(keyed.process(Sum(), SCHEMA).uid("sum"), "out")
    with pytest.raises(ElementTypeError, match=r"operator 'sum': .*at most 38 digits"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": [("a", 1)]})
