"""Python values to Arrow columns and back."""

import pickle
from collections.abc import Callable, Iterable
from datetime import UTC
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from turnback.core.build import build_rows
from turnback.core.coerce import NoneType, coercer, exact_classes, in_field, misfit, spread
from turnback.core.errors import ElementTypeError
from turnback.core.types import (
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
)


def to_column(values: list[Any], type_: TypeInfo) -> pa.Array:
    """Return the values as an Arrow array of the type.

    Raises:
        ElementTypeError: A value does not fit; the message holds it.
    """
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
    result: list[Any] = column.to_pylist()
    return result


def to_columns(rows: list[Any], type_: RowTypeInfo) -> list[pa.Array]:
    """Return one Arrow array per field of the rows, none of which may be None."""
    columns = []
    for name, field_type, values in zip(
        type_.names, type_.types, transpose(rows, type_), strict=True
    ):
        try:
            columns.append(to_column(values, field_type))
        except ElementTypeError as error:
            raise in_field(name, error) from None
    return columns


def transpose(rows: list[Any], type_: RowTypeInfo) -> list[list[Any]]:
    """Return the values of each field. Strided slices of one flat list beat any other way."""
    width = len(type_.names)
    positional = all(issubclass(c, tuple | list) for c in set(map(type, rows)))
    if not positional or set(map(len, rows)) - {width}:
        rows = [spread(row, type_) for row in rows]
    flat = list(chain.from_iterable(rows))
    return [flat[i::width] for i in range(width)]


def _scalars_to_column(values: list[Any], type_: TypeInfo) -> pa.Array:
    name = type_.name if isinstance(type_, BasicTypeInfo) else ""
    if name == "pickled":
        values = [None if v is None else pickle.dumps(v, protocol=5) for v in values]
    elif name in _ZONED or not set(map(type, values)) <= exact_classes(type_):
        coerce = coercer(type_)
        values = [None if v is None else coerce(v) for v in values]
    try:
        return pa.array(values, type=type_.arrow())
    except (pa.ArrowException, OverflowError, UnicodeError, ValueError, TypeError):
        _blame(values, type_)
        raise


_ZONED = ("timestamp", "instant", "time")


def _blame(values: list[Any], type_: TypeInfo) -> None:
    arrow = type_.arrow()
    for value in values:
        try:
            pa.array([value], type=arrow)
        except (pa.ArrowException, OverflowError, UnicodeError, ValueError, TypeError) as error:
            big = type_ == Types.BIG_INT()
            reason = "a column holds at most 38 digits" if big else str(error)
            raise misfit(value, type_, reason) from None


def _rows_to_struct(values: list[Any], type_: RowTypeInfo) -> pa.Array:
    mask = None
    if NoneType in set(map(type, values)):
        mask = pa.array([v is None for v in values])
        empty = (None,) * len(type_.names)
        values = [empty if v is None else v for v in values]
    fields = list(type_.arrow())
    return pa.StructArray.from_arrays(to_columns(values, type_), fields=fields, mask=mask)


def _offsets(values: list[Any]) -> tuple[pa.Array, pa.Array | None]:
    lengths = [0 if v is None else len(v) for v in values]
    mask = pa.array([v is None for v in values]) if None in map(_none, values) else None
    return pa.array([0, *accumulate(lengths)], type=pa.int32()), mask


def _none(value: Any) -> Any:
    return None if value is None else 0


def _lists_to_column(values: list[Any], type_: ListTypeInfo) -> pa.Array:
    for value in values:
        if value is not None and not isinstance(value, list | tuple):
            raise misfit(value, type_, "expected a list")
    offsets, mask = _offsets(values)
    flat = list(chain.from_iterable(filter(None, values)))
    return pa.ListArray.from_arrays(
        offsets, to_column(flat, type_.element), type=type_.arrow(), mask=mask
    )


def _maps_to_column(values: list[Any], type_: MapTypeInfo) -> pa.Array:
    for value in values:
        if value is not None and not isinstance(value, dict):
            raise misfit(value, type_, "expected a dict")
        if value and None in value:
            raise misfit(value, type_, "the keys of a map must not be None")
    offsets, mask = _offsets(values)
    maps = [v for v in values if v]
    keys = to_column([k for m in maps for k in m], type_.key)
    items = to_column([v for m in maps for v in m.values()], type_.value)
    return pa.MapArray.from_arrays(offsets, keys, items, type=type_.arrow(), mask=mask)


def _struct_to_rows(column: pa.Array, type_: RowTypeInfo) -> list[Any]:
    children = [from_column(c, t) for c, t in zip(column.flatten(), type_.types, strict=True)]
    rows = build_rows(type_, children)
    if column.null_count:
        for index, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                rows[index] = None
    return rows


def _spans(column: pa.Array) -> tuple[list[tuple[int, int] | None], int, int]:
    """Return where each list begins and ends, relative to the first value that is used."""
    bounds = column.offsets.to_pylist()
    first = bounds[0] if bounds else 0
    last = bounds[-1] if bounds else 0
    pairs: Iterable[Any] = zip([b - first for b in bounds], [b - first for b in bounds[1:]])  # noqa: B905
    spans: list[tuple[int, int] | None] = list(pairs)
    if column.null_count:
        for index, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                spans[index] = None
    return spans, first, last - first


def _column_to_lists(column: pa.Array, type_: ListTypeInfo) -> list[Any]:
    spans, start, length = _spans(column)
    values = from_column(column.values.slice(start, length), type_.element)
    return [None if s is None else values[s[0] : s[1]] for s in spans]


def _column_to_maps(column: pa.Array, type_: MapTypeInfo) -> list[Any]:
    spans, start, length = _spans(column)
    keys = from_column(column.keys.slice(start, length), type_.key)
    items = from_column(column.items.slice(start, length), type_.value)
    return [
        None if s is None else dict(zip(keys[s[0] : s[1]], items[s[0] : s[1]], strict=True))
        for s in spans
    ]


def _timestamps(column: pa.Array) -> list[Any]:
    if column.type.unit != "us":
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    # NumPy makes datetimes thirty times as fast as Arrow does.
    values: list[Any] = column.view(pa.int64()).fill_null(0).to_numpy().view("M8[us]").tolist()
    return _with_nulls(values, column)


def _with_nulls(values: list[Any], column: pa.Array) -> list[Any]:
    if column.null_count:
        return [
            v if valid else None
            for v, valid in zip(values, column.is_valid().to_pylist(), strict=True)
        ]
    return values


def _instants(column: pa.Array) -> list[Any]:
    return [None if v is None else v.replace(tzinfo=UTC) for v in _timestamps(column)]


def _big_ints(column: pa.Array) -> list[Any]:
    return [None if v is None else int(v) for v in column.to_pylist()]


def _pickled(column: pa.Array) -> list[Any]:
    return [None if v is None else pickle.loads(v) for v in column.to_pylist()]


_FROM: dict[str, Callable[[pa.Array], list[Any]]] = {
    "timestamp": _timestamps,
    "instant": _instants,
    "big_int": _big_ints,
    "pickled": _pickled,
}
