"""How rows become files of a table: by partition, with statistics that are never too narrow."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from turnback.connectors.tables.files import column_changes, delta_stats, partition_text, split


def stats(values, kind=None):
    found = json.loads(delta_stats(pa.table({"c": pa.array(values, kind)})))
    return found["minValues"].get("c"), found["maxValues"].get("c"), found["nullCount"].get("c")


def instant(microsecond):
    return datetime(2026, 1, 2, 3, 4, 5, microsecond, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, None, -1], pa.int64(), (-1, 3, 1)),
        ([None, None], pa.int64(), (None, None, 2)),
        ([1.5, -0.5], pa.float64(), (-0.5, 1.5, 0)),
        ([1.5, float("nan")], pa.float64(), (None, None, 0)),
        ([1.5, float("inf")], pa.float64(), (None, None, 0)),
        (["b", "a"], pa.string(), ("a", "b", 0)),
        (["a" * 40, "b" * 40], pa.string(), ("a" * 32, None, 0)),
        ([date(2026, 1, 2), date(1969, 1, 2)], None, ("1969-01-02", "2026-01-02", 0)),
        ([Decimal("1.25"), Decimal("-2.50")], pa.decimal128(10, 2), (-2.5, 1.25, 0)),
        ([Decimal(10) ** 37], pa.decimal128(38, 0), (None, None, 0)),
        ([True, False], pa.bool_(), (None, None, 0)),
        ([b"x"], pa.binary(), (None, None, 0)),
        ([[1], None], pa.list_(pa.int64()), (None, None, None)),
    ],
)
def test_bounds(values, kind, expected):
    assert stats(values, kind) == expected


def test_bounds_of_timestamps_are_whole_milliseconds_around_them():
    low, high, _ = stats([instant(678901), instant(1)], pa.timestamp("us", "UTC"))
    assert (low, high) == ("2026-01-02T03:04:05.000Z", "2026-01-02T03:04:05.679Z")
    before = datetime(1969, 12, 31, 23, 59, 59, 999999)
    assert stats([before], pa.timestamp("us"))[:2] == (
        "1969-12-31T23:59:59.999",
        "1970-01-01T00:00:00.000",
    )


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, pa.string(), None),
        ("a/b=%", pa.string(), "a/b=%"),
        (-3, pa.int32(), "-3"),
        (True, pa.bool_(), "true"),
        (date(2026, 1, 2), pa.date32(), "2026-01-02"),
        (Decimal("1.50"), pa.decimal128(5, 2), "1.50"),
        (instant(678901), pa.timestamp("us", "UTC"), "2026-01-02T03:04:05.678901Z"),
        (
            datetime(2026, 1, 2, 3, 4, 5, 678901),
            pa.timestamp("us"),
            "2026-01-02 03:04:05.678901",
        ),
    ],
)
def test_partition_values_as_text(value, kind, text):
    assert partition_text(pa.scalar(value, kind)) == text


def test_rows_are_divided_by_all_columns_in_their_order():
    table = pa.table({"a": ["x", None, "x", "x"], "b": [1, 1, 2, 1], "n": [1, 2, 3, 4]})
    found = {
        (values["a"].as_py(), values["b"].as_py()): part["n"].to_pylist()
        for values, part in split(table, ("a", "b"))
    }
    assert found == {("x", 1): [1, 4], (None, 1): [2], ("x", 2): [3]}


def test_many_values_are_divided_alike():
    keys = np.random.default_rng(1).integers(0, 50, 5_000)
    table = pa.table({"k": keys, "n": np.arange(5_000)})
    parts = {values["k"].as_py(): part["n"].to_pylist() for values, part in split(table, ("k",))}
    assert parts == {k: np.flatnonzero(keys == k).tolist() for k in set(keys.tolist())}


def test_columns_with_many_values_each_do_not_overflow():
    """The product of six columns of 4,096 values is 0 in 64 bits: the first would not count."""
    keys = [*range(4096), 0]
    table = pa.table({"first": [0] * 4096 + [1], **{f"k{n}": keys for n in range(6)}})
    parts = list(split(table, tuple(table.column_names)))
    assert [part.num_rows for _, part in parts] == [1] * 4097


def test_without_columns_nothing_is_divided():
    table = pa.table({"n": [1, 2]})
    ((values, part),) = split(table, ())
    assert (values, part) == ({}, table)


def test_names_and_widths_of_nested_types_do_not_matter():
    stream = pa.schema([("l", pa.list_(pa.field("element", pa.string())))])
    table = pa.schema([("l", pa.large_list(pa.field("item", pa.large_string())))])
    assert list(column_changes(stream, table)) == []
    other = pa.schema([("l", pa.list_(pa.int64()))])
    assert len(list(column_changes(stream, other))) == 1
