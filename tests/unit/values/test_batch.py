import dataclasses
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given

from turnback.errors import ElementTypeError
from turnback.values.columns import Batch, stream_ddl, stream_schema
from turnback.values.hints import as_type
from turnback.values.row import Row
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types
from type_strategies import ELEMENTS

POST = as_type("`author` string, `count` bigint, `score` double")


class Post(NamedTuple):
    author: str
    count: int


@dataclasses.dataclass
class Account:
    owner: str
    posts: list[Post]


class Event(msgspec.Struct, kw_only=True):
    name: str
    account: Account | None = None


def through_arrow(spec: Any, rows: list[Any]) -> list[Any]:
    type_ = as_type(spec)
    arrow = Batch(type_, rows).arrow
    arrow.validate(full=True)
    assert arrow.schema == stream_schema(type_)
    return Batch(type_, arrow).rows


@given(ELEMENTS.typed_values(count=0))
def test_any_values_of_any_type(given_: tuple[TypeInfo, list[Any]]) -> None:
    type_, values = given_
    if isinstance(type_, RowTypeInfo):
        values = [v for v in values if v is not None]
    assert through_arrow(type_, values) == values
    # Slices, as Spark makes them, must not show what is beyond their ends.
    arrow = Batch(type_, values * 3).arrow
    size = len(values)
    assert Batch(type_, arrow.slice(size, size)).rows == values
    assert Batch(type_, arrow.slice(1)).rows == (values * 3)[1:]


def test_rows_have_one_column_per_field_and_others_one_called_value() -> None:
    assert Batch(POST, [("a", 1, 0.5)]).arrow.schema.names == ["author", "count", "score"]
    assert Batch(Types.LONG(), [1, None, 3]).arrow.to_pydict() == {"value": [1, None, 3]}
    assert stream_ddl(POST) == "`author` string, `count` bigint, `score` double"
    assert stream_ddl(Types.LIST(Types.LONG())) == "`value` array<bigint>"
    assert stream_ddl(as_type("`a b` int")) == "`a b` int"


def test_each_form_is_made_once() -> None:
    rows = [("a", 1, 0.5), ("b", 2, None)]
    batch = Batch(POST, rows)
    assert batch.rows is rows
    assert batch.arrow is batch.arrow
    other = Batch(POST, batch.arrow)
    assert other.rows is other.rows
    assert other.arrow is batch.arrow
    assert len(batch) == len(other) == 2
    assert len(Batch(POST, [])) == 0
    assert Batch(POST, Batch(POST, []).arrow).rows == []
    assert repr(other) == f"Batch({POST}, 2 elements)"


def test_rows_come_out_as_rows() -> None:
    (row,) = through_arrow("author string, inner struct<count:bigint>, l array<struct<a:int>>",
                           [("a", (1,), [(2,), None])])  # fmt: skip
    assert isinstance(row, Row)
    assert (row.author, row.inner.count, row.l[0].a, row["l"][1]) == ("a", 1, 2, None)


def test_classes_come_out_as_declared() -> None:
    posts = [Post("a", 1), Post("b", None)]  # type: ignore[arg-type]
    assert through_arrow(Post, posts) == posts
    assert type(through_arrow(Post, posts)[0]) is Post
    accounts = [Account("x", posts), Account("y", [])]
    assert through_arrow(Account, accounts) == accounts
    assert type(through_arrow(Account, accounts)[0].posts[0]) is Post
    events = [Event(name="e", account=accounts[0]), Event(name="f")]
    assert through_arrow(Event, events) == events
    pairs = through_arrow(tuple[str, int], [("a", 1)])
    assert pairs == [("a", 1)]
    assert type(pairs[0]) is tuple


def test_rows_of_every_shape_can_be_mixed() -> None:
    @dataclasses.dataclass
    class Shape:
        author: str
        count: int
        score: float

    rows = [("a", 1, 0.5), ["a", 1, 0.5], Row("a", 1, 0.5), Row(author="a", count=1, score=0.5),
            {"score": 0.5, "author": "a", "count": 1}, Shape("a", 1, 0.5)]  # fmt: skip
    assert through_arrow(POST, rows) == [("a", 1, 0.5)] * len(rows)
    assert through_arrow(POST, rows[:3]) == [("a", 1, 0.5)] * 3


