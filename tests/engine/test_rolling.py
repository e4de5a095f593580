"""Functions after key_by: they have the key's state; and rolling aggregates of a field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from turnback import (
    DataStream,
    KeyedStream,
    MapFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.functions import FilterFunction, FlatMapFunction
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source

SCHEMA = "k string, n bigint, word string"
ROWS = [("a", 3, "x"), ("b", 7, "y"), ("a", 1, "z"), ("a", 1, "w"), ("b", 9, "v")]


class Number(MapFunction):
    """Numbers the elements of each key; state by attribute."""

    count = ValueStateDescriptor("count", int)

    def map(self, value: Any) -> int:
        self.count.update((self.count.value() or 0) + 1)
        return int(self.count.value())


class Repeat(FlatMapFunction):
    """Gives an element as often as its key has come; state in open."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def flat_map(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return [value.word] * self.count.value()


class First(FilterFunction):
    seen = ValueStateDescriptor("seen", bool)

    def filter(self, value: Any) -> bool:
        is_first = self.seen.value() is None
        self.seen.update(True)
        return is_first


def keyed_functions(env: StreamExecutionEnvironment) -> None:
    keyed = source(env, "s", SCHEMA).key_by("k")
    for uid, stream in {
        "map": keyed.map(Number(), Types.LONG()),
        "flat": keyed.flat_map(Repeat(), Types.STRING()),
        "filter": keyed.filter(First()),
        "plain": keyed.filter(lambda row: row.n > 1).map(lambda row: row.n, int),
    }.items():
        assert type(stream) is DataStream, "as in PyFlink: what comes out has no key"
        stream.uid(uid).sink_to(DiscardSink()).uid(f"{uid}-out")


@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_functions_after_key_by_have_the_state_of_the_key(tmp_path: Path, after: int) -> None:
    with JobHarness(keyed_functions, tmp_path, parallelism=2) as job:
        job.push("s", *ROWS[:3])
        savepoint = job.savepoint()
        job.close()
        job.start(parallelism=after, start_from=savepoint)
        job.push("s", *ROWS[3:])
        job.checkpoint()
        assert sorted(job.output("map-out")) == [1, 1, 2, 2, 3]
        assert sorted(job.output("flat-out")) == [*"vv", *"www", "x", "y", *"zz"]
        assert sorted(job.output("filter-out")) == [("a", 3, "x"), ("b", 7, "y")]
        assert sorted(job.output("plain-out")) == [3, 7, 9]


def test_a_filter_passes_elements_on_as_they_came(tmp_path: Path) -> None:
    class Changes(FilterFunction):
        def filter(self, value: Any) -> bool:
            value.append(-1)
            return True

    def program(env: StreamExecutionEnvironment) -> None:
        lists = source(env, "s", Types.BASIC_ARRAY(Types.LONG()))
        kept = lists.key_by(len, key_type=int).filter(Changes()).uid("kept")
        kept.sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("s", [1], [2, 3])
        assert sorted(job.output("out")) == [[1], [2, 3]]


Roll = Callable[[KeyedStream], DataStream]
ROLLED: dict[str, tuple[Roll, list[Any]]] = {
    "sum by name": (
        lambda s: s.sum("n"),
        [("a", 3, "x"), ("a", 4, "x"), ("a", 5, "x"), ("b", 7, "y"), ("b", 16, "y")],
    ),
    "sum by number": (
        lambda s: s.sum(1),
        [("a", 3, "x"), ("a", 4, "x"), ("a", 5, "x"), ("b", 7, "y"), ("b", 16, "y")],
    ),
    "min": (
        lambda s: s.min("n"),
        [("a", 3, "x"), ("a", 1, "x"), ("a", 1, "x"), ("b", 7, "y"), ("b", 7, "y")],
    ),
    "max": (
        lambda s: s.max(2),
        [("a", 3, "x"), ("a", 3, "z"), ("a", 3, "z"), ("b", 7, "y"), ("b", 7, "y")],
    ),
    "min_by": (
        lambda s: s.min_by("n"),
        [("a", 3, "x"), ("a", 1, "z"), ("a", 1, "z"), ("b", 7, "y"), ("b", 7, "y")],
    ),
    "max_by": (
        lambda s: s.max_by("n"),
        [("a", 3, "x"), ("a", 3, "x"), ("a", 3, "x"), ("b", 7, "y"), ("b", 9, "v")],
    ),
}


@pytest.mark.parametrize("case", ROLLED)
def test_rolling_aggregates(tmp_path: Path, case: str) -> None:
    roll, wanted = ROLLED[case]

    def program(env: StreamExecutionEnvironment) -> None:
        rolled = roll(source(env, "s", SCHEMA).key_by("k"))
        rolled.uid("rolled").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("s", *ROWS[:2])
        job.push("s", *ROWS[2:])
        results = job.output("out")
        by_key = [row for key in "ab" for row in results if row[0] == key]
        assert by_key == wanted


@dataclass
class Price:
    item: str
    price: Decimal | None


def test_rolling_aggregates_of_other_elements_and_of_nulls(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        numbers = source(env, "numbers", Types.LONG())
        numbers.key_by(lambda n: n % 2, key_type=int).sum().uid("sum").sink_to(DiscardSink()).uid(
            "sum-out"
        )
        prices = source(env, "prices", Price).key_by("item")
        prices.sum("price").uid("total").sink_to(DiscardSink()).uid("total-out")
        prices.min_by("price").uid("least").sink_to(DiscardSink()).uid("least-out")

    with JobHarness(program, tmp_path) as job:
        job.push("numbers", 1, 2, 3)
        job.push("numbers", 5, 10)
        assert sorted(job.output("sum-out")) == [1, 2, 4, 9, 12]
        job.push("prices", Price("p", None), Price("p", Decimal("1.5")))
        job.push("prices", Price("p", None), Price("p", Decimal("0.5")))
        totals = [row.price for row in job.output("total-out")]
        assert totals == [None, Decimal("1.5"), Decimal("1.5"), Decimal("2.0")]
        least = [row.price for row in job.output("least-out")]
        assert least == [None, Decimal("1.5"), Decimal("1.5"), Decimal("0.5")]
