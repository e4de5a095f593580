"""Columns as values that JSON and CSV have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.values.columns import datetimes

Convert = Callable[[Any], Any]


def json_column(column: pa.Array) -> list[Any]:
    """The values of a column; `msgspec.json` encodes dates, times, timestamps and bytes itself."""
    column = _microseconds(column)
    kind = column.type
    if pt.is_timestamp(kind) and kind.tz in (None, "UTC"):
        return datetimes(column)
    values: list[Any] = column.to_pylist()
    if pt.is_floating(kind) and pc.all(pc.is_finite(column)).as_py() is not False:
        return values
    convert = _converter(kind)
    return values if convert is None else [_apply(convert, v) for v in values]


def text_column(column: pa.Array) -> pa.Array:
    """A column that Arrow's CSV writer can write as it is."""
    column = _microseconds(column)
    kind = column.type
    if pt.is_timestamp(kind):
        return pc.replace_substring(pc.cast(column, pa.string()), " ", "T", max_replacements=1)
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_decimal(kind) or pt.is_nested(kind):
        return pa.array([_text(v) for v in json_column(column)], pa.string())
    return column


def _microseconds(column: pa.Array) -> pa.Array:
    """Times and timestamps in Python's own precision; an error when digits would be lost."""
    kind = column.type
    if pt.is_time64(kind):
        return pc.cast(column, pa.time64("us"))
    return pc.cast(column, pa.timestamp("us", kind.tz)) if pt.is_timestamp(kind) else column


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    text = msgspec.json.encode(value).decode()
    return text[1:-1] if text.startswith('"') else text


def _converter(kind: pa.DataType) -> Convert | None:
    """How a Python value of this type, other than None, becomes JSON; None when it already is."""
    if pt.is_floating(kind):
        return _float
    if pt.is_decimal(kind):
        return lambda value: format(value, "f")
    if pt.is_map(kind):
        key = _converter(kind.key_type)
        item = _converter(kind.item_type)
        return lambda pairs: {str(_text(_apply(key, k))): _apply(item, v) for k, v in pairs}
    if pt.is_struct(kind):
        fields = {f.name: c for f in kind if (c := _converter(f.type)) is not None}
        if fields:
            return lambda row: row | {name: _apply(c, row[name]) for name, c in fields.items()}
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        item = _converter(kind.value_type)
        if item is not None:
            return lambda values: [_apply(item, v) for v in values]
    return None


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _float(value: float) -> float | str:
    """JSON has no NaN; Spark writes and reads these three strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
