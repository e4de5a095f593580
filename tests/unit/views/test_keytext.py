"""What is shown of a key is a text by which that key is found."""

from __future__ import annotations

import json
from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnback.snapshot.table import ColumnCodec
from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types
from turnback.views.text import formatter, parse_key

_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS: list[tuple[TypeInfo, st.SearchStrategy[Any]]] = [
    (Types.STRING(), _TEXT),
    (Types.BYTES(), st.binary(max_size=20)),
    (Types.BOOLEAN(), st.booleans()),
    (Types.BYTE(), st.integers(-(2**7), 2**7 - 1)),
    (Types.SHORT(), st.integers(-(2**15), 2**15 - 1)),
    (Types.INT(), st.integers(-(2**31), 2**31 - 1)),
    (Types.LONG(), st.integers(-(2**63), 2**63 - 1)),
    (Types.BIG_INT(), st.integers(-(2**200), 2**200)),
    (Types.SQL_DATE(), st.dates()),
    (Types.SQL_TIME(), st.times()),
    (Types.SQL_TIMESTAMP(), st.datetimes()),
    (Types.INSTANT(), st.datetimes(timezones=st.just(UTC))),
    (Types.BIG_DEC(10, 3), st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n) / 1000)),
]


def _keys() -> st.SearchStrategy[tuple[tuple[TypeInfo, ...], Any]]:
    one = st.sampled_from(SCALARS).flatmap(lambda s: st.tuples(st.just(s[0]), s[1]))
    several = st.lists(one, min_size=1, max_size=3)
    flat = several.map(
        lambda parts: (
            tuple(type_ for type_, _ in parts),
            tuple(v for _, v in parts) if len(parts) > 1 else parts[0][1],
        )
    )
    rows = several.map(
        lambda parts: (
            (RowTypeInfo(tuple("abc"[: len(parts)]), tuple(t for t, _ in parts)),),
            tuple(v for _, v in parts),
        )
    )
    return flat | rows


STRINGS = (Types.STRING(), Types.STRING())


@settings(deadline=None)
@given(_keys())
@example((STRINGS, ("", " ")))
@example((STRINGS, ('"a"', ",")))
@example(((RowTypeInfo(("a", "b"), STRINGS),), ('"a"', " b ")))
def test_what_is_shown_is_found(drawn: tuple[tuple[TypeInfo, ...], Any]) -> None:
    types, key = drawn
    codec = KeyCodec(types, by_columns=True)
    whole = types[0] if len(types) == 1 else Types.TUPLE(types)
    typed = ColumnCodec(whole, required=True).decode(pa.array([codec.encode(key)], pa.binary()))
    (value,) = typed.to_pylist()
    if len(types) == 1:
        shown = formatter(types[0], longest=None)(value)
    else:
        parts = zip(types, value.values(), strict=True)
        shown = [formatter(t, longest=None)(v) for t, v in parts]
    assert codec.encode(parse_key(json.dumps(shown), types)) == codec.encode(key)
    if isinstance(shown, str) and not shown.startswith('"'):
        assert codec.encode(parse_key(shown, types)) == codec.encode(key)


@pytest.mark.parametrize(
    ("text", "types", "key"),
    [
        ("a,b", [Types.STRING()], "a,b"),
        ("  a", [Types.STRING()], "  a"),
        ('"  a"', [Types.STRING()], "  a"),
        ('"', [Types.STRING()], '"'),
        ("1_000", [Types.STRING()], "1_000"),
        ("5", [Types.STRING()], "5"),
        ('"5"', [Types.LONG()], 5),
        (" x , 5 ", [Types.STRING(), Types.LONG()], ("x", 5)),
        ('["x", "5"]', [Types.STRING(), Types.LONG()], ("x", 5)),
        ('["5", 5]', [Types.STRING(), Types.LONG()], ("5", 5)),
        ("[1.10]", [Types.ROW_NAMED(["d"], [Types.BIG_DEC(5, 2)])], (Decimal("1.10"),)),
    ],
)
def test_ways_to_write_a_key(text: str, types: list[TypeInfo], key: Any) -> None:
    assert parse_key(text, types) == key
