"""Values as JSON can hold them."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from turnback.values.typeinfo import Types
from turnback.views.text import formatter, position_lines

LONG, TEXT = Types.LONG(), Types.STRING()
ROW = Types.ROW_NAMED(["n", "at"], [LONG, Types.INSTANT()])
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        (TEXT, "naïve ☃", "naïve ☃"),
        (TEXT, None, None),
        (LONG, 2**53, 2**53),
        (LONG, 2**53 + 1, str(2**53 + 1)),
        (LONG, -(2**63), str(-(2**63))),
        (Types.BOOLEAN(), True, True),
        (Types.BYTES(), b"\x00\xff", "0x00ff"),
        (Types.BYTES(), b"", "0x"),
        (Types.BIG_DEC(20, 2), Decimal("1E+3"), "1000"),
        (Types.BIG_DEC(20, 2), Decimal("-1.50"), "-1.50"),
        (Types.SQL_DATE(), date(2026, 1, 31), "2026-01-31"),
        (Types.SQL_TIMESTAMP(), NOON.replace(tzinfo=None), "2026-01-31T12:00:00"),
        (Types.INSTANT(), NOON, "2026-01-31T12:00:00Z"),
        (Types.DOUBLE(), 0.1, 0.1),
        (Types.DOUBLE(), math.nan, "NaN"),
        (Types.DOUBLE(), math.inf, "Infinity"),
        (Types.DOUBLE(), -math.inf, "-Infinity"),
        (Types.FLOAT(), 0.10000000149011612, 0.1),
        (Types.FLOAT(), math.nan, "NaN"),
        (Types.PICKLED_BYTE_ARRAY(), b"x" * 1234, "<pickle, 1,234 bytes>"),
        (ROW, {"n": 1, "at": NOON}, {"n": 1, "at": "2026-01-31T12:00:00Z"}),
        (ROW, {"n": None, "at": None}, {"n": None, "at": None}),
        (Types.LIST(LONG), [1, None, 2**60], [1, None, str(2**60)]),
        (Types.MAP(TEXT, LONG), [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (Types.MAP(LONG, TEXT), [(1, "a")], {"1": "a"}),
        (Types.MAP(Types.BOOLEAN(), TEXT), [(True, "a")], {"true": "a"}),
        (Types.MAP(ROW, LONG), [({"n": 1, "at": None}, 2)], [[{"n": 1, "at": None}, 2]]),
    ],
)
def test_values(type_, value, shown):
    found = formatter(type_)(value)
    assert found == shown
    assert type(found) is type(shown)
    assert json.loads(json.dumps(found, allow_nan=False)) == shown


@pytest.mark.parametrize(
    ("type_", "value", "end"),
    [
        (TEXT, "x" * 30, "x… (30 characters)"),
        (Types.BYTES(), b"\xff" * 30, "ff… (30 bytes)"),
        (Types.LIST(TEXT), ["abc"] * 9, "… (6 more)"),
        (Types.LIST(LONG), list(range(100)), "… (95 more)"),
    ],
)
def test_long_values_are_cut(type_, value, end):
    found = formatter(type_, longest=10)(value)
    assert (found if isinstance(found, str) else found[-1]).endswith(end)
    assert len(str(found)) < 60
    whole = formatter(type_, longest=None)(value)
    assert len(str(whole)) > len(str(found))
    assert "…" not in str(whole)


def test_long_maps_and_rows_are_cut_and_their_keys_are_not():
    value = [(f"{'k' * 20}{i}", "v" * 20) for i in range(9)]
    found = formatter(Types.MAP(TEXT, TEXT), longest=30)(value)
    assert list(found) == [value[0][0], "…"]
    assert found["…"] == "8 more"
    pairs = formatter(Types.MAP(ROW, TEXT), longest=5)(
        [({"n": i, "at": None}, "v") for i in range(9)]
    )
    assert pairs[-1] == "… (8 more)"
    row = formatter(Types.ROW_NAMED(["a", "b"], [TEXT, TEXT]), longest=10)(
        {"a": "x" * 50, "b": "yy"}
    )
    assert row == {"a": "x" * 10 + "… (50 characters)", "b": "… (2 characters)"}


def test_each_value_has_room_of_its_own():
    show = formatter(TEXT, longest=10)
    assert [show("x" * 9), show("y" * 9)] == ["x" * 9, "y" * 9]


@pytest.mark.parametrize(
    ("offset", "lines"),
    [
        (
            '{"likes":{"10":7,"2":5},"clicks":{"0":1}}',
            ["clicks 0: 1", "likes 2: 5", "likes 10: 7"],
        ),
        ('{"logOffset":3}', ['{"logOffset":3}']),
        ('{"at": {"x": 1}}', ['{"at": {"x": 1}}']),
        ("{}", ["{}"]),
        ("12", ["12"]),
        (None, [None]),
    ],
)
def test_positions_in_kafka_are_by_topic_and_partition(offset, lines):
    assert position_lines(offset) == lines
