"""Does a stored value become one of the type the program declares now?"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, NamedTuple

import msgspec
import pytest

from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from turnback.snapshot.evolution import Incompatible, Migration, Same, evolve, evolve_state
from turnback.state.schema import KeySchema, StateSchema
from turnback.values.hints import as_type
from turnback.values.row import Row
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import Types, type_from_descriptor

Int = Annotated[int, Types.INT()]
KEY = KeySchema(("string",), True)


def stored_type(spec):
    """A type as it comes out of a snapshot: without the classes of the program."""
    return type_from_descriptor(as_type(spec).describe())


def migrated(old, new, value, **options):
    """The outcome for a type, and the value after a trip through both serializers."""
    stored, descriptor = stored_type(old), ValueStateDescriptor("s", new, **options)
    outcome = evolve(stored, descriptor.type, descriptor.rules)
    assert isinstance(outcome, Migration), outcome
    before = Serializer(stored)
    after = Serializer(descriptor.type)
    converted = outcome.convert(before.decode(before.encode(value)))
    return outcome.why, after.decode(after.encode(converted))


def refused(old, new, **options):
    descriptor = ValueStateDescriptor("s", new, **options)
    outcome = evolve(stored_type(old), descriptor.type, descriptor.rules)
    assert isinstance(outcome, Incompatible), outcome
    return outcome.reason


@dataclass
class Stats:
    n: int
    paid: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


class StatsStruct(msgspec.Struct):
    n: int
    paid: int = 0
    tags: list[str] = []


class StatsTuple(NamedTuple):
    n: int
    paid: int = 0
    tags: list[str] = []


@pytest.mark.parametrize("spec", [int, "a int, b string", Stats, list[Stats], dict[str, int]])
def test_the_same_type(spec):
    assert evolve(stored_type(spec), as_type(spec)) == Same()


@pytest.mark.parametrize("new", [Stats, StatsStruct, StatsTuple])
def test_an_added_field_gets_the_default_of_its_class(new):
    why, value = migrated("n bigint", new, (7,))
    assert value == new(7, 0, [])
    assert why == "field 'paid' added with default 0; field 'tags' added with default []"


def test_a_factory_is_called_for_every_value():
    outcome = evolve(stored_type("n bigint"), as_type(Stats))
    first, second = outcome.convert((1,)), outcome.convert((2,))
    assert first[2] is not second[2]


@pytest.mark.parametrize("new", ["n bigint, paid bigint", tuple[int, int]])
def test_an_added_field_without_a_default_is_none(new):
    old = "n bigint" if isinstance(new, str) else "f0 bigint"
    why, value = migrated(old, new, (7,))
    assert value == (7, None)
    assert "added as None" in why


def test_a_removed_field_is_dropped_and_order_does_not_matter():
    assert migrated("a int, b string, c int", "c int, a int", (1, "x", 3)) == (
        "field 'b' dropped; fields of the value reordered",
        (3, 1),
    )
    why, value = migrated("a int, b string", "b string, a int", (1, "x"))
    assert (why, value) == ("fields of the value reordered", Row(b="x", a=1))


def test_everything_at_once_is_told():
    why, value = migrated("n int, gone string", Stats, (7, "x"))
    assert value == Stats(7, 0, [])
    assert why == (
        "'n' widened from int to bigint; field 'paid' added with default 0; "
        "field 'tags' added with default []; field 'gone' dropped"
    )


INTEGERS = ["byte", "short", "int", "long", "big_int"]
WIDER = {(a, b) for i, a in enumerate(INTEGERS) for b in INTEGERS[i + 1 :]}
WIDER |= {("float", "double"), ("byte", "float"), ("short", "float")}
WIDER |= {("byte", "double"), ("short", "double"), ("int", "double")}
BASIC = [*INTEGERS, "float", "double", "string", "bytes", "boolean", "date", "time"]
BASIC += ["timestamp", "instant", "pickled"]
WRITTEN = {"byte": "tinyint", "short": "smallint", "long": "bigint", "bytes": "binary"}
WRITTEN |= {"time": "time(6)", "timestamp": "timestamp_ntz", "instant": "timestamp"}


@pytest.mark.parametrize("old", BASIC)
def test_numbers_get_wider_and_nothing_else(old):
    for new in BASIC:
        if old == new:
            continue
        outcome = evolve(type_from_descriptor(old), type_from_descriptor(new))
        was, now = WRITTEN.get(old, old), WRITTEN.get(new, new)
        if (old, new) in WIDER:
            assert outcome.why == f"the value widened from {was} to {now}"
        else:
            assert f"the value: {was} cannot become {now}" in outcome.reason


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("tinyint", "smallint", -(1 << 7)),
        ("int", "bigint", (1 << 31) - 1),
        ("bigint", Types.BIG_INT(), -(1 << 63)),
        ("smallint", "float", -(1 << 15)),
        ("int", "double", -(1 << 31)),
        ("float", "double", 0.10000000149011612),
        ("decimal(5,2)", "decimal(6,2)", Decimal("123.45")),
        ("decimal(5,2)", "decimal(7,4)", Decimal("123.45")),
    ],
)
def test_widening_is_exact(old, new, value):
    why, after = migrated(as_type(old), new, value)
    assert after == value
    assert type(after) is (float if new in ("float", "double") else type(value))
    assert "widened" in why


@pytest.mark.parametrize(
    ("old", "new"),
    [("decimal(5,2)", "decimal(5,3)"), ("decimal(5,2)", "decimal(9,1)"), ("int", "decimal(38,0)")],
)
def test_decimals_keep_their_digits(old, new):
    assert "cannot become" in refused(as_type(old), as_type(new))


def test_integers_become_floats():
    outcome = evolve(as_type("struct<a:int>"), as_type("struct<a:double>"))
    assert [type(v) for v in outcome.convert((1,))] == [float]


def test_a_refusal_says_why():
    assert "cannot hold every stored value" in refused("a bigint", "a int")
    assert "exactly" in refused("a bigint", "a double")
    assert "pickled" in refused(Types.PICKLED_BYTE_ARRAY(), int)
    assert "migrate=" in refused("a date", "a timestamp")


def test_all_problems_are_told_with_their_paths():
    old = "a bigint, u struct<n:string,xs:array<bigint>,m:map<string,struct<z:int>>>"
    new = "a int, u struct<n:int,xs:array<int>,m:map<string,struct<z:string>>>"
    reason = refused(old, new)
    for part in ("'a': bigint", "'u.n': string", "elements of 'u.xs': bigint", "'u.m.z': int"):
        assert part in reason


def test_other_shapes_are_refused():
    assert "'a': array<bigint> cannot become bigint" in refused("a array<bigint>", "a bigint")
    assert "cannot become" in refused("a struct<x:int>", "a map<string,int>")


def test_a_row_that_shares_no_field_is_refused():
    reason = refused("a int, u struct<x:int>", "a int, u struct<y:int>")
    assert "'u': no field of struct<x:int> is left" in reason
    assert "aliases=" in reason


def test_nested_rows_lists_and_maps():
    old = "id int, xs array<struct<n:int>>, m map<string,array<int>>, f map<string,int>"
    new = "id int, xs array<struct<n:bigint,extra:string>>, m map<string,array<bigint>>, "
    new += "f map<string,double>"
    value = (1, [(2,), None, (None,)], {"a": [3, None], "b": None}, {"a": 1, "b": None})
    why, after = migrated(old, new, value)
    assert after == (1, [(2, None), None, (None, None)], *value[2:])
    assert "'xs.n' widened" in why
    assert "field 'xs.extra' added as None" in why
    assert "elements of values of 'm' widened" in why
    assert migrated(old, new, (1, None, None, None))[1] == (1, None, None, None)


def test_keys_of_maps_inside_values_do_not_change():
    reason = refused("m map<int,string>", "m map<bigint,string>")
    assert "keys of 'm': int cannot become bigint" in reason


def test_none_stays_none():
    for new, options in (("a bigint", {}), ("a string", {"migrate": lambda row: 1 / 0})):
        outcome = evolve(
            stored_type("a int"), as_type(new), ValueStateDescriptor("s", new, **options).rules
        )
        assert outcome.convert(None) is None


class BadDefault(NamedTuple):
    n: int
    paid: int = "nothing"


@dataclass
class BadFactory:
    n: int
    paid: int = dataclasses.field(default_factory=lambda: 1 // 0)


def test_a_default_that_cannot_be_stored():
    assert "'paid' is new, but its default does not match its type" in refused(
        "n bigint", BadDefault
    )
    assert "ZeroDivisionError" in refused("n bigint", BadFactory)


@dataclass
class Inner:
    clicks: int
    seen: date | None = None


@dataclass
class Outer:
    key: str
    inner: Inner
    history: list[Inner]


def test_renames_by_alias():
    why, value = migrated("click_count int", Inner, (3,), aliases={"clicks": "click_count"})
    assert value == Inner(3)
    assert why.startswith("'clicks' taken from 'click_count'; 'clicks' widened from int to bigint")
    assert "added" in migrated("seen date", Inner, (None,), aliases={"clicks": "n"})[0]


def test_aliases_reach_into_nested_rows():
    why, value = migrated(
        "k string, inner struct<n:bigint>, history array<struct<m:bigint>>",
        Outer,
        ("a", (1,), [(2,)]),
        aliases={"key": "k", "inner.clicks": "n", "history.clicks": "m"},
    )
    assert value == Outer("a", Inner(1), [Inner(2)])
    assert "'history.clicks' taken from 'm'" in why


def test_what_has_the_new_name_already_is_not_renamed_again():
    _, value = migrated(
        "click_count bigint, clicks bigint", Inner, (1, 2), aliases={"clicks": "click_count"}
    )
    assert value == Inner(2)


class Old(NamedTuple):
    cents: int
    inner: Inner


def to_stats(old):
    assert isinstance(old, Old)
    assert isinstance(old.inner, Inner)
    return Stats(old.inner.clicks, old.cents)


def test_a_user_migration_gets_values_of_the_class_it_wants():
    why, value = migrated(Old, Stats, Old(250, Inner(3, None)), migrate=to_stats, migrate_from=Old)
    assert value == Stats(3, 250)
    assert why.endswith("by to_stats()")


def test_a_user_migration_without_a_class_gets_rows():
    _, value = migrated("a string", int, Row(a="12"), migrate=lambda row: int(row.a))
    assert value == 12


def test_a_user_migration_is_not_asked_for_what_has_the_new_type():
    rules = ValueStateDescriptor("s", int, migrate=str).rules
    assert evolve(as_type(int), as_type(int), rules) == Same()


def test_a_user_migration_does_not_take_a_third_type():
    reason = refused("cents bigint", Stats, migrate=to_stats, migrate_from=Old)
    assert "neither the declared type nor migrate_from" in reason


class Sum:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


def schema(kind="value", key=KEY, value="long", sub=None):
    return StateSchema(uid="u", name="s", kind=kind, key=key, value=value, sub=sub)


DESCRIPTORS = {
    "value": lambda **o: ValueStateDescriptor("s", int, **o),
    "list": lambda **o: ListStateDescriptor("s", int, **o),
    "map": lambda **o: MapStateDescriptor("s", str, int, **o),
    "reducing": lambda **o: ReducingStateDescriptor("s", max, int, **o),
    "aggregating": lambda **o: AggregatingStateDescriptor("s", Sum(), int, **o),
}


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_kinds_of_state(kind):
    stored = schema(kind, sub="string" if kind == "map" else None)
    assert evolve_state(stored, DESCRIPTORS[kind](), KEY) == Same()
    for other in DESCRIPTORS:
        if other == kind:
            continue
        plain = evolve_state(stored, DESCRIPTORS[other](), KEY)
        helped = evolve_state(stored, DESCRIPTORS[other](migrate=abs), KEY)
        assert f"{kind} state" in plain.reason
        if {kind, other} <= {"value", "reducing", "aggregating"}:
            assert "migrate=" in plain.reason
            assert helped.convert(-5) == 5
            assert f"{kind} state becomes {other} state" in helped.why
        else:
            assert isinstance(helped, Incompatible)


@pytest.mark.parametrize(
    ("was", "now"), [(None, None), (None, "b"), ("a", None), ("a", "a"), ("a", "b")]
)
def test_values_that_stand_for_something_else(was, now):
    stored = msgspec.structs.replace(schema(), definition=was)
    outcome = evolve_state(stored, ValueStateDescriptor("s", int).defined_as(now), KEY)
    if (was, now) != ("a", "b"):
        assert outcome == Same(), "older versions have stored no definition"
        return
    assert isinstance(outcome, Incompatible)
    assert outcome.reason.startswith("its definition changed from a to b, and")
    assert "allow_non_restored_state=['u']" in outcome.reason


def test_elements_and_entries_evolve():
    for kind, sub in (("list", None), ("map", "string")):
        outcome = evolve_state(schema(kind, value="int", sub=sub), DESCRIPTORS[kind](), KEY)
        assert outcome.why == "the value widened from int to bigint"


@pytest.mark.parametrize(
    "key",
    [KeySchema(("long",), True), KeySchema(("string",), False)],
)
def test_keys_never_change(key):
    outcome = evolve_state(schema(key=key), DESCRIPTORS["value"](migrate=abs), KEY)
    assert "keyed by" in outcome.reason
    assert "key group" in outcome.reason


def test_map_keys_never_change():
    stored = schema("map", sub="int")
    wanted = MapStateDescriptor("s", int, int, migrate=abs)
    assert "looked up by the bytes of their key" in evolve_state(stored, wanted, KEY).reason


def test_a_type_of_a_newer_version():
    outcome = evolve_state(schema(value={"tensor": [1]}), DESCRIPTORS["value"](), KEY)
    assert "cannot be read by this version" in outcome.reason


def test_defaults_survive_the_way_to_a_worker():
    """A class of a script travels by value, and the mark for "no default" with it."""
    from pyspark import cloudpickle

    script = {}
    exec(
        "from dataclasses import dataclass, field\n"
        "@dataclass\nclass Stats:\n    n: int\n    paid: bool = True\n"
        "    tags: list[str] = field(default_factory=lambda: ['x'])\n    note: str | None = None\n",
        script,
    )
    script["Stats"].__module__ = "__main__"
    copy = cloudpickle.loads(cloudpickle.dumps(script["Stats"]))
    outcome = evolve(as_type("n bigint"), as_type(copy))
    assert isinstance(outcome, Migration)
    assert outcome.convert((1,)) == (1, True, ["x"], None)


def test_accumulators_are_taken_over_by_what_made_them_only():
    made_by = {"n": "count()", "total": "sum_of(x)"}

    def taken_over(stored, declared):
        state = msgspec.structs.replace(schema("value"), accumulators=stored)
        return evolve_state(state, DESCRIPTORS["value"]().accumulated_by(declared), KEY)

    assert taken_over(made_by, made_by) == Same()
    assert taken_over(made_by, {"total": "sum_of(x)", "most": "max_of(x)"}) == Same()
    assert taken_over(None, made_by) == Same(), "of a version that did not store it"
    assert taken_over(made_by, None) == Same()
    refusal = taken_over(made_by, {"n": "count()", "total": "max_of(x)"})
    assert isinstance(refusal, Incompatible)
    assert refusal.reason.startswith("'total' was sum_of(x) and is now max_of(x)")
