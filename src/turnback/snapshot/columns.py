"""The Parquet column of each type, and the conversion from stored bytes and back.

As in Arrow, with three exceptions. Integers without bound are text. So are times of day, because
Spark refuses files with such columns by default. A pickled object is its pickle, which is never
opened here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import chain, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.core.errors import ElementTypeError
from turnback.snapshot.packed import UnusualError, packed_column
from turnback.values.coerce import decimal_quantizer, type_mismatch
from turnback.values.columns import (
    from_column,
    list_bounds,
    list_offsets,
    null_mask,
    to_column,
    with_nulls,
)
from turnback.values.serializer import int_to_bytes
from turnback.values.typeinfo import (
    BASIC,
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
)

Values = list[Any]

# The parameters of these hints are only known at run time.
_LIST: Any = list
_DICT: Any = dict
_TUPLE: Any = tuple
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{6})?$"
_MAX_DIGITS = 4000  # Python refuses to convert much more than that


@dataclass(frozen=True, slots=True)
class StateColumn:
    """The column of values of one type.

    Attributes:
        hint: The type msgspec decodes from the stored bytes; None is always allowed besides.
        to_arrow: Makes a column of what msgspec has decoded.
        to_values: Makes of a column what msgspec encodes.
    """

    arrow: pa.DataType
    hint: Any
    to_arrow: Callable[[Values], pa.Array]
    to_values: Callable[[pa.Array], Values]


class ColumnCodec:
    """Translates stored values of one type, a column of bytes, into a typed column and back.

    Both ways are exact to the byte, with one exception: a decimal comes back with all the places
    of its type, 1.5 as 1.50, and never as -0. Keys are stored like that in the first place.

    Args:
        type_: The type of the values.
        required: There is no null among them, at any depth; for keys.
    """

    def __init__(self, type_: TypeInfo, *, required: bool = False) -> None:
        self._column = column = column_of(type_)
        self._required = required
        self.arrow = column.arrow
        self._decode = msgspec.msgpack.Decoder(_LIST[column.hint | None]).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._packed = packed_column(type_)

    def decode(self, data: pa.Array) -> pa.Array:
        if data.null_count:
            raise ElementTypeError("a row was removed or cleared, and is not live")
        if self._packed is not None:
            try:
                return self._packed.unpack(data)
            except UnusualError:
                pass  # msgspec reads it, or says what is wrong
        return self._column.to_arrow(self._decode(_as_one_list(data)))

    def encode(self, column: pa.Array) -> pa.Array:
        if self._required and _holds_null(column):
            raise ElementTypeError("null cannot be a key, nor be part of one")
        if self._packed is not None:
            try:
                return self._packed.pack(column)
            except UnusualError:
                pass
        return pa.array(list(map(self._encode, self._column.to_values(column))), pa.binary())


def column_of(type_: TypeInfo) -> StateColumn:
    """Return the column of values of a type."""
    if isinstance(type_, RowTypeInfo):
        return _row(type_)
    if isinstance(type_, ListTypeInfo):
        return _list(type_)
    if isinstance(type_, MapTypeInfo):
        return _map(type_)
    if isinstance(type_, DecimalTypeInfo):
        return _decimal(type_)
    assert isinstance(type_, BasicTypeInfo)
    if type_.name in _SPECIAL:
        return _SPECIAL[type_.name](type_)
    return _plain(type_, BASIC[type_.name].python_class)


def _as_one_list(data: pa.Array) -> bytes:
    """Return the MessagePack list of all values: one call reads it, instead of one for each."""
    if not len(data):
        return b"\x90"
    _, offsets, body = data.buffers()
    width = np.int64 if pa.types.is_large_binary(data.type) else np.int32
    bounds = np.frombuffer(offsets, width)[data.offset : data.offset + len(data) + 1]
    joined = b"" if body is None else memoryview(body)[bounds[0] : bounds[-1]]
    return b"".join((b"\xdd", len(data).to_bytes(4, "big"), joined))


def _holds_null(column: pa.Array) -> bool:
    if column.null_count:
        return True
    return pa.types.is_struct(column.type) and any(map(_holds_null, column.flatten()))


def _plain(type_: TypeInfo, hint: Any) -> StateColumn:
    return StateColumn(
        type_.arrow(),
        hint,
        lambda values: to_column(values, type_),
        lambda column: from_column(column, type_),
    )


def _decimal(type_: DecimalTypeInfo) -> StateColumn:
    plain = _plain(type_, Decimal)
    quantize = decimal_quantizer(type_)

    def to_arrow(values: Values) -> pa.Array:
        try:
            return pa.array(values, plain.arrow)
        except pa.ArrowInvalid:  # more zeros after the point than Arrow cares to cut off
            return pa.array([None if v is None else quantize(v) for v in values], plain.arrow)

    return StateColumn(plain.arrow, Decimal, to_arrow, plain.to_values)


def _bounded(least: Any, greatest: Any, hint: Any) -> Callable[[TypeInfo], StateColumn]:
    """Return the factory of columns of a type that can hold more in Arrow than in Python."""

    def make(type_: TypeInfo) -> StateColumn:
        plain = _plain(type_, hint)
        number = pa.int32() if pa.types.is_date(plain.arrow) else pa.int64()
        low, high = pa.array([least, greatest], plain.arrow).view(number).to_pylist()

        def to_values(column: pa.Array) -> Values:
            _check_range(column.view(number), low, high, type_)
            return plain.to_values(column)

        return StateColumn(plain.arrow, hint, plain.to_arrow, to_values)

    return make


def _check_range(numbers: pa.Array, low: int, high: int, type_: TypeInfo) -> None:
    extremes = pc.min_max(numbers)
    for value in (extremes["min"].as_py(), extremes["max"].as_py()):
        if value is not None and not low <= value <= high:
            raise type_mismatch(value, type_, f"it is outside of {low} to {high}")


def _time(type_: TypeInfo) -> StateColumn:
    # Stored as text already, and left so.
    plain = _plain(Types.STRING(), str)

    def to_values(column: pa.Array) -> Values:
        # Equal times have to be equal text, so there is no fraction of zeros.
        fits = pc.and_not(pc.match_substring_regex(column, _TIME), pc.ends_with(column, ".000000"))
        wrong = column.filter(pc.invert(fits))
        if len(wrong):
            text = wrong[0].as_py()
            raise type_mismatch(
                text, type_, "expected HH:MM:SS, or HH:MM:SS.ffffff if it has a fraction"
            )
        return plain.to_values(column)

    return StateColumn(pa.string(), str, plain.to_arrow, to_values)


def _big_int(type_: TypeInfo) -> StateColumn:
    def to_values(column: pa.Array) -> Values:
        return [None if v is None else _number(v, type_) for v in column.to_pylist()]

    def to_arrow(values: Values) -> pa.Array:
        return pa.array([None if v is None else _digits(v) for v in values], pa.string())

    return StateColumn(pa.string(), int | bytes, to_arrow, to_values)


def _digits(stored: int | bytes) -> str:
    if stored.__class__ is int:
        return str(stored)
    number = int.from_bytes(stored, "big", signed=True)  # type: ignore[arg-type]
    return str(number if len(stored) * 3 < _MAX_DIGITS else Decimal(number))  # type: ignore[arg-type]


def _number(text: str, type_: TypeInfo) -> int | bytes:
    if not _INTEGER.fullmatch(text):
        raise type_mismatch(text, type_, "expected the digits of an integer")
    number = int(text) if len(text) < _MAX_DIGITS else int(Decimal(text))
    return number if -(1 << 63) <= number < 1 << 63 else int_to_bytes(number)


def _pickled(type_: TypeInfo) -> StateColumn:
    return _plain(Types.BYTES(), bytes)


_SPECIAL: dict[str, Callable[[TypeInfo], StateColumn]] = {
    "big_int": _big_int,
    "date": _bounded(date.min, date.max, date),
    "time": _time,
    "timestamp": _bounded(datetime.min, datetime.max, datetime),
    "instant": _bounded(datetime.min, datetime.max, datetime),
    "pickled": _pickled,
}


def _row(type_: RowTypeInfo) -> StateColumn:
    columns = [column_of(t) for t in type_.types]
    width = len(columns)
    arrow = pa.struct([pa.field(n, c.arrow) for n, c in zip(type_.names, columns, strict=True)])
    empty = (None,) * width

    def to_arrow(values: Values) -> pa.Array:
        mask = null_mask(values)
        if mask is not None:
            values = [empty if v is None else v for v in values]
        flat = list(chain.from_iterable(values))
        children = [c.to_arrow(flat[i::width]) for i, c in enumerate(columns)]
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)

    def to_values(column: pa.Array) -> Values:
        children = column.flatten()
        fields = [c.to_values(child) for c, child in zip(columns, children, strict=True)]
        return with_nulls(list(zip(*fields, strict=True)), column)

    return StateColumn(arrow, _TUPLE[tuple(c.hint | None for c in columns)], to_arrow, to_values)


def _list(type_: ListTypeInfo) -> StateColumn:
    element = column_of(type_.element)
    arrow = pa.list_(pa.field("element", element.arrow))

    def to_arrow(values: Values) -> pa.Array:
        flat = element.to_arrow(list(chain.from_iterable(filter(None, values))))
        return pa.ListArray.from_arrays(
            list_offsets(values), flat, type=arrow, mask=null_mask(values)
        )

    def to_values(column: pa.Array) -> Values:
        bounds, start, length = list_bounds(column)
        flat = element.to_values(column.values.slice(start, length))
        return with_nulls([flat[a:b] for a, b in pairwise(bounds)], column)

    return StateColumn(arrow, _LIST[element.hint | None], to_arrow, to_values)


def _map(type_: MapTypeInfo) -> StateColumn:
    key = column_of(type_.key)
    item = column_of(type_.value)
    arrow = pa.map_(key.arrow, item.arrow)

    def to_arrow(values: Values) -> pa.Array:
        maps = [v for v in values if v]
        keys = key.to_arrow([k for m in maps for k in m])
        items = item.to_arrow([v for m in maps for v in m.values()])
        mask = null_mask(values)
        return pa.MapArray.from_arrays(list_offsets(values), keys, items, type=arrow, mask=mask)

    def to_values(column: pa.Array) -> Values:
        bounds, start, length = list_bounds(column)
        keys = key.to_values(column.keys.slice(start, length))
        if None in keys:
            raise type_mismatch(None, type_, "null cannot be the key of a map")
        entries = list(zip(keys, item.to_values(column.items.slice(start, length)), strict=True))
        maps = [dict(entries[a:b]) for a, b in pairwise(bounds)]
        if sum(map(len, maps)) != length:
            raise type_mismatch(None, type_, "a map has two values for one key")
        return with_nulls(maps, column)

    return StateColumn(arrow, _DICT[key.hint, item.hint | None], to_arrow, to_values)
