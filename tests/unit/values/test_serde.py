import dataclasses
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given

from turnback.errors import ElementTypeError
from turnback.values.hints import as_type
from turnback.values.row import Row
from turnback.values.serializer import Serializer, unpickle
from turnback.values.typeinfo import TypeInfo, Types
from type_strategies import ELEMENTS


class Post(NamedTuple):
    author: str
    count: int


@dataclasses.dataclass
class Account:
    owner: str
    posts: list[Post]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keyed:
    b: int
    a: str | None = None


class Event(msgspec.Struct):
    name: str
    account: Account | None = None


class KeywordEvent(msgspec.Struct, kw_only=True):
    name: str
    n: int


def round_trip(spec: Any, value: Any) -> Any:
    serializer = Serializer(as_type(spec))
    data = serializer.encode(value)
    assert isinstance(data, bytes)
    assert serializer.encode_all([value]) == [data]
    return serializer.decode(data)


@given(ELEMENTS.typed_values())
def test_any_value_of_any_type(given_: tuple[TypeInfo, list[Any]]) -> None:
    type_, values = given_
    serializer = Serializer(type_)
    encoded = [serializer.encode(v) for v in values]
    assert serializer.encode_all(values) == encoded
    assert list(map(serializer.decode, encoded)) == values
    again = pickle.loads(pickle.dumps(serializer))
    assert [again.decode(e) for e in encoded] == values


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("string", ""),
        ("string", "nul\0 Zoe\u0308 Zoë"),
        ("timestamp_ntz", datetime(1, 1, 1)),
        ("timestamp", datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("double", float("inf")),
        ("double", -0.0),
        ("boolean", False),
        (Types.BIG_INT(), 2**10_000),
        (Types.BIG_INT(), -(2**63) - 1),
        (Types.BIG_INT(), 2**63),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_extremes(spec: Any, value: Any) -> None:
    back = round_trip(spec, value)
    assert back == value
    assert repr(back)[:100] == repr(value)[:100]


@pytest.mark.slow
def test_large_values() -> None:
    text = "x" * (64 << 20)
    assert round_trip("string", text) == text
    data = b"\xff" * (64 << 20)
    assert round_trip("binary", data) == data
    (parts,) = round_trip("a array<binary>", ([data[: 32 << 20]] * 2,))
    assert list(map(len, parts)) == [32 << 20] * 2


def test_nan_and_none() -> None:
    assert repr(round_trip("double", float("nan"))) == "nan"
    for spec in ("bigint", "string", "array<int>", "a int", Account, "decimal(3,1)"):
        assert round_trip(spec, None) is None


def test_classes_come_back() -> None:
    account = Account("ann", [Post("ann", 1), Post("bob", 2)])
    assert round_trip(Account, account) == account
    assert type(round_trip(Account, account).posts[0]) is Post
    event = Event("e", account)
    assert round_trip(Event, event) == event
    assert round_trip(Event, Event("e")) == Event("e")
    assert round_trip(list[Event], [event, None]) == [event, None]
    assert round_trip(dict[Post, Event], {Post("a", 1): event}) == {Post("a", 1): event}
    assert type(next(iter(round_trip(dict[Post, int], {Post("a", 1): 2})))) is Post
    assert round_trip(Keyed, Keyed(b=1, a="x")) == Keyed(b=1, a="x")
    assert round_trip(KeywordEvent, KeywordEvent(name="x", n=1)) == KeywordEvent(name="x", n=1)
    by_row = as_type("map<struct<a:string,n:bigint>,int>")
    assert round_trip(by_row, {("a", 1): 2}) == {("a", 1): 2}
    assert next(iter(round_trip(by_row, {("a", 1): 2}))).n == 1
    pair = round_trip(tuple[str, tuple[int, int]], ("a", (1, 2)))
    assert pair == ("a", (1, 2))
    assert type(pair) is type(pair[1]) is tuple


def test_rows_come_back_with_names() -> None:
    back = round_trip("post string, inner struct<count:bigint>, l array<struct<a:int>>",
                      ("a", (1,), [(5,)]))  # fmt: skip
    assert isinstance(back, Row)
    assert (back.post, back.inner.count, back["inner"][0], back.l[0].a) == ("a", 1, 1, 5)
    assert pickle.loads(pickle.dumps(back)).inner.count == 1
    assert repr(back) == "Row(post='a', inner=Row(count=1), l=[Row(a=5)])"


def test_a_row_may_be_given_in_any_shape() -> None:
    serializer = Serializer(as_type("author string, count bigint"))
    expected = serializer.encode(("a", 1))
    for row in (Row("a", 1), Row(author="a", count=1), Post("a", 1), ["a", 1],
                {"count": 1, "author": "a"}):  # fmt: skip
        assert serializer.encode(row) == expected
    accounts = Serializer(as_type("owner string, posts array<struct<a:string,c:int>>"))
    assert accounts.encode(Account("x", [])) == accounts.encode(("x", []))


def test_values_keep_their_meaning() -> None:
    zoned = datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    back = round_trip("timestamp", zoned)
    assert back == zoned
    assert back.tzinfo == UTC
    assert str(round_trip("decimal(10,4)", Decimal("1.50"))) == "1.50"
    assert round_trip("float", 0.1) == pytest.approx(0.1, rel=1e-7)
    assert round_trip("float", 0.1) != 0.1
    assert type(round_trip("double", 3)) is float
    assert type(round_trip("decimal(10,4)", 3)) is Decimal


def test_lookalikes_are_accepted_as_what_they_are() -> None:
    numpy = pytest.importorskip("numpy")
    pandas = pytest.importorskip("pandas")

    class Text(str):
        __slots__ = ()

    for spec, value, plain in (
        ("bigint", numpy.int64(5), 5),
        ("double", numpy.float32(0.5), 0.5),
        ("double", numpy.float64(0.5), 0.5),
        ("boolean", numpy.bool_(True), True),
        ("string", Text("a"), "a"),
        ("string", numpy.str_("a"), "a"),
        ("binary", bytearray(b"a"), b"a"),
        ("binary", memoryview(b"a"), b"a"),
        ("timestamp_ntz", pandas.Timestamp(2024, 1, 1, 2, 3), datetime(2024, 1, 1, 2, 3)),
        ("array<bigint>", (1, numpy.int64(2)), [1, 2]),
        ("a bigint", (numpy.int32(7),), (7,)),
    ):  # fmt: skip
        back = round_trip(spec, value)
        assert back == plain
        assert type(back) is type(plain) or isinstance(back, Row)


WRONG = [
    ("bigint", "1"),
    ("bigint", 1.0),
    ("bigint", True),
    ("bigint", 2**63),
    ("bigint", -(2**63) - 1),
    ("int", 2**31),
    ("smallint", 2**15),
    ("tinyint", -129),
    ("string", 1),
    ("string", b"a"),
    ("string", "\ud800"),
    ("binary", "a"),
    ("boolean", 1),
    ("boolean", "true"),
    ("double", "1"),
    ("double", True),
    ("double", Decimal(1)),
    ("float", 1e300),
    ("date", datetime(2020, 1, 1)),
    ("date", "2020-01-01"),
    ("timestamp", datetime(2020, 1, 1)),
    ("timestamp", date(2020, 1, 1)),
    ("timestamp_ntz", datetime(2020, 1, 1, tzinfo=UTC)),
    ("timestamp_ntz", 5),
    ("decimal(4,2)", Decimal("100")),
    ("decimal(4,2)", Decimal("1.001")),
    ("decimal(4,2)", Decimal("NaN")),
    ("decimal(4,2)", Decimal("Infinity")),
    ("decimal(4,2)", 1.5),
    ("array<int>", "ab"),
    ("array<int>", {1, 2}),
    ("array<int>", [1, "2"]),
    ("array<int>", [None, 2**31]),
    ("array<string>", ["\ud800"]),
    ("map<string,int>", [("a", 1)]),
    ("map<string,int>", {1: 1}),
    ("map<string,int>", {"a": "b"}),
    ("map<string,int>", {None: 1}),
    ("a int, b string", (1,)),
    ("a int, b string", (1, "b", 2)),
    ("a int, b string", ("1", "b")),
    ("a int, b string", (1, 2)),
    ("a int, b string", {"a": 1}),
    ("a int, b string", {"a": 1, "b": "", "c": 2}),
    ("a int, b string", "ab"),
    ("a int, b string", 5),
    ("a struct<b:array<map<string,int>>>", (([{"k": 2**31}],),)),
]


@pytest.mark.parametrize(("spec", "value"), WRONG, ids=str)
def test_wrong_values_are_refused_when_written(spec: str, value: Any) -> None:
    serializer = Serializer(as_type(spec))
    with pytest.raises(ElementTypeError):
        serializer.encode(value)
    with pytest.raises(ElementTypeError):
        serializer.encode_all([value])
    with pytest.raises(ElementTypeError):
        Serializer(as_type(f"f struct<x:{serializer.type.ddl()}>")).encode(((value,),))


def test_errors_name_the_field_the_type_and_the_value() -> None:
    serializer = Serializer(as_type("outer struct<n:bigint>, s string"))
    with pytest.raises(
        ElementTypeError, match=r"^field 'outer': field 'n': 'abc' of class str .*type bigint"
    ):
        serializer.encode((("abc",), ""))
    with pytest.raises(ElementTypeError) as caught:
        serializer.encode(((b"x" * 10_000_000,), ""))
    assert len(str(caught.value)) < 300


def test_only_declared_pickles_are_pickled() -> None:
    value = {"any": {1, 2}, "thing": [complex(1, 2)]}
    assert round_trip(Types.PICKLED_BYTE_ARRAY(), value) == value
    assert round_trip(Types.PICKLED_BYTE_ARRAY(), None) is None
    mixed = Types.ROW([Types.STRING(), Types.PICKLED_BYTE_ARRAY()])
    assert round_trip(mixed, ("a", value)) == ("a", value)
    with pytest.raises(ElementTypeError):
        Serializer(Types.BYTES()).encode({"any": "thing"})


class Bomb:
    exploded = False

    def __reduce__(self) -> Any:
        return exec, (f"import {__name__} as m; m.Bomb.exploded = True",)


@pytest.mark.parametrize("spec", ["binary", "string", "bigint", "a binary", "array<binary>"])
def test_a_pickle_in_other_types_is_never_read(spec: str) -> None:
    bomb = msgspec.msgpack.encode(pickle.dumps(Bomb()))
    try:
        Serializer(as_type(spec)).decode(bomb)
    except msgspec.DecodeError:
        assert spec != "binary"
    assert not Bomb.exploded


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\xa1a", b"\x93\x01\xa1a\x01"])
def test_foreign_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Serializer(as_type("a int, b string")).decode(data)


def test_the_bytes_are_what_is_stored_for_ever() -> None:
    def data(spec: Any, value: Any) -> str:
        return Serializer(as_type(spec)).encode(value).hex()

    assert data("bigint", -5) == "fb"
    assert data("string", "a") == "a161"
    assert data("binary", b"a") == "c40161"
    assert data("boolean", True) == "c3"
    assert data("double", 1) == "cb3ff0000000000000"
    assert data("float", 0.1) == "cb3fb99999a0000000"
    assert data("date", date(2020, 1, 2)) == "aa323032302d30312d3032"
    assert data("timestamp_ntz", datetime(2020, 1, 2)) == b"\xb32020-01-02T00:00:00".hex()
    assert data("timestamp", datetime(2020, 1, 2, tzinfo=UTC)) == "d6ff5e0d3280"
    assert data("decimal(10,2)", Decimal("1.5")) == "a3312e35"
    assert data(Types.BIG_INT(), 2**63) == "c409008000000000000000"
    assert data("a int, b string", (1, None)) == "9201c0"
    assert data("map<string,array<int>>", {"a": [1, None]}) == "81a1619201c0"


def test_rows_pickled_before_their_module_moved_are_read():
    old = (
        b"\x80\x05\x95I\x00\x00\x00\x00\x00\x00\x00]\x94(\x8c\x11turnback.core.row\x94\x8c\x08_restore"
        b"\x94\x93\x94\x8c\x01a\x94\x8c\x01b\x94\x86\x94K\x01\x8c\x01x\x94\x86\x94\x86\x94R\x94h\x03)K\x01K"
        b"\x02\x86\x94\x86\x94R\x94e."
    )
    assert unpickle(old) == [Row(a=1, b="x"), Row(1, 2)]
