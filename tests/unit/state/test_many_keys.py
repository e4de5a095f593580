"""Values of many keys at once are the values of each of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from turnback.values.typeinfo import Types


class Mean:
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + 1, accumulator[1] + value)

    def get_result(self, accumulator):
        return accumulator[1] / accumulator[0]


PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
STATES = [
    ValueStateDescriptor("value", int),
    ReducingStateDescriptor("reducing", lambda a, b: a + b, Types.LONG()),
    AggregatingStateDescriptor("aggregating", Mean(), PAIR),
]
SET = {
    "value": lambda state, n: state.update(n),
    "reducing": lambda state, n: state.add(n),
    "aggregating": lambda state, n: state.add(n),
}
READ = {"value": lambda state: state.value()}
STORED = {"value": int, "reducing": int, "aggregating": lambda n: (1, n)}


@pytest.mark.parametrize("state", STATES, ids=lambda d: d.name)
def test_what_was_written_one_by_one_is_read_together_and_the_other_way_round(job, state):
    j, name = job(state), state.name
    stored, keys = STORED[name], ["a", "b", "c", "d"]

    def one_by_one(n):
        return lambda h: SET[name](h[name], n)

    j.run([("a", one_by_one(1)), ("b", one_by_one(2)), ("c", one_by_one(3))])
    assert j.one("a", lambda h: h[name].read_many(keys)) == [*map(stored, (1, 2, 3)), None]

    def change(h):
        h[name].write_many(["d", "a", "b"], [stored(40), None, stored(20)])
        return h[name].read_many(keys)

    after = [None, stored(20), stored(3), stored(40)]
    assert j.one("a", change) == after  # in the same epoch, as well as in the next one
    assert j.one("a", lambda h: h[name].read_many(keys)) == after
    get = READ.get(name, lambda state: state.get())
    expected = {"aggregating": [None, 20.0, 3.0, 40.0]}.get(name, after)
    assert j.run([(k, lambda h: get(h[name])) for k in keys]) == expected


def test_a_read_of_many_changes_nothing(job):
    j = job(ValueStateDescriptor("value", int))
    j.one("a", lambda h: h["value"].update(1))
    j.one("a", lambda h: h["value"].read_many(["a", "b"]))
    assert len(j.files) == 1


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Types.STRING(), "é"),
        (Types.FLOAT(), 0.5),
        (Types.INSTANT(), datetime(2024, 1, 1, tzinfo=UTC)),
        (Types.LIST(Types.LONG()), [1, None, 2]),
        (Types.MAP(Types.STRING(), Types.LONG()), {"a": 1}),
        (Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LIST(Types.LONG())]), (1, [2])),
        (Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()]), (1, None)),
    ],
    ids=str,
)
def test_every_type_of_value(job, type_, value):
    j = job(ValueStateDescriptor("value", type_))
    long_key = "long" * 500
    j.one("a", lambda h: h["value"].write_many(["a", long_key], [value, value]))
    assert j.one("a", lambda h: h["value"].read_many(["b", long_key, "a"])) == [None, value, value]
    assert j.run([(k, lambda h: h["value"].value()) for k in ("a", long_key)]) == [value, value]


def test_what_is_read_belongs_to_the_reader(job):
    j = job(ValueStateDescriptor("value", Types.LIST(Types.LONG())))

    def change(h):
        h["value"].write_many(["a"], [[1]])
        h["value"].read_many(["a"])[0].append(2)
        return h["value"].read_many(["a"])

    assert j.one("a", change) == [[1]]
