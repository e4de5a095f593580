"""What NumPy reads and writes is compared with what msgspec does, value by value."""

from __future__ import annotations

import math
import struct

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from savepoint_support import values

from turnback.snapshot.table import ColumnCodec, UnusualError, column_of, packed_column
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import (
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    Types,
)
from type_strategies import STORED, row_types

LEFT_TO_MSGSPEC = {"big_int", "date", "time", "timestamp", "instant"}
SCALARS = [
    t for t in STORED.scalars if isinstance(t, BasicTypeInfo) and t.name not in LEFT_TO_MSGSPEC
]
FLAT = st.recursive(st.sampled_from(SCALARS), row_types, max_leaves=6)
NO_NULL_ROWS = FLAT.flatmap(
    lambda t: st.tuples(
        st.just(t),
        st.lists(values(t, not isinstance(t, RowTypeInfo)), min_size=1, max_size=8),
    )
)


def packed_values(type_, held):
    return pa.array(list(map(Serializer(type_).encode, held)), pa.binary())


def by_msgspec(type_, data):
    """The column as it was made before NumPy did: an object for each value."""
    column = column_of(type_)
    hint = list[column.hint | None]
    decode = msgspec.msgpack.Decoder(hint).decode
    return column.to_arrow(decode(msgspec.msgpack.encode([msgspec.Raw(v) for v in data])))


def same_bits(left, right):
    """As `equals`, but of floats the bits count: -0.0 is not 0.0, and nan is itself."""
    assert left.type == right.type
    if pa.types.is_struct(left.type):
        return left.is_null().equals(right.is_null()) and all(
            map(same_bits, left.flatten(), right.flatten())
        )
    if pa.types.is_floating(left.type):
        bits = pa.int64() if left.type == pa.float64() else pa.int32()
        left, right = left.view(bits), right.view(bits)
    return left.equals(right)


def check(type_, data):
    packed = packed_column(type_)
    column = packed.unpack(data)
    column.validate(full=True)
    assert same_bits(column, by_msgspec(type_, data.to_pylist()))
    back = packed.pack(column)
    back.validate(full=True)
    assert back.equals(data.cast(pa.binary()))
    middle = slice(1, len(data) - 1)
    assert packed.pack(column[middle]).equals(data.cast(pa.binary())[middle])


@given(NO_NULL_ROWS)
def test_both_ways_give_what_msgspec_gives(case):
    type_, held = case
    data = packed_values(type_, held)
    check(type_, data)
    check(type_, data.cast(pa.large_binary()))
    around = packed_values(type_, [*held, *held, *held])
    check(type_, around.slice(len(held), len(held)))


@pytest.mark.parametrize(
    ("type_", "held"),
    [
        (
            Types.LONG(),
            [
                number
                for limit in (0, 32, 127, 128, 255, 256, 2**15, 2**16, 2**31, 2**32, 2**63 - 1)
                for number in (limit - 1, limit, -limit, -limit - 1, min(limit + 1, 2**63 - 1))
            ],
        ),
        (Types.BYTE(), [-128, 127, -33, -32, -1, 0, None]),
        (Types.STRING(), ["", None, "é" * 16, "x" * 31, "x" * 32, "x" * 255, "x" * 256, "\0"]),
        (Types.STRING(), ["x" * 65_535, "☃" * 40_000, "y"]),
        (Types.BYTES(), [b"", None, b"x" * 255, b"x" * 256, b"x" * 65_535, b"x" * 65_536]),
        (Types.DOUBLE(), [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, None]),
        (Types.FLOAT(), [0.0, -0.0, math.nan, math.inf, 3.4028234663852886e38, None]),
        (Types.BOOLEAN(), [True, False, None]),
        (Types.TUPLE([Types.LONG()] * 15), [tuple(range(15))] * 3),
        (Types.TUPLE([Types.LONG()] * 16), [tuple(range(16))] * 3),
        (Types.TUPLE([Types.STRING(), Types.STRING()]), [(None, "a"), ("b", None), ("", "")]),
    ],
)
def test_the_limits_of_every_form(type_, held):
    check(type_, packed_values(type_, held))


