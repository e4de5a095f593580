from __future__ import annotations

import pickle

import pytest

from turnback.core import Types
from turnback.core.errors import StateError, UnsupportedTypeError
from turnback.functions import (
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    declared_states,
)


def add(a, b):
    return a + b


class Aggregate:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


ALL = [
    ValueStateDescriptor("s", int),
    ListStateDescriptor("s", int),
    MapStateDescriptor("s", str, int),
    ReducingStateDescriptor("s", add, int),
    AggregatingStateDescriptor("s", Aggregate(), int),
]


class Count(KeyedProcessFunction):
    count = ValueStateDescriptor("n", int)

    def process_element(self, value, ctx):
        return self.count


@pytest.mark.parametrize("one", ALL, ids=lambda d: d.kind)
def test_descriptors_are_values(one):
    assert pickle.loads(pickle.dumps(one)) == one
    assert len({one, pickle.loads(pickle.dumps(one))}) == 1
    assert sum(one == other for other in ALL) == 1
    assert "'s'" in repr(one)
    one.check()
    for change in (lambda: setattr(one, "name", "t"), lambda: delattr(one, "name")):
        with pytest.raises(AttributeError, match="immutable"):
            change()


def test_any_form_of_a_type_will_do():
    assert ValueStateDescriptor("s", int) == ValueStateDescriptor("s", Types.LONG())
    assert ValueStateDescriptor("s", "n bigint").type.names == ("n",)
    assert ValueStateDescriptor("s", int) != ValueStateDescriptor("s", str)
    assert ValueStateDescriptor("s", int) != ValueStateDescriptor("t", int)


@pytest.mark.parametrize(
    "one",
    [
        ValueStateDescriptor("mine", object),
        ListStateDescriptor("mine", set),
        MapStateDescriptor("mine", object(), int),
        MapStateDescriptor("mine", list[int], int),
        AggregatingStateDescriptor("mine", Aggregate(), None),
    ],
    ids=lambda d: d.kind,
)
def test_an_unsupported_type_is_told_when_it_is_checked(one):
    for bad in (one, pickle.loads(pickle.dumps(one))):
        for use in (bad.check, lambda bad=bad: bad.type, lambda bad=bad: bad.key_type):
            with pytest.raises(UnsupportedTypeError, match="'mine'"):
                use()
    assert one != ValueStateDescriptor("mine", int)
    assert "'mine'" in repr(one)


def test_functions_are_checked():
    with pytest.raises(StateError, match=r"'mine'.*ReduceFunction"):
        ReducingStateDescriptor("mine", 5, int)
    with pytest.raises(StateError, match=r"'mine'.*AggregateFunction.*create_accumulator"):
        AggregatingStateDescriptor("mine", object(), int)


def test_a_declared_state_is_the_handle_once_bound():
    function = pickle.loads(pickle.dumps(Count()))
    assert Count.count.attribute == "count"
    assert declared_states(function) == {"count": Count.count}
    with pytest.raises(StateError, match="'n' of Count"):
        _ = function.count
    assert not hasattr(function, "count")
    function.__dict__["count"] = "the handle"
    assert function.process_element(None, None) == "the handle"
