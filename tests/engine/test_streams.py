"""Every kind of operator and every way to write a type, on real Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from job_support import COUNTED, Count, Jobs, counted
from turnback import (
    CollectSink,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    Row,
    Types,
    ValueStateDescriptor,
)
from turnback.functions import FilterFunction, FlatMapFunction, KeySelector, ReduceFunction


class Word(NamedTuple):
    word: str
    n: int


@dataclass
class Length:
    word: str
    length: int


class Double(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.factor = 2

    def map(self, value: Any) -> Any:
        return Word(value.word, value.n * self.factor)


class Split(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        return [Row(word, 1) for word in value.split()]


class LongWords(FilterFunction):
    def filter(self, value: Any) -> bool:
        return len(value.word) > 1


class FirstLetter(KeySelector):
    def get_key(self, value: Any) -> str:
        return value.word[0]


class Repeat(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.word == "c":
            return None  # nothing comes out
        assert ctx.timestamp() is None
        return [value] * value.n


class Add(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return Row(value1.word, value1.n + value2.n)


def test_operators_chained_before_any_shuffle(jobs: Jobs) -> None:
    """Function classes and plain functions, each reading what the one before declared."""
    env, sink = jobs.env(), CollectSink()
    (
        jobs.given(env, "lines", ["a bb", "bb c", ""], Types.STRING())
        .flat_map(Split(), Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()]))
        .map(lambda row: (row.word, row.n + 1), "word string, n bigint")
        .map(lambda row: {"n": row.n, "word": row.word}, Word)
        .map(Double(), Word)
        .process(Repeat(), "word string, n bigint")
        .filter(LongWords())
        .filter(lambda row: row["word"] != "zz" and row[1] == 4)
        .map(lambda row: Length(row.word, len(row.word)), Length)
        .map(lambda it: it.length + len(it.word), int)
        .map(lambda number: number * 10, Types.LONG())
        .sink_to(sink)
    )
    report = env.execute("job", bounded=True)
    assert sink.results == [40] * 8
    assert [e.records for e in report.epochs] == [3]


def test_types_of_what_comes_out(jobs: Jobs) -> None:
    """Elements arrive as what was declared, whichever way it was written."""
    env = jobs.env()
    schema = StructType([StructField("word", StringType()), StructField("n", LongType())])
    words = jobs.given(env, "words", [("a", 1), ("b", 2)], schema)
    specs = {
        "ddl": "word string, n bigint",
        "types": Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()]),
        "spark": schema,
        "named": Word,
        "data": Length,
        "tuple": Types.TUPLE([Types.STRING(), Types.LONG()]),
        "arrow": pa.schema([("word", pa.string()), ("n", pa.int64())]),
    }
    sinks = {}
    for name, spec in specs.items():
        sinks[name] = CollectSink()
        words.map(lambda row: (row.word, row.n), spec).key_by(
            lambda it: it[0] if isinstance(it, tuple) else it.word, key_type=str
        ).process(Kinds(), "kind string, first string, n bigint").sink_to(sinks[name])
        words.map(lambda row: (row.word, row.n), spec).sink_to(sink := CollectSink())
        sinks[f"{name} as it is"] = sink
    env.execute("job", bounded=True)
    kinds = {name: {row.kind for row in sinks[name].results} for name in specs}
    assert kinds == {
        "ddl": {"Row"},
        "types": {"Row"},
        "spark": {"Row"},
        "named": {"Word"},
        "data": {"Length"},
        "tuple": {"tuple"},
        "arrow": {"Row"},
    }
    for name in specs:
        assert sorted(r[1:] for r in sinks[name].results) == [("a", 1), ("b", 2)]
    assert sorted(sinks["named as it is"].results) == [Word("a", 1), Word("b", 2)]
    assert Length("a", 1) in sinks["data as it is"].results


class Kinds(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        named = {Word: "Word", Length: "Length", tuple: "tuple"}
        names = {cls.__name__: label for cls, label in named.items()}
        first, n = (value.word, value.length) if hasattr(value, "length") else value
        kind = "Row" if isinstance(value, Row) else names[type(value).__name__]
        yield kind, first, n


def test_keys(jobs: Jobs) -> None:
    """Columns, several columns, functions, annotated functions and selectors."""

    def initial(value: Any) -> str:
        return value.word[0]

    env = jobs.env(parallelism=3)
    data = [("ab", 1), ("ac", 1), ("bb", 2), ("ab", 2), ("ab", 1)]
    words = jobs.given(env, "words", data, Word)
    streams = {
        "column": words.key_by("word"),
        "columns": words.key_by("word", "n"),
        "function": words.key_by(lambda v: v.n, key_type=Types.LONG()),
        "positional": words.key_by(lambda v: v.n, Types.LONG()),
        "annotated": words.key_by(initial),
        "selector": words.key_by(FirstLetter()),
        "tuple": words.key_by(lambda v: (v.n, v.word), key_type=tuple[int, str]),
        "again": words.key_by("n").key_by("word"),
    }
    for name, stream in streams.items():
        counted_keys = stream.process(CountAs(), COUNTED).uid(name)
        counted_keys.sink_to(jobs.sink(name)).uid(f"{name} out")
    env.execute("job", bounded=True)
    assert jobs.out("column") == jobs.out("again") == counted(w for w, _ in data)
    assert jobs.out("columns") == counted(repr(pair) for pair in data)
    assert jobs.out("function") == jobs.out("positional") == counted(str(n) for _, n in data)
    assert jobs.out("annotated") == jobs.out("selector") == counted(w[0] for w, _ in data)
    assert jobs.out("tuple") == counted(repr((n, w)) for w, n in data)


class CountAs(KeyedProcessFunction):
    """Counts, and shows keys as text."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        key = ctx.get_current_key()
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        return [(key if isinstance(key, str) else repr(tuple(key)) if isinstance(key, tuple)
                 else repr(key), n)]  # fmt: skip


