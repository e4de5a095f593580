"""Equal values have equal bytes once their maps are in one order."""

import random

from hypothesis import given
from hypothesis import strategies as st
from savepoint_support import types, values

from turnback.snapshot.diff import reordering
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import ListTypeInfo, MapTypeInfo, RowTypeInfo, Types


def shuffled(value, mix):
    """The same value with every map in another order."""
    if isinstance(value, dict):
        entries = [(k, shuffled(v, mix)) for k, v in value.items()]
        mix.shuffle(entries)
        return dict(entries)
    if isinstance(value, list | tuple):
        return type(value)(shuffled(v, mix) for v in value)
    return value


def test_only_types_with_maps_have_anything_to_order():
    nested = MapTypeInfo(Types.STRING(), Types.LONG())
    assert reordering(Types.STRING()) is None
    assert reordering(ListTypeInfo(RowTypeInfo(("a",), (Types.LONG(),)))) is None
    assert reordering(nested) is not None
    assert reordering(ListTypeInfo(nested)) is not None
    assert reordering(RowTypeInfo(("a", "b"), (Types.LONG(), nested))) is not None


def test_maps_in_maps_with_keys_of_several_parts():
    type_ = MapTypeInfo(
        Types.TUPLE([Types.STRING(), Types.LONG()]), MapTypeInfo(Types.LONG(), Types.STRING())
    )
    encode, order = Serializer(type_).encode, reordering(type_)
    a = encode({("x", 1): {1: "a", 2: "b"}, ("y", 2): {}})
    b = encode({("y", 2): {}, ("x", 1): {2: "b", 1: "a"}})
    other = encode({("y", 2): {}, ("x", 1): {2: "a", 1: "b"}})
    assert a != b
    assert order(a) == order(b) != order(other)


@given(st.data())
def test_order_is_all_that_changes(data):
    type_ = MapTypeInfo(Types.STRING(), data.draw(types()))
    serializer, order = Serializer(type_), reordering(type_)
    value = data.draw(st.dictionaries(st.text(max_size=4), values(type_.value), max_size=4))
    stored = serializer.encode(value)
    again = serializer.encode(shuffled(value, random.Random(data.draw(st.integers()))))
    assert order(stored) == order(again)
    assert order(order(stored)) == order(stored)
    # The same bytes in another order: nothing is lost or added.
    assert sorted(order(stored)) == sorted(stored)
    assert repr(serializer.decode(order(stored))) == repr(serializer.decode(order(again)))
