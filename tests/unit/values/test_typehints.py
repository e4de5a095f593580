import dataclasses
import typing
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NewType, Optional

import msgspec
import pyarrow as pa
import pytest

from turnback.errors import PlanError, UnsupportedTypeError
from turnback.values.hints import as_type
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

LONG, STRING = Types.LONG(), Types.STRING()
UserId = NewType("UserId", int)


class Post(NamedTuple):
    author: str
    n: int
    at: datetime | None = None


@dataclasses.dataclass
class Account:
    owner: str
    balance: Decimal
    posts: list[Post]
    small: Annotated[int, Types.INT(), "anything"] = 0


class Event(msgspec.Struct):
    name: str
    tags: dict[str, list[int]] = {}


class Node(NamedTuple):
    next: "Node | None"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (LONG, LONG),
        (int, LONG),
        (float, Types.DOUBLE()),
        (str, STRING),
        (bytes, Types.BYTES()),
        (bool, Types.BOOLEAN()),
        (date, Types.SQL_DATE()),
        (time, Types.SQL_TIME()),
        (datetime, Types.INSTANT()),
        (Decimal, Types.BIG_DEC()),
        (list[int], Types.LIST(LONG)),
        (typing.List[int], Types.LIST(LONG)),  # noqa: UP006
        (typing.Sequence[int], Types.LIST(LONG)),
        (dict[str, list[int]], Types.MAP(STRING, Types.LIST(LONG))),
        (tuple[str, int], Types.TUPLE([STRING, LONG])),
        (int | None, LONG),
        (Optional[int], LONG),  # noqa: UP045
        (list[int | None], Types.LIST(LONG)),
        (UserId, LONG),
        (Annotated[int, Types.SHORT()], Types.SHORT()),
        (Annotated[int, "a comment"], LONG),
        ("bigint", LONG),
        ("post string, n bigint", Types.ROW_NAMED(["post", "n"], [STRING, LONG])),
        (pa.int32(), Types.INT()),
        (pa.large_string(), STRING),
        (pa.uint16(), Types.INT()),
        (pa.timestamp("ns"), Types.SQL_TIMESTAMP()),
        (pa.timestamp("ms", "Europe/Berlin"), Types.INSTANT()),
        (pa.dictionary(pa.int32(), pa.string()), STRING),
        (pa.schema([("a", pa.list_(pa.int64()))]), Types.ROW_NAMED(["a"], [Types.LIST(LONG)])),
    ],
    ids=str,
)
def test_what_can_be_given(spec: Any, expected: TypeInfo) -> None:
    assert as_type(spec) == expected


def test_tuples_come_out_as_tuples() -> None:
    type_ = as_type(tuple[str, int])
    assert isinstance(type_, RowTypeInfo)
    assert type_.python_class is tuple


def test_classes() -> None:
    post = as_type(Post)
    assert post == Types.ROW_NAMED(["author", "n", "at"], [STRING, LONG, Types.INSTANT()])
    account = as_type(Account)
    assert account == Types.ROW_NAMED(
        ["owner", "balance", "posts", "small"],
        [STRING, Types.BIG_DEC(), Types.LIST(post), Types.INT()],
    )
    event = as_type(Event)
    assert event.describe() == {"row": [["name", "string"], ["tags", {"map": ["string", {"list": "long"}]}]]}  # fmt: skip  # noqa: E501
    for cls, type_ in ((Post, post), (Account, account), (Event, event)):
        assert isinstance(type_, RowTypeInfo)
        assert type_.python_class is cls


@dataclasses.dataclass
class NoInit:
    a: int
    b: int = dataclasses.field(init=False, default=0)


class Bad(NamedTuple):
    inner: list[Any]


class Unknown(NamedTuple):
    x: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (object, "object is not a type.*allowed are.*PICKLED_BYTE_ARRAY"),
        (Any, "Any is not a type"),
        (None, "None is not a type"),
        (42, "42 is not a type"),
        (list, r"list is not a type.*list\[int\]"),
        (tuple, "tuple is not a type.*specify the type of its elements"),
        (tuple[int, ...], r"fixed number of values; use list\[X\]"),
        (tuple[()], "fixed number"),
        (int | str, r"a union can only be X \| None"),
        (set[int], "is not a type"),
        (complex, "complex is not a type"),
        (Node, "contains itself"),
        (NoInit, "'b' has init=False"),
        (Bad, "field 'inner' of Bad: .*Any"),
        (Unknown, "Nowhere"),
        (lambda: 0, "is not a type"),
        (pa.null(), "null"),
        (pa.uint64(), "uint64"),
        (pa.duration("s"), "duration"),
        (pa.decimal256(60, 2), "decimal"),
        (dict[list[int], int], "cannot be hashed"),
        ("strin", "unknown type 'strin'"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_cannot(spec: Any, message: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=message) as caught:
        as_type(spec)
    assert isinstance(caught.value, PlanError)


def test_spark_types_are_known_by_their_looks() -> None:
    spark = pytest.importorskip("pyspark.sql.types")
    names = "String Binary Boolean Byte Short Integer Long Float Double Date TimestampNTZ Timestamp"
    schema = spark.StructType()
    for name in names.split():
        schema.add(name[:2].lower() + str(len(schema)), getattr(spark, f"{name}Type")())
    inner = spark.StructType().add("x.y", spark.DateType(), False)
    schema.add("n", spark.DecimalType(20, 4)).add("l", spark.ArrayType(spark.LongType()))
    schema.add("a b", spark.MapType(spark.StringType(), inner)).add("v", spark.VarcharType(3))
    type_ = as_type(schema)
    assert type_.ddl() == (
        "struct<st0:string,bi1:binary,bo2:boolean,by3:tinyint,sh4:smallint,in5:int,lo6:bigint,"
        "fl7:float,do8:double,da9:date,ti10:timestamp_ntz,ti11:timestamp,n:decimal(20,4),"
        "l:array<bigint>,`a b`:map<string,struct<`x.y`:date>>,v:string>"
    )
    assert as_type(spark.LongType()) == as_type(spark.LongType) == LONG
    for other in (spark.NullType(), spark.DayTimeIntervalType(), spark.VariantType()):
        with pytest.raises(UnsupportedTypeError):
            as_type(other)