def test_reduce_union_and_scalars(jobs: Jobs) -> None:
    env = jobs.env()
    one = jobs.given(env, "one", [("a", 1), ("b", 10)], Word)
    two = jobs.given(env, "two", [("a", 2), ("a", 3)], Word)
    numbers = jobs.given(env, "numbers", [3, 1, 3], int)
    one.union(two).key_by("word").reduce(Add()).sink_to(jobs.sink("sums"))
    one.union(one, two, one).sink_to(jobs.sink("four"))
    doubled = one.union(one)
    doubled.key_by("word").process(Count(), COUNTED).sink_to(jobs.sink("twice"))
    numbers.union(numbers.map(lambda n: n + 1, int)).key_by("value").reduce(
        lambda a, b: a + b
    ).sink_to(jobs.sink("scalars"))
    numbers.key_by(lambda n: n % 2 == 0, key_type=bool).reduce(max).sink_to(jobs.sink("most"))
    env.execute("job", bounded=True)
    assert sorted(jobs.out("sums"))[-1] == ("b", 10)
    # The order of two sources is open, that of one is not.
    assert sorted(n for word, n in jobs.out("sums") if word == "a")[-1] == 6
    assert jobs.out("four") == sorted([("a", 1), ("b", 10)] * 3 + [("a", 2), ("a", 3)])
    assert jobs.out("twice") == counted("aabb")
    assert jobs.out("scalars") == [1, 2, 3, 4, 6, 8]
    assert jobs.out("most") == [3, 3, 3]


def test_map_batches(jobs: Jobs) -> None:
    env = jobs.env()
    words = jobs.given(env, "words", [("a", 1), ("b", 2), ("c", 3)], Word)

    def even(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 0))

    def several(batch: pa.RecordBatch) -> Any:
        yield pa.table({"length": pc.utf8_length(batch["word"]), "word": batch["word"]})
        yield batch.rename_columns(["word", "length"])

    words.map_batches(even).map(lambda w: w.word, str).sink_to(jobs.sink("even"))
    words.map_batches(several, "word string, length bigint").sink_to(jobs.sink("several"))
    words.map_batches(lambda batch: None).sink_to(jobs.sink("none"))
    words.map(lambda w: w.n, int).map_batches(
        lambda batch: pa.record_batch({"value": pc.multiply(batch["value"], 2)})
    ).key_by("value").process(CountAs(), COUNTED).sink_to(jobs.sink("scalar"))
    env.execute("job", bounded=True)
    assert jobs.out("even") == ["b"]
    assert jobs.out("several") == [("a", 1), ("a", 1), ("b", 1), ("b", 2), ("c", 1), ("c", 3)]
    assert jobs.out("none") == []
    assert jobs.out("scalar") == counted(["2", "4", "6"])


@pytest.mark.parametrize("key", ["count", "Ä.`x` ,;{}()"])
def test_odd_column_names(jobs: Jobs, key: str) -> None:
    env = jobs.env()
    rows = [{key: "x", "index": 1, "KEY_": 2}, {key: "x", "index": 3, "KEY_": 4}]
    quoted = "`" + key.replace("`", "``") + "`"
    stream = jobs.given(env, "rows", rows, f"{quoted} string, index bigint, KEY_ bigint")
    stream.key_by(key).process(Count(), COUNTED).sink_to(jobs.sink())
    stream.map(lambda row: (row["index"], row.KEY_), "a bigint, A bigint").key_by("A").reduce(
        lambda a, b: (a.a + b.a, a.A)
    ).sink_to(jobs.sink("case"))
    env.execute("job", bounded=True)
    assert jobs.out() == [("x", 1), ("x", 2)]
    assert jobs.out("case") == [(1, 2), (3, 4)]
