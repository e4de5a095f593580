"""What readers of a table can skip files by, and partition values as text; as Delta has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_COLUMNS = 32
_CHARACTERS = 32
_EXACT_DIGITS = 15
"""Readers take decimals in statistics for floating point numbers, which hold so many digits."""


_FAR_YEAR = re.compile(r"[+-]\d+-\d\d-\d\d")
"""How a date begins that texts do not order: before the year 0, or after 9999."""


class _Stats(msgspec.Struct, frozen=True):
    numRecords: int  # noqa: N815 (these are Delta's own names)
    minValues: dict[str, Any]  # noqa: N815
    maxValues: dict[str, Any]  # noqa: N815
    nullCount: dict[str, int]  # noqa: N815


def delta_stats(table: pa.Table) -> str:
    """The statistics of a file as JSON: bounds and nulls of its first columns.

    Bounds may be wider than the values, never narrower.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, column in list(zip(table.column_names, table.columns, strict=True))[:_COLUMNS]:
        if pt.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        smallest, largest = _bounds(column)
        if smallest is not None:
            low[name] = smallest
        if largest is not None:
            high[name] = largest
    return msgspec.json.encode(_Stats(table.num_rows, low, high, nulls)).decode()


def join_stats(texts: Sequence[str]) -> str:
    """The statistics of a file that has the rows of several, of theirs; '' if one has none."""
    if not all(texts):
        return ""
    parts = [msgspec.json.decode(text, type=_Stats) for text in texts]
    names = dict.fromkeys(name for part in parts for name in part.nullCount)
    nulls = {name: sum(part.nullCount.get(name, 0) for part in parts) for name in names}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for name in names:
        # A file without a value has no bounds, and needs none.
        filled = [part for part in parts if part.nullCount.get(name, 0) < part.numRecords]
        if _are_ordered([part.minValues.get(name) for part in filled]):
            low[name] = min(part.minValues[name] for part in filled)
        if _are_ordered([part.maxValues.get(name) for part in filled]):
            high[name] = max(part.maxValues[name] for part in filled)
    rows = sum(part.numRecords for part in parts)
    return msgspec.json.encode(_Stats(rows, low, high, nulls)).decode()


def _are_ordered(bounds: Sequence[Any]) -> bool:
    """Whether bounds are all known, and their order in JSON is that of the values."""
    known = bool(bounds) and None not in bounds
    return known and not any(isinstance(b, str) and _FAR_YEAR.match(b) for b in bounds)


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    kind = column.type
    if column.null_count == len(column) or pt.is_boolean(kind) or pt.is_binary(kind):
        return None, None
    # NaN is larger than every number to Spark, and no number to Arrow.
    if pt.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return None, None
    if pt.is_decimal(kind) and kind.precision > _EXACT_DIGITS:
        return None, None
    found = pc.min_max(column)
    low = found["min"]
    high = found["max"]
    if pt.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return _millis(low.value // 1000) + zone, _millis(-(-high.value // 1000)) + zone
    if pt.is_date(kind):
        return low.as_py().isoformat(), high.as_py().isoformat()
    if pt.is_decimal(kind):
        return float(low.as_py()), float(high.as_py())
    if pt.is_string(kind):
        text = high.as_py()
        return low.as_py()[:_CHARACTERS], text if len(text) <= _CHARACTERS else None
    return low.as_py(), high.as_py()


def _millis(value: int) -> str:
    return str(np.datetime64(value, "ms"))


def is_partitionable(kind: pa.DataType) -> bool:
    """Whether a column of this type can divide a table, or identify rows of it.

    Readers disagree on fractions: delta-rs takes the decimal -0.01 of a partition for '0.-1'.
    """
    return bool(
        pt.is_string(kind)
        or pt.is_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_date(kind)
        or pt.is_timestamp(kind)
    )


def partition_text(value: pa.Scalar) -> str | None:
    """The value of a partition column as a Delta log has it."""
    if not value.is_valid:
        return None
    if pt.is_boolean(value.type):
        return "true" if value.as_py() else "false"
    if pt.is_timestamp(value.type):
        text = str(np.datetime64(value.value, "us"))
        # Without a zone, readers take an instant for one of their own time zone.
        return f"{text}Z" if value.type.tz else text.replace("T", " ")
    return str(value.as_py())
