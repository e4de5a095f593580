import json
import pickle
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given

from turnback.errors import UnsupportedTypeError
from turnback.values.hints import as_type
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types, type_from_descriptor
from type_strategies import ELEMENTS, SCALARS


class Point(NamedTuple):
    x: int
    y: int


@given(ELEMENTS.types())
def test_descriptors_ddl_and_pickles_read_back(type_: TypeInfo) -> None:
    descriptor = json.loads(json.dumps(type_.describe()))
    assert type_from_descriptor(descriptor) == type_
    assert hash(type_from_descriptor(descriptor)) == hash(type_)
    assert pickle.loads(pickle.dumps(type_)) == type_


@given(ELEMENTS.types())
def test_a_type_can_be_read_from_its_ddl_and_its_arrow_type(type_: TypeInfo) -> None:
    # An integer of any size is a decimal to Spark and Arrow: only the columns must be the same.
    assert as_type(type_.ddl()).ddl() == type_.ddl()
    assert as_type(type_.arrow()).arrow() == type_.arrow()


@pytest.mark.parametrize("type_", SCALARS, ids=str)
def test_each_type_differs_from_all_others(type_: TypeInfo) -> None:
    assert [t for t in SCALARS if t == type_] == [type_]
    assert len({json.dumps(t.describe()) for t in SCALARS}) == len(SCALARS)


def test_descriptors_are_what_is_stored_for_ever() -> None:
    type_ = Types.ROW_NAMED(
        ["post", "n", "price", "tags"],
        [
            Types.STRING(),
            Types.LONG(),
            Types.BIG_DEC(10, 2),
            Types.MAP(Types.STRING(), Types.LIST(Types.INSTANT())),
        ],
    )
    assert type_.describe() == {
        "row": [
            ["post", "string"],
            ["n", "long"],
            ["price", {"decimal": [10, 2]}],
            ["tags", {"map": ["string", {"list": "instant"}]}],
        ]
    }
    names = "string bytes boolean byte short int long big_int float double date time timestamp"
    for name in [*names.split(), "instant", "pickled"]:
        assert type_from_descriptor(name).describe() == name


@pytest.mark.parametrize(
    "descriptor",
    ["nothing", 3, None, {}, {"list": "x"}, {"map": ["string"]}, {"row": []}, {"row": 5},
     {"decimal": [39, 0]}, {"decimal": "x"}, {"list": "int", "map": 1}, {"set": "int"}],
)  # fmt: skip
def test_other_descriptors_are_refused(descriptor: object) -> None:
    with pytest.raises(UnsupportedTypeError):
        type_from_descriptor(descriptor)


def test_a_descriptor_nested_without_end_is_refused() -> None:
    descriptor: object = "int"
    for _ in range(100_000):
        descriptor = {"list": descriptor}
    with pytest.raises(UnsupportedTypeError, match="too deep"):
        type_from_descriptor(descriptor)


def test_the_python_class_is_not_part_of_the_type() -> None:
    plain = RowTypeInfo(("x", "y"), (Types.LONG(), Types.LONG()))
    declared = RowTypeInfo(("x", "y"), (Types.LONG(), Types.LONG()), Point)
    assert plain == declared
    assert hash(plain) == hash(declared)
    assert plain.describe() == declared.describe()
    assert pickle.loads(pickle.dumps(declared)).python_class is Point


def test_flink_names() -> None:
    assert Types.PRIMITIVE_ARRAY(Types.BYTE()) == Types.BYTES()
    assert Types.PRIMITIVE_ARRAY(Types.INT()) == Types.LIST(Types.INT())
    assert Types.BASIC_ARRAY(Types.INT()) == Types.OBJECT_ARRAY(Types.INT())
    assert Types.ROW([Types.INT(), Types.INT()]).names == ("f0", "f1")
    assert Types.TUPLE([Types.INT()]).python_class is tuple
    assert Types.BIG_DEC().arrow() == pa.decimal128(38, 18)
    assert Types.BIG_INT().arrow() == pa.decimal128(38, 0)


def test_rows_that_cannot_be() -> None:
    long = Types.LONG()
    with pytest.raises(UnsupportedTypeError, match="at least one"):
        Types.ROW([])
    with pytest.raises(UnsupportedTypeError, match="as many names as types"):
        Types.ROW_NAMED(["a"], [long, long])
    with pytest.raises(UnsupportedTypeError, match="two fields with the same name: a"):
        Types.ROW_NAMED(["a", "a"], [long, long])
    with pytest.raises(UnsupportedTypeError, match="non-empty string"):
        Types.ROW_NAMED([""], [long])
    with pytest.raises(UnsupportedTypeError, match="field 'a': expected a type"):
        Types.ROW_NAMED(["a"], [int])  # type: ignore[list-item]
    for factory in (Types.LIST, Types.BASIC_ARRAY):
        with pytest.raises(UnsupportedTypeError, match="expected a type"):
            factory(int)  # type: ignore[arg-type]


def test_keys_of_maps_must_be_hashable() -> None:
    for key in (Types.LIST(Types.INT()), Types.ROW([Types.LIST(Types.INT())])):
        with pytest.raises(UnsupportedTypeError, match="cannot be hashed"):
            Types.MAP(key, Types.INT())
    assert Types.MAP(Types.TUPLE([Types.INT()]), Types.INT())


@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (39, 0), (10, 11), (10, -1)])
def test_decimals_that_cannot_be(precision: int, scale: int) -> None:
    with pytest.raises(UnsupportedTypeError, match="precision"):
        Types.BIG_DEC(precision, scale)
