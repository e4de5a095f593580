"""The key group of a key in Python is the one Spark computes, for every key type."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as pyspark_types

from turnback.values.columns import Batch, stream_ddl
from turnback.values.hints import as_type
from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import RowTypeInfo, Types

KEYS: dict[str, list[Any]] = {
    "tinyint": [0, 1, -1, 127, -128],
    "smallint": [0, 1, -1, 32767, -32768],
    "int": [0, 1, -1, 42, 2**31 - 1, -(2**31)],
    "bigint": [0, 1, -1, 42, 2**63 - 1, -(2**63), 2**31, -(2**31) - 1],
    "string": ["", "a", "Zoë", "Zoe\u0308", "nul\0nul", "x" * 31, "x" * 32, "x" * 33, "😀" * 50],
    "binary": [b"", b"\0", b"\xff" * 7, bytes(range(256)), b"ab" * 4096],
    "boolean": [True, False],
    "date": [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    "timestamp": [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2024, 7, 1, 12, 30, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(1950, 6, 1, tzinfo=UTC),
    ],
    "timestamp_ntz": [datetime(1970, 1, 1), datetime(2024, 7, 1, 12, 30, 0, 123_456)],
    "decimal(10,2)": [Decimal("0"), Decimal("1.5"), Decimal("-1.50"), Decimal("99999999.99")],
    "decimal(18,0)": [Decimal(10**18 - 1), Decimal(-(10**18) + 1)],
    "decimal(19,0)": [Decimal(0), Decimal(127), Decimal(128), Decimal(-128), Decimal(-129)],
    "decimal(38,18)": [Decimal("1.5"), Decimal("-0"), Decimal("-12345678901234567890.123456789")],
    "decimal(38,0)": [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(255), Decimal(-256)],
    "struct<a:string,b:struct<c:bigint,d:date>>": [
        ("x", (1, date(2020, 1, 1))),
        ("", (-(2**63), date(1900, 1, 1))),
    ],
}
SEVERAL = "a string, b bigint, c int, d boolean, e decimal(20,3), f timestamp"


@pytest.fixture(scope="module")
def spark(session: Any) -> Iterator[Any]:
    zone = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield session
    session.conf.set("spark.sql.session.timeZone", zone)


def spark_groups(spark: Any, type_: RowTypeInfo, rows: list[Any], groups: int) -> list[int]:
    """Return what Spark computes for each row from all of its columns."""
    frame = to_frame(spark, type_, rows)
    assert as_type(frame.schema) == type_, frame.schema
    columns = ", ".join(f"`{n}`" for n in type_.names)
    found = frame.selectExpr(f"pmod(xxhash64({columns}), {groups}) as g").collect()
    return [row.g for row in found]


def to_frame(spark: Any, type_: RowTypeInfo, rows: list[Any]) -> Any:
    schema = pyspark_types.StructType.fromDDL(stream_ddl(type_))
    return spark.createDataFrame(pa.Table.from_batches([Batch(type_, rows).arrow]), schema)


@pytest.mark.parametrize("ddl", KEYS)
def test_one_column(spark: Any, ddl: str) -> None:
    type_ = as_type(ddl)
    rows = [(key,) for key in KEYS[ddl]]
    codec = KeyCodec((type_,), by_columns=True)
    for groups in (128, 1_000_003):
        expected = spark_groups(spark, Types.ROW_NAMED(["k"], [type_]), rows, groups)
        assert [codec.group(key, groups) for key in KEYS[ddl]] == expected


def test_big_int_column(spark: Any) -> None:
    keys = [0, -1, 2**63, -(2**63) - 1, 10**38 - 1, -(10**38) + 1]
    expected = spark_groups(spark, as_type("k decimal(38,0)"), [(Decimal(k),) for k in keys], 4096)
    codec = KeyCodec((Types.BIG_INT(),), by_columns=True)
    assert [codec.group(key, 4096) for key in keys] == expected


def test_several_columns_are_chained(spark: Any) -> None:
    type_ = as_type(SEVERAL)
    assert isinstance(type_, RowTypeInfo)
    at = datetime(2024, 7, 1, tzinfo=UTC)
    rows = [
        (f"user-{i}", i * 10**9, -i, i % 2 == 0, Decimal(i) / 8, at + timedelta(microseconds=i))
        for i in range(200)
    ]
    codec = KeyCodec(type_.types, by_columns=True)
    expected = spark_groups(spark, type_, rows, 1_000_003)
    assert [codec.group(row, 1_000_003) for row in rows] == expected
    assert len(set(expected)) > 190


def test_encoded_keys_hash_as_spark_hashes_their_bytes(spark: Any) -> None:
    codec = KeyCodec((Types.STRING(), Types.LONG()), by_columns=False)
    keys = [(f"k{i}", i) for i in range(50)]
    expected = spark_groups(
        spark, as_type("k binary"), [(codec.encode(key),) for key in keys], 1_000_003
    )
    assert [codec.group(key, 1_000_003) for key in keys] == expected


def test_time_column(spark: Any) -> None:
    keys = [time(0, 0), time(23, 59, 59, 999_999), time(10, 11, 12)]
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        expected = spark_groups(spark, as_type("k time(6)"), [(k,) for k in keys], 1_000_003)
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
    codec = KeyCodec((Types.SQL_TIME(),), by_columns=True)
    assert [codec.group(key, 1_000_003) for key in keys] == expected


EVERYTHING = (
    "s string, y binary, b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f4 float, "
    "f8 double, d date, t timestamp_ntz, z timestamp, n decimal(20,4), l array<bigint>, "
    "m map<string,struct<x:date,`a b`:array<string>>>, r struct<count:int,select:timestamp>"
)


def test_every_type_survives_a_python_worker(spark: Any) -> None:
    type_ = as_type(EVERYTHING)
    at = datetime(2024, 7, 1, 1, 2, 3, 456_789)
    rows = [
        ("ä\0", b"\xff", True, -128, 1, 2, 2**63 - 1, 0.5, 1e300, at.date(), at,
         at.replace(tzinfo=UTC), Decimal("1.25"), [1, None, 3],
         {"k": (at.date(), ["", None]), "n": None}, (7, at.replace(tzinfo=UTC))),
        (None,) * 16,
        ("", b"", False, 0, 0, 0, 0, 0.0, 0.0, date(1969, 12, 31), datetime(1900, 1, 1),
         datetime(1900, 1, 1, tzinfo=UTC), Decimal("-0.0001"), [], {}, (None, None)),
    ]  # fmt: skip

    def through(batches: Any) -> Any:
        for batch in batches:
            yield Batch(type_, Batch(type_, batch).rows).arrow

    frame = to_frame(spark, type_, rows)
    back = frame.coalesce(1).mapInArrow(through, stream_ddl(type_)).toArrow()
    found = [row for batch in back.to_batches() for row in Batch(type_, batch).rows]
    assert found == rows