def unusual(type_, *rows):
    with pytest.raises(UnusualError):
        packed_column(type_).unpack(pa.array(rows, pa.binary()))


def test_what_is_not_read_here_is_left_to_msgspec():
    unusual(Types.LONG(), b"\x01", b"\xcb" + struct.pack(">d", 1.0))
    unusual(Types.LONG(), b"\xcf" + b"\xff" * 8)
    unusual(Types.BYTE(), b"\xcc\xff")
    unusual(Types.DOUBLE(), b"\xca" + struct.pack(">f", 1.0))
    unusual(Types.FLOAT(), b"\xcb" + struct.pack(">d", 1e300))
    unusual(Types.STRING(), b"\xc4\x01x")
    unusual(Types.STRING(), b"\xa2\xff\xfe")
    unusual(Types.TUPLE([Types.LONG()]), b"\x91\x01", b"\xc0")
    unusual(Types.TUPLE([Types.LONG()]), b"\x92\x01\x01")
    for type_ in (ListTypeInfo(Types.LONG()), MapTypeInfo(Types.LONG(), Types.LONG())):
        assert packed_column(type_) is None
        assert packed_column(Types.TUPLE([Types.LONG(), type_])) is None


@pytest.mark.parametrize(
    "rows",
    [
        [b"\xa2a", b"b\x01"],  # they would fit if there were no rows
        [b"\xa1", b"a\xa1a"],
        [b"", b"\xa1a"],
        [b"\xa1a", b""],
        [b"\xa1ab", b"\xa1b"],
        [b"\xdb\xff\xff\xff\xff", b"\xa1a"],
        [b"\xda\x00", b"\xa1a"],
    ],
)
def test_rows_that_end_too_early_or_too_late_are_not_read(rows):
    unusual(Types.STRING(), *rows)


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=4), FLAT)
@example([b"\xcf"], Types.LONG())
@example([b"\x91"], Types.TUPLE([Types.LONG()]))
def test_any_bytes_are_read_as_msgspec_reads_them_or_not_at_all(rows, type_):
    try:
        column = packed_column(type_).unpack(pa.array(rows, pa.binary()))
    except UnusualError:
        return
    assert same_bits(column, by_msgspec(type_, rows))


def test_longer_forms_than_needed_are_read_too():
    """Nothing here writes them, but they are numbers and texts as well."""
    forms = [b"\xcc\x05", b"\xcd\0\x05", b"\xd3" + b"\0" * 7 + b"\x05", b"\xcf" + b"\0" * 7 + b"\5"]
    column = packed_column(Types.LONG()).unpack(pa.array(forms, pa.binary()))
    assert column.to_pylist() == [5, 5, 5, 5]
    forms = [b"\xd9\x01a", b"\xda\0\x01a", b"\xdb\0\0\0\x01a"]
    column = packed_column(Types.STRING()).unpack(pa.array(forms, pa.binary()))
    assert column.to_pylist() == ["a", "a", "a"]


@pytest.mark.parametrize("broken", ["\xff", "\xed\xa0\x80"])
def test_text_that_is_not_utf8_is_not_written(broken):
    column = pa.array([b"fine", broken.encode("latin-1")]).view(pa.string())
    with pytest.raises(UnusualError):
        packed_column(Types.STRING()).pack(column)


def test_rows_that_are_null_take_the_way_of_msgspec():
    type_ = Types.TUPLE([Types.LONG(), Types.STRING()])
    data = packed_values(type_, [(1, "a"), None, (None, None)])
    codec = ColumnCodec(type_)
    column = codec.decode(data)
    assert column.to_pylist() == [{"f0": 1, "f1": "a"}, None, {"f0": None, "f1": None}]
    assert codec.encode(column).equals(data)
