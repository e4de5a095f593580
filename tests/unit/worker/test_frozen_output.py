"""What a function does to an object after it has given it away changes nothing.

Each program runs with all elements in one batch and with an epoch for each: the output has to be
the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    Types,
    ValueStateDescriptor,
)
from turnback.functions import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
)

ROWS = [("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)]
NUMBERS = Types.LIST(Types.LONG())


@dataclass
class Basket:
    owner: str
    items: list[int] = field(default_factory=list)
    count: int = 0


@dataclass
class Point:
    x: int
    y: int


class Anything:
    """A class only pickle knows how to store."""

    def __init__(self) -> None:
        self.seen: list[int] = []


def both(tmp_path, build, rows=ROWS, schema="k string, n bigint"):
    """The output of all sinks: everything in one batch, then an epoch for each element."""
    outputs = []
    for name, epochs in (("one", [rows]), ("many", [[row] for row in rows])):
        env = environment(1)
        made = build(source(env, "src", schema))
        sinks = [collected(s, f"sink{i}") for i, s in enumerate(made if isinstance(made, tuple)
                                                                 else (made,))]  # fmt: skip
        engine = LocalEngine(env.plan(), tmp_path / name, source_tasks=1, backend="hashmap")
        for epoch in epochs:
            engine.epoch({"src": epoch})
        outputs.append([sink.results for sink in sinks])
    one, many = outputs
    assert one == many
    return one if len(one) > 1 else one[0]


class Growing(KeyedProcessFunction):
    """Changes what is in state, stores it, yields it, and changes it again."""

    state: Any

    def __init__(self, kind, new, change, show=None):
        self.kind, self.new, self.change = kind, new, change
        self.show = show or (lambda key, value: (key, value))

    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("seen", self.kind))

    def process_element(self, value, ctx):
        seen = self.state.value() or self.new()
        self.change(seen, value.n)
        self.state.update(seen)
        yield self.show(value.k, seen)
        self.change(seen, -1)  # neither stored nor emitted


def put(numbers, n):
    numbers[f"n{n}"] = [n]
    numbers.setdefault("all", []).append(n)


def add_to_basket(basket, n):
    basket.items.append(n)
    basket.count += 1


CASES = {
    "list": (NUMBERS, list, lambda xs, n: xs.append(n), None, NUMBERS),
    "map": (Types.MAP(Types.STRING(), NUMBERS), dict, put, None, None),
    "class": (Basket, lambda: Basket("x"), add_to_basket, None, None),
    "pickled": (Types.PICKLED_BYTE_ARRAY(), Anything, lambda a, n: a.seen.append(n),
                lambda k, a: (k, a.seen), NUMBERS),
    "row in a row": (
        Types.ROW_NAMED(["xs"], [NUMBERS]), lambda: Row(xs=[]), lambda r, n: r.xs.append(n),
        None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_state_and_output_hold_what_they_were_given(tmp_path, case):
    kind, new, change, show, out = CASES[case]
    described = ValueStateDescriptor("x", out or kind).type
    type_ = Types.ROW_NAMED(["k", "seen"], [Types.STRING(), described])
    got = both(tmp_path, lambda s: s.key_by("k").process(Growing(kind, new, change, show), type_))
    if case == "list":
        assert [r.seen for r in got] == [[1], [1, 2], [3], [1, 2, 4], [3, 5]]
    if case == "class":
        assert [r.seen.items for r in got] == [[1], [1, 2], [3], [1, 2, 4], [3, 5]]
    assert len({repr(r) for r in got}) == len(ROWS)


@pytest.mark.parametrize("type_", ["k string, xs array<bigint>"])
def test_one_object_yielded_again_and_again(tmp_path, type_):
    def spread(row):
        xs: list[int] = []
        for n in range(3):
            xs.append(row.n + n)
            yield row.k, xs

    got = both(tmp_path, lambda s: s.flat_map(spread, type_), [("a", 0)])
    assert [r.xs for r in got] == [[0], [0, 1], [0, 1, 2]]


def reused(element, change):
    def give(row):
        change(element, row)
        return element

    return give


class Holder:
    k = ""
    n = 0


@pytest.mark.parametrize(
    "function",
    [
        reused(["", 0], lambda e, r: e.__setitem__(slice(None), r)),
        reused({}, lambda e, r: e.update(k=r.k, n=r.n)),
        reused(Holder(), lambda e, r: e.__dict__.update(k=r.k, n=r.n)),
    ],
    ids=["list", "dict", "object"],
)
def test_a_row_of_scalars_given_in_a_form_that_can_change(tmp_path, function):
    got = both(tmp_path, lambda s: s.map(function, "k string, n bigint"))
    assert [tuple(r) for r in got] == ROWS


def test_a_class_that_can_change(tmp_path):
    point = Point(0, 0)

    def move(row):
        point.x, point.y = row.n, -row.n
        return point

    assert both(tmp_path, lambda s: s.map(move, Point)) == [Point(n, -n) for _, n in ROWS]


def test_bytes_given_as_a_bytearray(tmp_path):
    buffer = bytearray(1)

    def fill(row):
        buffer[0] = row.n
        return row.k, buffer

    got = both(tmp_path, lambda s: s.map(fill, "k string, data binary"))
    assert [r.data[0] for r in got] == [n for _, n in ROWS]
    got = both(tmp_path / "alone", lambda s: s.map(lambda r: fill(r)[1], Types.BYTES()))
    assert got == [bytes([n]) for _, n in ROWS]


TAGS = "k string, tags array<string>"
TAGGED = [("a", ["1"]), ("a", ["2"]), ("b", ["3"]), ("a", ["4"])]


def shout(row):
    row.tags.append("SEEN")
    return row


def same(row):
    return row


def test_reduce_in_place(tmp_path):
    def join(a, b):
        a.tags.extend(b.tags)
        b.tags.clear()
        return a

    got = both(tmp_path, lambda s: s.key_by("k").reduce(join), TAGGED, TAGS)
    assert [r.tags for r in got] == [["1"], ["1", "2"], ["3"], ["1", "2", "4"]]


@pytest.mark.parametrize("between", ["nothing", "map", "flat_map", "filter", "shuffle"])
def test_two_readers_of_one_stream(tmp_path, between):
    """The first reader changes the elements, the others must not see it."""

    def build(stream):
        match between:
            case "map":
                stream = stream.map(same, TAGS)
            case "flat_map":
                stream = stream.flat_map(lambda r: [r], TAGS)
            case "filter":
                stream = stream.filter(lambda r: True)
            case "shuffle":
                stream = stream.key_by("k").process(Same(), TAGS)
        loud, kept = stream.map(shout, TAGS), stream.filter(lambda r: "SEEN" not in r.tags)
        keyed = stream.key_by(lambda r: r.k, key_type=str).process(Same(), TAGS)
        return loud, stream.map(same, TAGS), kept.map(same, TAGS), stream, keyed

    first, *others = both(tmp_path, build, TAGGED, TAGS)
    assert all(row.tags[1] == "SEEN" for row in first)
    for rows in others:
        assert [tuple(row) for row in rows] == TAGGED


class Same(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def test_a_chain_that_remembers_and_changes_what_it_passed_on(tmp_path):
    def remembering():
        last: list[Any] = []

        def remember(row):
            for old in last:
                old.tags.append("late")
            last.append(row)
            return row

        return remember

    def build(stream):
        one, two = remembering(), remembering()
        keep = remembering()
        return stream.map(one, TAGS).filter(lambda r: bool(keep(r))).map(two, TAGS)

    assert [tuple(r) for r in both(tmp_path, build, TAGGED, TAGS)] == TAGGED


def test_a_batch_function_that_fills_its_array_again(tmp_path):
    numbers = np.zeros(1, np.int64)

    def twice(batch):
        for n in batch.column(1).to_pylist():
            numbers[0] = n
            yield pa.record_batch([pa.array(["x"]), pa.array(numbers)], ["k", "n"])

    got = both(tmp_path, lambda s: s.map_batches(twice, "k string, n bigint"))
    assert [r.n for r in got] == [n for _, n in ROWS]


class Collected(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def merge(self, a, b):
        return a + b

    def get_result(self, accumulator):
        return accumulator


def joined(a, b):
    a.extend(b)
    return a


class EveryState(KeyedProcessFunction):
    """Changes what it has given to state, and what it got from there."""

    lists = ListStateDescriptor("lists", NUMBERS)
    maps = MapStateDescriptor("maps", Types.STRING(), NUMBERS)
    reduced = ReducingStateDescriptor("reduced", joined, NUMBERS)
    aggregated = AggregatingStateDescriptor("aggregated", Collected(), NUMBERS)

    def process_element(self, value, ctx):
        given = [value.n]
        self.lists.add(given)
        self.lists.add_all([given])
        self.maps.put("last", given)
        self.maps.put(f"n{value.n}", given)
        self.reduced.add(given)
        self.aggregated.add(value.n)
        given.append(-1)
        read = [
            *self.lists.get(),
            *sorted(self.maps.values()),
            self.maps.get("last"),
            self.maps["last"],
            *(v for _, v in sorted(self.maps.items())),
            self.reduced.get(),
            self.aggregated.get(),
        ]
        before = repr(read)
        for each in read:
            each.append(-2)
        yield value.k, before


def test_no_state_shares_anything_with_its_user(tmp_path):
    got = both(tmp_path, lambda s: s.key_by("k").process(EveryState(), "k string, read string"))
    assert not any("-" in row.read for row in got)


class Typed(KeyedProcessFunction):
    """Stores values in another form than the one they come back in."""

    number = ValueStateDescriptor("number", float)
    row = ValueStateDescriptor("row", "k string, n bigint")
    rows = ListStateDescriptor("rows", "k string, n bigint")

    def process_element(self, value, ctx):
        before = self.number.value(), self.row.value(), self.rows.get()
        self.number.update(value.n)
        self.row.update([value.k, value.n])
        self.rows.add({"k": value.k, "n": value.n})
        yield value.k, repr(before)


def test_what_is_read_does_not_depend_on_when_it_was_stored(tmp_path):
    both(tmp_path, lambda s: s.key_by("k").process(Typed(), "k string, read string"))
