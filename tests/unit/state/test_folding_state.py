"""Reducing and aggregating state."""

from __future__ import annotations

from turnback.functions.base import AggregateFunction, ReduceFunction
from turnback.functions.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from turnback.values.typeinfo import Types


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return (acc_a[0] + acc_b[0], acc_a[1] + acc_b[1])


class Longest(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2, key=len)


SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, int)
LONGEST = ReducingStateDescriptor("longest", Longest(), str)
MEAN = AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))


def add(value):
    return lambda h: [h["sum"].add(value), h["longest"].add("x" * value), h["mean"].add(value)]


def get(h):
    return h["sum"].get(), h["longest"].get(), h["mean"].get()


def clear(h):
    for handle in h.values():
        handle.clear()


def test_elements_are_folded_within_and_across_epochs(job):
    j = job(SUM, LONGEST, MEAN)
    assert j.one("a", get) == (None, None, None)
    assert j.run([("a", add(2)), ("a", add(3)), ("a", get)])[2] == (5, "xxx", 2.5)
    assert j.run([("a", add(1)), ("a", get)])[1] == (6, "xxx", 2.0)
    assert j.run([("a", get), ("b", get)]) == [(6, "xxx", 2.0), (None, None, None)]


def test_after_a_clear_folding_starts_anew(job):
    j = job(SUM, LONGEST, MEAN)
    j.one("a", add(5))
    assert j.run([("a", clear), ("a", get), ("a", add(1)), ("a", get)])[1::2] == [
        (None, None, None),
        (1, "x", 1.0),
    ]
    assert j.one("a", get) == (1, "x", 1.0)
