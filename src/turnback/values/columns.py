"""Python values to Arrow columns and back, one by one and as batches of a stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate, chain, pairwise
from math import isinf
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.errors import ElementTypeError, TooLargeError
from turnback.values.coerce import (
    NoneType,
    coercer,
    exact_classes,
    in_field,
    is_positional,
    row_values,
    type_mismatch,
)
from turnback.values.freeze import PickledBytes
from turnback.values.row import build_rows
from turnback.values.serializer import pickle_value, unpickle
from turnback.values.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
)

# Half a step beyond the largest, from where on numbers are rounded to infinity.
_MAX_FLOAT = (2 - 2**-24) * 2.0**127
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_column(values: list[Any], type_: TypeInfo) -> pa.Array:
    """Return the values as an Arrow array of the type."""
    if isinstance(type_, RowTypeInfo):
        return _rows_to_struct(values, type_)
    if isinstance(type_, ListTypeInfo):
        return _lists_to_column(values, type_)
    if isinstance(type_, MapTypeInfo):
        return _maps_to_column(values, type_)
    return _scalars_to_column(values, type_)


def from_column(column: pa.Array, type_: TypeInfo) -> list[Any]:
    """Return the values of an Arrow array of the type."""
    if isinstance(type_, RowTypeInfo):
        return _struct_to_rows(column, type_)
    if isinstance(type_, ListTypeInfo):
        return _column_to_lists(column, type_)
    if isinstance(type_, MapTypeInfo):
        return _column_to_maps(column, type_)
    if isinstance(type_, BasicTypeInfo):
        special = _FROM.get(type_.name)
        if special is not None:
            return special(column)
    if isinstance(type_, DecimalTypeInfo):
        return _decimals(column)
    if not column.null_count and (pt.is_integer(column.type) or pt.is_floating(column.type)):
        column = column.to_numpy()  # has always been fast, which cannot be said of to_pylist
        return column.tolist()  # type: ignore[no-any-return]
    result: list[Any] = column.to_pylist()
    return result


def to_columns(rows: list[Any], type_: RowTypeInfo) -> list[pa.Array]:
    """Return one Arrow array per field of the rows, none of which may be None."""
    columns = []
    for (name, field_type), values in zip(type_.fields(), transpose(rows, type_), strict=True):
        try:
            columns.append(to_column(values, field_type))
        except ElementTypeError as error:
            raise in_field(name, error) from None
    return columns


def transpose(rows: list[Any], type_: RowTypeInfo) -> list[list[Any]]:
    """Return the values of each field. Strided slices of one flat list beat any other way."""
    width = len(type_.names)
    positional = all(is_positional(c, type_) for c in set(map(type, rows)))
    if not positional or set(map(len, rows)) - {width}:
        rows = [row_values(row, type_) for row in rows]
    flat = list(chain.from_iterable(rows))
    return [flat[i::width] for i in range(width)]


def _scalars_to_column(values: list[Any], type_: TypeInfo) -> pa.Array:
    name = type_.name if isinstance(type_, BasicTypeInfo) else ""
    if name == "pickled":
        values = [
            v if v is None or v.__class__ is PickledBytes else pickle_value(v) for v in values
        ]
    elif not set(map(type, values)) <= exact_classes(type_) or _zones_differ(values, name):
        coerce = coercer(type_)
        values = [None if v is None else coerce(v) for v in values]
    try:
        column = pa.array(values, type=type_.arrow())
    except (pa.ArrowException, OverflowError, UnicodeError, ValueError, TypeError):
        _raise_for_bad_value(values, type_)
        raise
    if isinstance(column, pa.ChunkedArray):  # Arrow's way out when an array would be too large
        raise TooLargeError(
            f"{len(values):,} values of {type_} have more than 2 GiB in total, the limit of a "
            "column of one Arrow batch; set spark.sql.execution.arrow.maxRecordsPerBatch to "
            "fewer records, or make the values smaller"
        )
    if name == "float" and pc.any(pc.is_inf(column)).as_py():
        _check_infinite(values, type_)
    return column


def _check_infinite(values: list[Any], type_: TypeInfo) -> None:
    """Arrow makes what 32 bits cannot hold infinite without a word."""
    for value in values:
        if value is not None and abs(value) >= _MAX_FLOAT and not isinf(value):
            raise type_mismatch(value, type_, "it is too large for 32 bits")


def _zones_differ(values: list[Any], name: str) -> bool:
    """Whether some values, of the right class, may have a zone too many or too few."""
    if name not in ("timestamp", "instant", "time"):
        return False
    zones = {v.tzinfo for v in values if v is not None}
    return None in zones if name == "instant" else not zones <= {None}


def _raise_for_bad_value(values: list[Any], type_: TypeInfo) -> None:
    arrow = type_.arrow()
    for value in values:
        try:
            pa.array([value], type=arrow)
        except (pa.ArrowException, OverflowError, UnicodeError, ValueError, TypeError) as error:
            big = type_ == Types.BIG_INT()
            reason = "a column can have at most 38 digits" if big else str(error)
            raise type_mismatch(value, type_, reason) from None


def _rows_to_struct(values: list[Any], type_: RowTypeInfo) -> pa.Array:
    mask = null_mask(values)
    if mask is not None:
        empty = (None,) * len(type_.names)
        values = [empty if v is None else v for v in values]
    fields = list(type_.arrow())
    return pa.StructArray.from_arrays(to_columns(values, type_), fields=fields, mask=mask)


def null_mask(values: list[Any]) -> pa.Array | None:
    """Return which of the values are None, as Arrow takes it; None if none is."""
    return pa.array([v is None for v in values]) if NoneType in set(map(type, values)) else None


def list_offsets(values: list[Any]) -> pa.Array:
    """Return where lists or maps begin and end once they are joined."""
    lengths = [0 if v is None else len(v) for v in values]
    return pa.array([0, *accumulate(lengths)], type=pa.int32())


def _lists_to_column(values: list[Any], type_: ListTypeInfo) -> pa.Array:
    for value in values:
        if value.__class__ is not list and not isinstance(value, list | tuple | NoneType):
            raise type_mismatch(value, type_, "expected a list")
    flat = to_column(list(chain.from_iterable(filter(None, values))), type_.element)
    mask = null_mask(values)
    return pa.ListArray.from_arrays(list_offsets(values), flat, type=type_.arrow(), mask=mask)


def _maps_to_column(values: list[Any], type_: MapTypeInfo) -> pa.Array:
    for value in values:
        if value is not None and not isinstance(value, dict):
            raise type_mismatch(value, type_, "expected a dict")
        if value and None in value:
            raise type_mismatch(value, type_, "the keys of a map must not be None")
    maps = [v for v in values if v]
    keys = to_column([k for m in maps for k in m], type_.key)
    items = to_column([v for m in maps for v in m.values()], type_.value)
    offsets = list_offsets(values)
    mask = null_mask(values)
    return pa.MapArray.from_arrays(offsets, keys, items, type=type_.arrow(), mask=mask)


def _struct_to_rows(column: pa.Array, type_: RowTypeInfo) -> list[Any]:
    children = [from_column(c, t) for c, t in zip(column.flatten(), type_.types, strict=True)]
    return with_nulls(build_rows(type_, children), column)


def list_bounds(column: pa.Array) -> tuple[list[int], int, int]:
    """Return where the lists begin and end, counted from the first value that is used."""
    bounds = column.offsets.to_pylist() or [0]
    first = bounds[0]
    last = bounds[-1]
    return [b - first for b in bounds] if first else bounds, first, last - first


def _column_to_lists(column: pa.Array, type_: ListTypeInfo) -> list[Any]:
    bounds, start, length = list_bounds(column)
    values = from_column(column.values.slice(start, length), type_.element)
    return with_nulls([values[a:b] for a, b in pairwise(bounds)], column)


def _column_to_maps(column: pa.Array, type_: MapTypeInfo) -> list[Any]:
    bounds, start, length = list_bounds(column)
    keys = from_column(column.keys.slice(start, length), type_.key)
    items = from_column(column.items.slice(start, length), type_.value)
    entries = list(zip(keys, items, strict=True))
    return with_nulls([dict(entries[a:b]) for a, b in pairwise(bounds)], column)


def datetimes(column: pa.Array) -> list[Any]:
    """The values of a column of timestamps, without a zone or in UTC.

    NumPy makes datetimes thirty times as fast as Arrow does.
    """
    return _timestamps(column) if column.type.tz is None else _instants(column)


def _timestamps(column: pa.Array) -> list[Any]:
    return with_nulls(_micros(column).view("M8[us]").tolist(), column)


def _instants(column: pa.Array) -> list[Any]:
    # Adding a difference is much cheaper than replacing the zone.
    return with_nulls([_EPOCH + d for d in _micros(column).view("m8[us]").tolist()], column)


def _micros(column: pa.Array) -> Any:
    if column.type.unit != "us":
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    return column.view(pa.int64()).fill_null(0).to_numpy()


def _dates(column: pa.Array) -> list[Any]:
    days = column.cast(pa.date32()).view(pa.int32()).fill_null(0).to_numpy()
    return with_nulls(days.astype("M8[D]").tolist(), column)


def with_nulls(values: list[Any], column: pa.Array) -> list[Any]:
    """Put None into a list of values where their column is null, and return it."""
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values


def _decimals(column: pa.Array) -> list[Any]:
    # By way of text it takes half the time.
    return [None if v is None else Decimal(v) for v in column.cast(pa.string()).to_pylist()]


def _big_ints(column: pa.Array) -> list[Any]:
    return [None if v is None else int(v) for v in column.cast(pa.string()).to_pylist()]


def _pickled(column: pa.Array) -> list[Any]:
    return [None if v is None else unpickle(v) for v in column.to_pylist()]


_FROM: dict[str, Callable[[pa.Array], list[Any]]] = {
    "date": _dates,
    "timestamp": _timestamps,
    "instant": _instants,
    "big_int": _big_ints,
    "pickled": _pickled,
}


VALUE_COLUMN = "value"
"""The name of the one column of a stream whose elements are not rows."""


class Batch:
    """The elements of one stream in one epoch, as Python objects and as Arrow columns.

    A stream of rows has one column per field, any other stream one column called ``value``. Each
    form is made from the other on first use, and cached. Neither may be changed.

    Args:
        type: The type of the elements.
        elements: Either as objects, or as columns in the order of the fields.

    Attributes:
        stamps: The timestamps of the elements, if they have any.
    """

    __slots__ = ("_arrow", "_rows", "stamps", "type")

    def __init__(self, type: TypeInfo, elements: list[Any] | pa.RecordBatch) -> None:
        is_arrow = isinstance(elements, pa.RecordBatch)
        self.type = type
        self.stamps: Any = None
        self._rows: list[Any] | None = None if is_arrow else elements
        self._arrow: Any = elements if is_arrow else None

    @property
    def rows(self) -> list[Any]:
        rows = self._rows
        if rows is None:
            rows = self._rows = _to_rows(self.type, self._arrow)
        return rows

    @property
    def arrow(self) -> pa.RecordBatch:
        """The columns; raises `ElementTypeError` if an element does not fit the type."""
        arrow = self._arrow
        if arrow is None:
            arrow = self._arrow = _to_arrow(self.type, self._rows or [])
        return arrow

    def copy(self, type: TypeInfo | None = None) -> Batch:
        """The same elements as objects of their own, as instances of another class if wanted."""
        copied = Batch(self.type if type is None else type, self.arrow)
        copied.stamps = self.stamps
        return copied

    def halves(self) -> tuple[Batch, Batch]:
        """The first and the second half of the elements."""
        middle = len(self) // 2
        if self._arrow is not None:
            first = Batch(self.type, self._arrow.slice(0, middle))
            second = Batch(self.type, self._arrow.slice(middle))
        else:
            rows = self._rows or []
            first = self._part(rows[:middle])
            second = self._part(rows[middle:])
        if self.stamps is not None:
            first.stamps = self.stamps.take(slice(0, middle))
            second.stamps = self.stamps.take(slice(middle, None))
        return first, second

    def _part(self, rows: list[Any]) -> Batch:
        return Batch(self.type, rows)

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else int(self._arrow.num_rows)

    def __repr__(self) -> str:
        return f"Batch({self.type}, {len(self)} elements)"


def stream_columns(type_: TypeInfo) -> list[tuple[str, TypeInfo]]:
    """Return the name and the type of each column of a stream."""
    if isinstance(type_, RowTypeInfo):
        return type_.fields()
    return [(VALUE_COLUMN, type_)]


def stream_schema(type_: TypeInfo) -> pa.Schema:
    """Return the Arrow schema of a stream."""
    return pa.schema([pa.field(name, t.arrow()) for name, t in stream_columns(type_)])


def stream_ddl(type_: TypeInfo) -> str:
    """Return the schema of a stream for Spark to read: ```post` string, `n` bigint``."""
    columns = stream_columns(type_)
    return ", ".join(f"`{name.replace('`', '``')}` {t.ddl()}" for name, t in columns)


def _to_rows(type_: TypeInfo, batch: pa.RecordBatch) -> list[Any]:
    expected = len(type_.names) if isinstance(type_, RowTypeInfo) else 1
    if batch.num_columns != expected:
        raise ElementTypeError(
            f"a batch of {type_} needs {expected} columns, got {batch.num_columns}: "
            f"{', '.join(batch.schema.names)}"
        )
    if isinstance(type_, RowTypeInfo):
        return build_rows(
            type_, [from_column(c, t) for c, t in zip(batch.columns, type_.types, strict=True)]
        )
    return from_column(batch.column(0), type_)


def _to_arrow(type_: TypeInfo, rows: list[Any]) -> pa.RecordBatch:
    schema = stream_schema(type_)
    if isinstance(type_, RowTypeInfo):
        return pa.RecordBatch.from_arrays(to_columns(rows, type_), schema=schema)
    return pa.RecordBatch.from_arrays([to_column(rows, type_)], schema=schema)


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
