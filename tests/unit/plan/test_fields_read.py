"""Columns that nobody reads are not read from the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import (
    DataStream,
    KeyedProcessFunction,
    ProcessFunction,
    TimestampAssigner,
    WatermarkStrategy,
    count,
    sum_of,
)
from turnback.errors import PlanError
from turnback.functions import KeyedBatchFunction
from turnback.plan.planner import fields_read
from turnback.sinks import DiscardSink

NAMES = ("a", "b", "c")


class Methods:
    def fields(self, value: Any, ctx: Any) -> Iterator[Any]:
        total = value.a + value.b.real
        if total:
            yield value.a.upper(), f"{value.b!r}", ctx

    def handed_on(self, value: Any, ctx: Any) -> Any:
        return self.fields(value, ctx)

    def closure(self, value: Any, ctx: Any) -> Any:
        return (lambda: value.a)()

    def comprehension(self, value: Any, ctx: Any) -> Any:
        return [value.a + n for n in range(3)]

    def bound_anew(self, value: Any, ctx: Any) -> Any:
        value = ctx or value.a
        yield value

    def deleted(self, value: Any, ctx: Any) -> Any:
        del value

    def truth(self, value: Any, ctx: Any) -> Any:
        return value.a if value else None

    def matched(self, value: Any, ctx: Any) -> Any:
        match value:
            case (a, _, _):
                return a

    def method(self, value: Any, ctx: Any) -> Any:
        return value.as_dict()["a"]

    def looked_up(self, value: Any, ctx: Any) -> Any:
        return getattr(value, "a")  # noqa: B009 - what is read cannot be seen

    def all_of_them(self, *values: Any) -> Any:
        return values

    def all_locals(self, value: Any, ctx: Any) -> Any:
        return value.a, locals()


def test_fields_of_plain_functions() -> None:
    methods = Methods()
    assert fields_read(methods.fields, NAMES) == {"a", "b"}
    assert fields_read(lambda row: row.a + row.c, NAMES) == {"a", "c"}
    assert fields_read(lambda row, n=1: (n, row.a), NAMES) == {"a"}
    assert fields_read(lambda row: 1, NAMES) == set()


@pytest.mark.parametrize("name", [n for n in vars(Methods) if n[0] != "_" and n != "fields"])
def test_functions_that_may_read_anything(name: str) -> None:
    assert fields_read(getattr(Methods(), name), NAMES) is None


@pytest.mark.parametrize(
    "function",
    [
        len, partial(lambda row: row.a), Methods, None, lambda: 1, lambda row: row[0],
        lambda row: row, lambda row: row.d, lambda row: (row.a, row),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_into(function: Any) -> None:
    assert fields_read(function, NAMES) is None


class Count(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.b, 1


class WithTimers(Count):
    def on_timer(self, timestamp: int, ctx: Any) -> None:
        return None


class Plain(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.c


class Whole(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


class Batches(KeyedBatchFunction):
    def __init__(self, columns: Sequence[str] | None) -> None:
        self.columns = columns

    def process_batch(self, batch: Any, state: Any) -> Any:
        return None


ROW = "a string, b bigint, c double, d string"


class Named(NamedTuple):
    a: str
    b: int


def read(*readers: Any, schema: Any = ROW) -> list[str]:
    """The columns that are read for some readers."""
    env = environment()
    stream = source(env, "s", schema)
    for number, reader in enumerate(readers):
        reader(stream).uid(f"r{number}").sink_to(DiscardSink()).uid(f"out{number}")
    (planned,) = env.plan().sources
    return list(planned.read.names)  # type: ignore[attr-defined]


def keyed(function: Any, *key: Any, **how: Any) -> Any:
    return lambda stream: stream.key_by(*key, **how).process(function, "string")


def by_lambda(stream: DataStream) -> DataStream:
    return stream.key_by(lambda row: row.d, key_type="string").process(Count(), "string")


def test_only_what_is_needed_is_read() -> None:
    mapped = lambda stream: stream.map(lambda row: row.c, "double")  # noqa: E731
    assert read(keyed(Count(), "a")) == ["a", "b"]
    assert read(mapped) == ["c"]
    assert read(mapped, keyed(Count(), "a")) == ["a", "b", "c"]
    assert read(lambda s: s.process(Plain(), "double")) == ["c"]
    assert read(by_lambda) == ["b", "d"]
    assert read(lambda s: s.key_by("a").aggregate(n=count(), total=sum_of("b"))) == ["a", "b"]
    assert read(keyed(Batches(["c"]), "a")) == ["a", "c"]
    assert read(keyed(Batches([]), "a")) == ["a"]
    assert read(lambda s: s.map(lambda row: 1, "bigint")) == ["a"], "one column there must be"


def stamped(stream: DataStream, assigner: Any = "d") -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    return stream.assign_timestamps_and_watermarks(strategy).uid("time")


class FromC(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value.c)


def test_operators_that_pass_elements_on() -> None:
    rows = "a string, b bigint, c double, d bigint"
    mapped = lambda stream: stream.map(lambda row: row.a, "string")  # noqa: E731
    filtered = lambda stream: stream.filter(lambda row: row.b).uid("filter")  # noqa: E731
    assert read(lambda s: mapped(filtered(s))) == ["a", "b"]
    assert read(lambda s: mapped(stamped(filtered(s))), schema=rows) == ["a", "b", "d"]
    assert read(lambda s: mapped(stamped(s, FromC())), schema=rows) == ["a", "c"]
    assert read(filtered) == ["a", "b", "c", "d"], "a sink reads them all"
    whole = lambda stream: stream.process(Whole(), rows)  # noqa: E731
    assert read(lambda s: whole(stamped(s)), schema=rows) == ["a", "b", "c", "d"]


def test_results_are_the_same(tmp_path: Path) -> None:
    env = environment()
    stream = stamped(source(env, "s", "a string, b bigint, c double, d bigint"))
    kept = stream.filter(lambda row: row.b != 2).uid("kept")
    sink = collected(kept.key_by("a").process(Count(), "b bigint, n bigint").uid("count"), "out")
    plan = env.plan()
    assert [len(op.type.names) for op in plan.operators() if op.uid in ("time", "kept")] == [2, 2]
    engine = LocalEngine(plan, tmp_path)
    engine.epoch({"s": [("x", n, 0.5, n) for n in range(4)]})
    engine.levels.close()
    assert sorted(sink.results) == [(0, 1), (1, 1), (3, 1)]


def test_everything_is_read_if_anyone_may_need_it() -> None:
    everything = ["a", "b", "c", "d"]
    assert read(keyed(WithTimers(), "a")) == everything
    assert read(keyed(Batches(None), "a")) == everything
    assert read(lambda s: s.process(Whole(), ROW)) == everything
    assert read(lambda s: s.process(Whole(), ROW), keyed(Count(), "a")) == everything
    assert read(lambda s: s.key_by("a").reduce(lambda one, other: one)) == everything
    assert read(lambda s: s.union(s).map(lambda row: row.a, "string")) == everything
    assert (
        read(lambda s: s.key_by(repr, key_type="string").process(Count(), "string")) == everything
    )
    assert read(lambda s: s.map(lambda row: row.a, "string"), schema=Named) == ["a", "b"]


def test_columns_that_are_not_there() -> None:
    with pytest.raises(
        PlanError,
        match=r"'r0'.*reads the column 'x', which does not exist; the columns are \['a', 'b', 'c'",
    ):
        read(keyed(Batches(["a", "x"]), "a"))
