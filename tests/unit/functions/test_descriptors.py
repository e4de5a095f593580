from __future__ import annotations

import pickle
from typing import NamedTuple

import pytest

from turnback.errors import StateError, UnsupportedTypeError
from turnback.functions.base import KeyedProcessFunction, declared_states
from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from turnback.values.typeinfo import Types


def add(a, b):
    return a + b


def double(value):
    return 2 * value


class Aggregate:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


class Clicks(NamedTuple):
    clicks: int
    seen: int


class User(NamedTuple):
    name: str
    clicks: Clicks
    days: dict[str, list[Clicks]]


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


def test_rules_of_evolution_are_kept_but_are_no_part_of_the_state():
    for plain in ALL:
        extra = [plain.key_type] if plain.key_type else []
        extra += [plain.reduce_function] if plain.kind == "reducing" else []
        extra += [plain.aggregate_function] if plain.kind == "aggregating" else []
        ruled = type(plain)("s", *extra, int, migrate=double, migrate_from=str)
        assert ruled == plain
        assert hash(ruled) == hash(plain)
        copy = pickle.loads(pickle.dumps(ruled))
        assert copy.rules == ruled.rules
        assert copy.rules.migrate is double
        assert copy.rules.migrate_from == Types.STRING()
        with pytest.raises(AttributeError):
            copy.rules.migrate = None


def test_aliases_name_fields_at_any_depth():
    aliases = {"name": "login", "clicks.clicks": "n", "days.clicks": "n"}
    one = ValueStateDescriptor("s", User, aliases=aliases)
    aliases.clear()
    assert dict(one.rules.aliases) == {"name": "login", "clicks.clicks": "n", "days.clicks": "n"}
    ListStateDescriptor("s", User, aliases={"name": "login"})
    MapStateDescriptor("s", str, User, aliases={"name": "login"})


@pytest.mark.parametrize(
    ("type_", "options", "message"),
    [
        (
            User,
            {"aliases": {"nome": "login"}},
            r"'nome', which is not a field.*did you mean 'name'",
        ),
        (User, {"aliases": {"clicks.zzzzzz": "n"}}, r"did you mean|its fields: name, "),
        (int, {"aliases": {"n": "m"}}, "its fields: none"),
        (Clicks, {"aliases": {"clicks": "seen"}}, "itself a field"),
        (Clicks, {"aliases": {"clicks": "a", "seen": "a"}}, "two fields have the alias 'a'"),
        (User, {"aliases": {"clicks.clicks": "a", "clicks.seen": "a"}}, "two fields have"),
        (Clicks, {"aliases": {"clicks": 5}}, "must be text, got 5"),
        (Clicks, {"aliases": [("clicks", "n")]}, "maps new field names to old ones"),
        ("`a.b` int, a struct<b:int>", {"aliases": {"a.b": "c"}}, "in two ways"),
        (int, {"migrate": 5}, "callable of one value, got 5"),
        (int, {"migrate": add}, "callable of one value"),
        (int, {"migrate_from": str}, "give both"),
        (
            int,
            {"migrate": double, "migrate_from": Types.LONG()},
            "the same type as the current one",
        ),
        (Clicks, {"migrate": double, "aliases": {"clicks": "n"}}, "replaces all other rules"),
    ],
)
def test_wrong_rules_are_told_at_once(type_, options, message):
    with pytest.raises(StateError, match=rf"state 'mine'.*{message}"):
        ValueStateDescriptor("mine", type_, **options)


def test_an_old_type_that_cannot_be_stored_is_told_when_it_is_checked():
    one = ValueStateDescriptor("mine", int, migrate=double, migrate_from=object)
    with pytest.raises(UnsupportedTypeError, match="state 'mine': migrate_from: object"):
        one.check()
    broken = ValueStateDescriptor("mine", object, aliases={"a": "b"})
    with pytest.raises(UnsupportedTypeError, match="'mine'"):
        _ = broken.rules
