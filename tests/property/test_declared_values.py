"""A value is what its declared type says, from the moment it leaves a function.

The same elements through the same functions, chained or with shuffles in between, with one task or
several, in one epoch or many: what functions see, and what state gives back, must be equal, down to
the class of each value.
"""

from __future__ import annotations

import enum
import tempfile
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import LocalEngine, collected, environment, source
from tiers import examples
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    Row,
    Types,
    ValueStateDescriptor,
)
from turnback.errors import TurnbackError
from turnback.values.typeinfo import RowTypeInfo, TypeInfo


class Text(str):
    """Text of a class of its own."""

    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


BERLIN = timezone(timedelta(hours=2))
NAIVE = datetime(2020, 10, 25, 2, 30, 1, 2)
INTEGERS = [0, -5, True, Number.ONE, np.int64(7), 200, 2**31, 2**63 - 1, 2**63, 1.5, "1"]
FLOATS = [0.5, 0.1, 3, 2**53 + 1, True, np.float32(0.1), float("inf"), -0.0, 1e300, "1"]
TIMES = [time(1, 2, 3, 4), time(1, 2, fold=1), time(1, tzinfo=UTC), NAIVE]
MOMENTS = [
    NAIVE,
    NAIVE.replace(fold=1),
    NAIVE.replace(tzinfo=UTC),
    NAIVE.replace(tzinfo=UTC, fold=1),
    NAIVE.replace(tzinfo=BERLIN),
    date(2020, 1, 1),
]
DECIMALS = [Decimal("1.1"), Decimal("-0"), Decimal("1E+2"), Decimal("1.123"), Decimal(10**8), 3]
VALUES: list[tuple[TypeInfo, list[Any]]] = [
    (Types.STRING(), ["a", "ä", "", Text("t"), "\ud83d", b"b", 1]),
    (Types.BYTES(), [b"a", bytearray(b"b"), "d"]),
    (Types.BOOLEAN(), [True, np.True_, 1, 0]),
    (Types.BYTE(), INTEGERS),
    (Types.SHORT(), INTEGERS),
    (Types.INT(), INTEGERS),
    (Types.LONG(), INTEGERS),
    (Types.BIG_INT(), [*INTEGERS, 10**37, -(10**37)]),
    (Types.FLOAT(), FLOATS),
    (Types.DOUBLE(), FLOATS),
    (Types.SQL_DATE(), [date(2020, 1, 1), NAIVE, "2020-01-01"]),
    (Types.SQL_TIME(), TIMES),
    (Types.SQL_TIMESTAMP(), MOMENTS),
    (Types.INSTANT(), MOMENTS),
    (Types.BIG_DEC(10, 2), DECIMALS),
    (Types.BIG_DEC(), DECIMALS),
]


class Pair(NamedTuple):
    """What rows may be declared as."""

    a: Any
    b: Any


@st.composite
def cases(draw: st.DrawFn) -> tuple[TypeInfo, list[Any]]:
    """A type, and some values that are meant for it."""
    type_, values = draw(st.sampled_from(VALUES))
    some = st.sampled_from([*values, None])
    shape = draw(st.sampled_from(["scalar", "row", "tuple", "class"]))
    if shape == "scalar":
        return type_, draw(st.lists(some, min_size=1, max_size=4))
    other, others = draw(st.sampled_from(VALUES))
    rows: Any = st.tuples(some, st.sampled_from([*others, None]))
    forms = st.sampled_from([tuple, lambda row: Row(*row), lambda row: Row(a=row[0], b=row[1])])
    given_rows = draw(
        st.lists(st.tuples(rows, forms).map(lambda pair: pair[1](pair[0])), min_size=1, max_size=4)
    )
    cls = {"row": None, "tuple": tuple, "class": Pair}[shape]
    return RowTypeInfo(("a", "b"), (type_, other), cls), given_rows


def shown(value: Any) -> str:
    """A value with its class, and if it is a row, those of its fields."""
    if isinstance(value, tuple):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return f"{type(value).__name__} {value!r}"


def outcome(env: Any, sinks: list[Any], root: Path, count: int, cut: int) -> Any:
    """What comes out of epochs of some elements each, or that a value is refused."""
    rows = [("k", i) for i in range(count)]
    engine = LocalEngine(env.plan(), root, source_tasks=1)
    try:
        for start in range(0, len(rows), cut):
            engine.epoch({"s": rows[start : start + cut]})
    except TurnbackError:
        return "refused"
    finally:
        engine.levels.close()
    return [sorted(map(tuple, sink.results)) for sink in sinks]


class Gives(ProcessFunction):
    """Gives values to its main output, and to a side output."""

    def __init__(self, values: list[Any], side: OutputTag) -> None:
        self.values = values
        self.side = side

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield self.values[value.i]
        yield self.side, self.values[value.i]


def streamed(
    case: tuple[TypeInfo, list[Any]], root: Path, cut: int, parallelism: int, *, shuffled: bool
) -> Any:
    """What a function sees of the values that another one has given."""
    type_, values = case
    side = OutputTag("side", type_)
    env = environment(parallelism)
    given_out = source(env, "s", "k string, i bigint").process(Gives(values, side), type_)
    sinks = []
    for name, stream in (
        ("main", given_out.uid("gives")),
        ("side", given_out.get_side_output(side)),
    ):
        there = stream.rebalance() if shuffled else stream
        seen = there.map(lambda value: (shown(value),), "shown string").uid(f"sees {name}")
        sinks.append(collected(seen, name))
    return outcome(env, sinks, root, len(values), cut)


def stateful(case: tuple[TypeInfo, list[Any]], root: Path, cut: int) -> Any:
    """What values, lists and maps in state give back."""
    type_, values = case

    class Keeps(KeyedProcessFunction):
        value = ValueStateDescriptor("value", type_)
        several = ListStateDescriptor("list", type_)
        numbered = MapStateDescriptor("map", Types.LONG(), type_)

        def process_element(self, value: Any, ctx: Any) -> Any:
            before = [self.value.value(), *self.several.get(), *self.numbered.values()]
            new = values[value.i]
            self.value.update(new)
            if new is not None:
                self.several.add(new)
                self.numbered.put(value.i, new)
            after = [self.value.value(), *self.several.get(), *self.numbered.values()]
            yield (f"{value.i}: {', '.join(map(shown, before))}; {', '.join(map(shown, after))}",)

    env = environment(1)
    keyed = source(env, "s", "k string, i bigint").key_by("k")
    sink = collected(keyed.process(Keeps(), "shown string").uid("keeps"), "out")
    return outcome(env, [sink], root, len(values), cut)


@settings(max_examples=examples(150))
@given(cases())
def test_streams_have_them_whatever_is_between_two_functions(
    case: tuple[TypeInfo, list[Any]],
) -> None:
    """What fits one by one may not fit together with others: those are refused as a whole."""
    found = []
    for shuffled in (False, True):
        for parallelism, cut in ((1, 100), (2, 1)):
            with tempfile.TemporaryDirectory() as root:
                found.append(streamed(case, Path(root), cut, parallelism, shuffled=shuffled))
    assert all(each == found[0] for each in found), found


@settings(max_examples=examples(150))
@given(cases())
def test_state_has_them_wherever_epochs_end(case: tuple[TypeInfo, list[Any]]) -> None:
    found = []
    for cut in (100, 1, 2):
        with tempfile.TemporaryDirectory() as root:
            found.append(stateful(case, Path(root), cut))
    assert all(each == found[0] for each in found), found