def test_time_keeps_microseconds_and_zones() -> None:
    zoned = datetime(2024, 7, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=-5)))
    (back,) = through_arrow("timestamp", [zoned])
    assert back == zoned
    assert back.tzinfo is UTC
    naive = datetime(1901, 2, 3, 4, 5, 6, 7)
    assert through_arrow("timestamp_ntz", [naive, None]) == [naive, None]
    # What others send may have another unit or zone.
    column = pa.array([1_500], pa.timestamp("ms", "America/New_York"))
    batch = pa.RecordBatch.from_arrays([column], ["value"])
    assert Batch(Types.INSTANT(), batch).rows == [
        datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    ]
    nanos = pa.RecordBatch.from_arrays([pa.array([1_999], pa.timestamp("ns"))], ["value"])
    assert Batch(Types.SQL_TIMESTAMP(), nanos).rows == [datetime(1970, 1, 1, 0, 0, 0, 1)]


def test_wide_and_encoded_columns_are_read() -> None:
    wide = pa.RecordBatch.from_arrays(
        [
            pa.array(["a", None], pa.large_string()),
            pa.array(["x", "x"]).dictionary_encode(),
            pa.array([[1], [2, 3]], pa.large_list(pa.int32())),
        ],
        ["a", "b", "c"],
    )
    type_ = as_type("a string, b string, c array<bigint>")
    assert Batch(type_, wide).rows == [("a", "x", [1]), (None, "x", [2, 3])]


WRONG = [
    ("bigint", 1.5),
    ("bigint", 1.0),
    ("bigint", "1"),
    ("bigint", True),
    ("bigint", 2**63),
    ("int", 2**31),
    ("string", b"bytes"),
    ("string", 5),
    ("string", "\ud800"),
    ("binary", "text"),
    ("boolean", 1),
    ("double", "1"),
    ("float", 1e300),
    ("float", -3.4028236e38),
    ("double", True),
    ("date", datetime(2020, 1, 1)),
    ("date", 5),
    ("timestamp", datetime(2020, 1, 1)),
    ("timestamp_ntz", datetime(2020, 1, 1, tzinfo=UTC)),
    ("timestamp_ntz", date(2020, 1, 1)),
    ("decimal(4,2)", Decimal("1.001")),
    ("decimal(4,2)", Decimal("100")),
    ("decimal(4,2)", Decimal("NaN")),
    ("decimal(4,2)", 1.5),
    ("array<string>", "ab"),
    ("array<int>", [2**31]),
    ("map<string,int>", [("a", 1)]),
    ("map<string,int>", {None: 1}),
    ("struct<a:int>", (1, 2)),
    ("struct<a:int>", ("1",)),
    ("struct<a:int>", 5),
    ("struct<a:int>", {"b": 1}),
]


@pytest.mark.parametrize(("ddl", "value"), WRONG, ids=str)
def test_wrong_values_are_named(ddl: str, value: Any) -> None:
    fine = Batch(as_type(f"a string, bad {ddl}"), [("x", None)] * 3)
    assert len(fine.arrow) == 3
    rows = [("x", None), ("y", value), ("z", None)]
    with pytest.raises(ElementTypeError, match=r"^field 'bad': ") as caught:
        Batch(as_type(f"a string, bad {ddl}"), rows).arrow  # noqa: B018
    assert isinstance(caught.value, TypeError)


def test_errors_hold_the_declared_type_and_the_value_cut_short() -> None:
    with pytest.raises(ElementTypeError, match=r"field 'count': 'aaa.*class str.*type bigint") as e:
        Batch(POST, [("a", "a" * 10_000, 0.5)]).arrow  # noqa: B018
    assert len(str(e.value)) < 250
    with pytest.raises(ElementTypeError, match="it has 2 values instead of 3"):
        Batch(POST, [("a", 1, 0.5), ("a", 1), ("a", 1, 0.5, 4)]).arrow  # noqa: B018
    with pytest.raises(ElementTypeError, match=r"^None of class NoneType"):
        Batch(POST, [None]).arrow  # noqa: B018
    with pytest.raises(ElementTypeError, match="at most 38 digits"):
        Batch(Types.BIG_INT(), [10**38]).arrow  # noqa: B018


def test_columns_must_be_as_many_as_fields() -> None:
    with pytest.raises(ElementTypeError, match="needs 3 columns, got 1: value"):
        Batch(POST, Batch(Types.LONG(), [1]).arrow).rows  # noqa: B018


def test_single_precision() -> None:
    largest = (2 - 2**-23) * 2.0**127
    values = [0.1, largest, -largest, float("inf"), float("-inf"), None, 3.4028235e38]
    back = through_arrow("float", values)
    assert back[1:6] == values[1:6]
    assert back[6] == largest
    assert back[0] == pytest.approx(0.1, rel=1e-7)
    assert back[0] != 0.1


def test_pickled_objects() -> None:
    value = {"a": {1, 2}}
    assert through_arrow(Types.PICKLED_BYTE_ARRAY(), [value, None]) == [value, None]
