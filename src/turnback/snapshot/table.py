"""A state as a table with typed columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.errors import ElementTypeError, IncompatibleStateError, StateError, TurnbackError
from turnback.state.backend import sub_codec
from turnback.state.delta import BATCH_BYTES, BATCH_ROWS, COLUMNS, bounded_tables
from turnback.state.expiry import update_times, with_times, without_times
from turnback.state.schema import KINDS, LIST_KINDS, MAP_KINDS, WAITING, WINDOWED, StateSchema
from turnback.values.coerce import INT_RANGES, decimal_quantizer, type_mismatch
from turnback.values.columns import (
    from_column,
    list_bounds,
    list_offsets,
    null_mask,
    to_column,
    with_nulls,
)
from turnback.values.keys import KeyCodec
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
    type_from_descriptor,
)

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NULL = 0xC0
_MOST = (1 << 63) - 1
_MOST_BYTES = (1 << 31) - 1


class UnusualError(Exception):
    """A column holds what is not read or written here."""


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """Reads and writes columns of one type.

    Attributes:
        read: Reads the next value of every row.
        write: Returns the bytes of all values, in pieces: those of a value are what stands at its
            place in the first piece, in the second, and so on.
    """

    read: Callable[[_Rows], pa.Array]
    write: Callable[[pa.Array], list[pa.Array]]

    def unpack(self, data: pa.Array) -> pa.Array:
        """Return the values of a column of bytes; raises `UnusualError`."""
        rows = _Rows(data)
        column = self.read(rows)
        rows.check_end()
        return column

    def pack(self, column: pa.Array) -> pa.Array:
        """Return the bytes of each value of a column; raises `UnusualError`."""
        return _interleaved(self.write(column)) if len(column) else pa.array([], pa.binary())


def packed_column(type_: TypeInfo) -> PackedColumn | None:
    """Return what reads and writes columns of a type; None if it is none of those that it can."""
    if isinstance(type_, RowTypeInfo):
        fields = [packed_column(t) for t in type_.types]
        known = [field for field in fields if field is not None]
        return _packed_row(type_, known) if len(known) == len(fields) else None
    if not isinstance(type_, BasicTypeInfo):
        return None
    if type_.name in INT_RANGES:
        return _integer(type_)
    return _BASIC.get(type_.name)


class _Rows:
    """The bytes of all rows, and how far each of them has been read."""

    def __init__(self, data: pa.Array) -> None:
        _, offsets, body = data.buffers()
        if not len(data) or body is None:
            raise UnusualError
        width = np.int64 if pa.types.is_large_binary(data.type) else np.int32
        bounds = np.frombuffer(offsets, width)[data.offset : data.offset + len(data) + 1]
        first = int(bounds[0])
        last = int(bounds[-1])
        if last - first > _MOST_BYTES:
            raise UnusualError
        bounds = bounds.astype(np.int64) - first
        self._buffer = body.slice(first, last - first)
        self._body: Bytes = np.frombuffer(self._buffer, np.uint8)
        self._at = bounds[:-1]
        self._ends = bounds[1:]

    def heads(self) -> Bytes:
        """The first byte of what comes next in each row."""
        if (self._at >= self._ends).any():
            raise UnusualError
        return self._body[self._at]

    def skip(self, sizes: Numbers | int) -> Numbers:
        """Go on by so many bytes; return where they begin."""
        start = self._at
        self._at = self._at + sizes
        if (self._at > self._ends).any():
            raise UnusualError
        return start

    def check_end(self) -> None:
        if (self._at != self._ends).any():
            raise UnusualError

    def numbers(self, at: Numbers, dtype: str) -> npt.NDArray[Any]:
        """The numbers that begin at some places, all of them skipped before."""
        return _windows(self._body, dtype)[at]

    def slices(self, start: Numbers) -> pa.Array:
        """The bytes from some places to where the rows have been read to, as a binary column."""
        count = len(start)
        # What is wanted and what lies between follow each other, which is a column already.
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2], bounds[1::2] = start, self._at
        buffers = [None, pa.py_buffer(bounds), self._buffer]
        parts = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        return parts.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _windows(body: Bytes, dtype: str) -> npt.NDArray[Any]:
    """The number that begins at each byte."""
    size = max(0, len(body) - np.dtype(dtype).itemsize + 1)
    return np.ndarray((size,), dtype, body, strides=(1,))


# -- numbers whose first byte says how they are written


class _Forms:
    """The forms in which numbers are written, lengths of text among them.

    Of each form there is the least number it is for, its first byte, and the type of the number
    after that; without such a type the number is added to the first byte. The `small` numbers are
    written in the first byte.
    """

    def __init__(self, *forms: tuple[int, int, str | None], small: range = range(0)) -> None:
        self._least = np.array([least for least, _, _ in forms[1:]], np.int64)
        self._forms = [(head, dtype) for _, head, dtype in forms] + [(_NULL, None)]
        widths = [1 if t is None else 1 + np.dtype(t).itemsize for _, t in self._forms]
        self._form_sizes = np.array(widths, np.int64)
        self._dtypes = {head: dtype for _, head, dtype in forms if dtype is not None}
        self._small = np.zeros(256, np.int64)
        self._sizes = np.zeros(256, np.int64)
        self._sizes[[_NULL, *self._dtypes]] = [1, *(w for w in widths if w > 1)]
        for head in (head for _, head, dtype in forms if dtype is None):
            for number in small:
                self._small[(head + number) % 256] = number
                self._sizes[(head + number) % 256] = 1

    def read(self, rows: _Rows) -> tuple[Numbers, Mask | None]:
        """Read the next number of each row; also which of them are null, if there are any."""
        heads = rows.heads()
        found = np.flatnonzero(np.bincount(heads, minlength=256))
        if not self._sizes[found].all():
            raise UnusualError
        numbers = self._small[heads]
        start = rows.skip(self._sizes[heads])
        for head in found.tolist():
            dtype = self._dtypes.get(head)
            if dtype is not None:
                mine = _where(heads == head, all=len(found) == 1)
                wide = rows.numbers(start[mine] + 1, dtype)
                if dtype == ">u8" and int(wide.max()) > _MOST:
                    raise UnusualError
                numbers[mine] = wide
        return numbers, heads == _NULL if _NULL in found else None

    def write(self, numbers: Numbers, nulls: Mask | None) -> pa.Array:
        forms = np.searchsorted(self._least, numbers, side="right")
        if nulls is not None:
            forms[nulls] = len(self._forms) - 1
        bounds = _bounds(self._form_sizes[forms])
        start = bounds[:-1]
        body = np.empty(bounds[-1], np.uint8)
        found = np.flatnonzero(np.bincount(forms)).tolist()
        for form in found:
            mine = _where(forms == form, all=len(found) == 1)
            (head, dtype), at = self._forms[form], start[mine]
            in_head = dtype is None and head != _NULL
            body[at] = (numbers[mine] + head).astype(np.uint8) if in_head else head
            if dtype is not None:
                _windows(body, dtype)[at + 1] = numbers[mine]
        return _binary(bounds, body)


def _where(mask: Mask, *, all: bool) -> Any:
    """What picks the rows of a mask; of `all` rows it takes no copy."""
    return slice(None) if all else np.flatnonzero(mask)


_INTEGERS = _Forms(
    (-(1 << 63), 0xD3, ">i8"),
    (-(1 << 31), 0xD2, ">i4"),
    (-(1 << 15), 0xD1, ">i2"),
    (-(1 << 7), 0xD0, "i1"),
    (-(1 << 5), 0x00, None),
    (1 << 7, 0xCC, "u1"),
    (1 << 8, 0xCD, ">u2"),
    (1 << 16, 0xCE, ">u4"),
    (1 << 32, 0xCF, ">u8"),
    small=range(-(1 << 5), 1 << 7),
)
_TEXT_LENGTHS = _Forms(
    (0, 0xA0, None),
    (1 << 5, 0xD9, "u1"),
    (1 << 8, 0xDA, ">u2"),
    (1 << 16, 0xDB, ">u4"),
    small=range(1 << 5),
)
_BYTES_LENGTHS = _Forms((0, 0xC4, "u1"), (1 << 8, 0xC5, ">u2"), (1 << 16, 0xC6, ">u4"))


_BOOLEANS = _Forms((0, 0xC2, None), small=range(2))
_DOUBLES = _Forms((-(1 << 63), 0xCB, ">i8"))  # the bits of a double, taken for an integer


# -- the types


def _packed_number(
    forms: _Forms,
    to_values: Callable[[Numbers], npt.NDArray[Any]],
    to_numbers: Callable[[npt.NDArray[Any]], Numbers],
) -> PackedColumn:
    def read(rows: _Rows) -> pa.Array:
        numbers, nulls = forms.read(rows)
        return pa.array(to_values(numbers), mask=nulls)

    def write(column: pa.Array) -> list[pa.Array]:
        values = column.fill_null(pa.scalar(0).cast(column.type)) if column.null_count else column
        return [forms.write(to_numbers(values.to_numpy(zero_copy_only=False)), _nulls(column))]

    return PackedColumn(read, write)


def _integer(type_: BasicTypeInfo) -> PackedColumn:
    (low, high), dtype = INT_RANGES[type_.name], type_.arrow().to_pandas_dtype()

    def to_values(numbers: Numbers) -> npt.NDArray[Any]:
        if int(numbers.min()) < low or int(numbers.max()) > high:
            raise UnusualError
        return numbers.astype(dtype)

    return _packed_number(_INTEGERS, to_values, lambda values: values.astype(np.int64))


def _to_singles(numbers: Numbers) -> npt.NDArray[np.float32]:
    doubles = numbers.view(np.float64)
    with np.errstate(over="ignore"):
        singles = doubles.astype(np.float32)
    if (np.isinf(singles) & ~np.isinf(doubles)).any():
        raise UnusualError
    return singles


def _sequence(lengths: _Forms, arrow: pa.DataType) -> PackedColumn:

    def read(rows: _Rows) -> pa.Array:
        sizes, nulls = lengths.read(rows)
        column = rows.slices(rows.skip(sizes))
        if nulls is not None:
            column = pc.if_else(pa.array(nulls), None, column)
        return _checked(column.cast, arrow)

    def write(column: pa.Array) -> list[pa.Array]:
        _checked(column.validate, full=True)
        data = column.cast(pa.binary())
        sizes = pc.binary_length(data).fill_null(0).to_numpy().astype(np.int64)
        return [lengths.write(sizes, _nulls(column)), data.fill_null(b"")]

    return PackedColumn(read, write)


def _checked(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what refuses text that is not UTF-8."""
    try:
        return call(*args, **kwargs)
    except pa.ArrowInvalid:
        raise UnusualError from None


_BASIC = {
    "boolean": _packed_number(
        _BOOLEANS, lambda numbers: numbers != 0, lambda values: values.astype(np.int64)
    ),
    "float": _packed_number(
        _DOUBLES, _to_singles, lambda values: values.astype(np.float64).view(np.int64)
    ),
    "double": _packed_number(
        _DOUBLES, lambda numbers: numbers.view(np.float64), lambda values: values.view(np.int64)
    ),
    "string": _sequence(_TEXT_LENGTHS, pa.string()),
    "bytes": _sequence(_BYTES_LENGTHS, pa.binary()),
    "pickled": _sequence(_BYTES_LENGTHS, pa.binary()),
}


def _packed_row(type_: RowTypeInfo, fields: list[PackedColumn]) -> PackedColumn:
    width = len(fields)
    head = bytes([0x90 + width]) if width < 16 else b"\xdc" + width.to_bytes(2, "big")

    def read(rows: _Rows) -> pa.Array:
        for byte in head:
            if (rows.heads() != byte).any():
                raise UnusualError
            rows.skip(1)
        return pa.StructArray.from_arrays([f.read(rows) for f in fields], names=type_.names)

    def write(column: pa.Array) -> list[pa.Array]:
        if column.null_count:
            raise UnusualError
        count = len(column)
        bounds = np.arange(count + 1) * len(head)
        heads = _binary(bounds, np.tile(np.frombuffer(head, np.uint8), count))
        parts = [f.write(child) for f, child in zip(fields, column.flatten(), strict=True)]
        return [heads, *chain.from_iterable(parts)]

    return PackedColumn(read, write)


# -- columns of bytes


def _nulls(column: pa.Array) -> Mask | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _bounds(sizes: Numbers) -> Numbers:
    return np.concatenate(([0], np.cumsum(sizes)))


def _binary(bounds: npt.NDArray[Any], body: Bytes) -> pa.Array:
    if len(body) > _MOST_BYTES:
        raise UnusualError
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def _interleaved(pieces: list[pa.Array]) -> pa.Array:
    """Join what stands at the same place of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    if sum(piece.nbytes for piece in pieces) > _MOST_BYTES:
        raise UnusualError
    count = len(pieces)
    rows = len(pieces[0])
    order = np.arange(count * rows, dtype=np.int32).reshape(count, rows).T.ravel()
    joined = pa.concat_arrays(pieces).take(pa.array(order))
    _, bounds, body = joined.buffers()
    # A value ends where its last piece does.
    ends = np.frombuffer(bounds, np.int32)[::count].copy()
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), body])


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
    """The column of values of one type; values are what msgspec decodes as `hint`, or None."""

    arrow: pa.DataType
    hint: Any
    to_arrow: Callable[[Values], pa.Array]
    to_values: Callable[[pa.Array], Values]


class ColumnCodec:
    """Translates stored values of one type, a column of bytes, into a typed column and back.

    Both ways are exact to the byte, with one exception: a decimal comes back with all the places of
    its type, 1.5 as 1.50, and never as -0. Keys are stored like that in the first place, and
    `required`: there is no null among them, at any depth.
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
            raise ElementTypeError("null cannot be a key or part of one")
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
            raise type_mismatch(value, type_, f"it is not between {low} and {high}")


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
        raise type_mismatch(text, type_, "expected an integer")
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


ROWS = pa.schema([field for field in COLUMNS if field.name != "state"])
"""The columns of rows: group, key, sub, value."""

_UPDATED = pa.field("updated_at", pa.timestamp("us", "UTC"), nullable=False)
_POSITION = np.dtype([("epoch", ">u8"), ("index", ">u4")])
_MAX_EPOCH = (1 << 31) - 1
_CONVERSION_ERRORS = (TurnbackError, msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError)

Translate = Callable[[pa.Array], Any]


class StateTable:
    """One state, as rows of bytes or as a table with typed columns.

    Rows have the columns `ROWS`, and are all live: no value is null, and sub is null exactly for
    states with one value per key. Typed tables have the columns of `arrow_schema`: ``key_group``,
    ``key`` (a struct of f0, f1 and so on for keys of several columns), ``position`` for lists,
    ``map_key`` for maps, ``time`` for what waits, the bounds and so on for what belongs to windows,
    ``value``, which is null where None is stored, and ``updated_at`` for states with a time to
    live.

    Rows to typed and back gives the same bytes, except that decimals in values come back with all
    the places of their type. A list position is ``epoch << 32 | number within the epoch``: what the
    list sorts by, so elements added later come last only in epochs after those stored.
    """

    def __init__(self, schema: StateSchema) -> None:
        self.schema = schema
        if schema.kind not in KINDS:
            raise self._unusable(f"its kind {schema.kind!r} is not one of {', '.join(KINDS)}")
        try:
            types = schema.key.codec().types
            sub = type_from_descriptor(schema.sub) if schema.kind in MAP_KINDS else None
            value = type_from_descriptor(schema.value)
        except (TurnbackError, TypeError, KeyError) as error:
            raise self._unusable(f"its types cannot be used: {error}") from error
        whole = types[0] if len(types) == 1 else Types.TUPLE(types)
        self._key = ColumnCodec(whole, required=True)
        self._value = ColumnCodec(value)
        self._sub = _sub_columns(schema.kind, sub)
        fields = [
            pa.field("key_group", pa.int32(), nullable=False),
            pa.field("key", self._key.arrow, nullable=False),
            *([] if self._sub is None else self._sub.fields),
            pa.field("value", self._value.arrow),
            *([] if schema.ttl is None else [_UPDATED]),
        ]
        self.arrow_schema = pa.schema(fields)

    def to_typed(self, rows: pa.Table) -> pa.Table:
        """Return rows as a typed table, in the same order."""
        return self._translated(rows, self._typed_columns, self.arrow_schema)

    def to_rows(self, typed: pa.Table) -> pa.Table:
        """Return a typed table as rows, in the same order."""
        expected = {field.name: field.type for field in self.arrow_schema}
        actual = dict(zip(typed.schema.names, typed.schema.types, strict=True))
        if actual != expected or len(typed.schema.names) != len(expected):
            raise self._unusable(
                f"expected the columns {_column_text(expected)}, found {_column_text(actual)}"
            )
        return self._translated(typed, self._row_columns, ROWS)

    def key_bytes(self, typed: pa.Table) -> pa.Array:
        return self._column("key", self._key.encode, typed["key"].combine_chunks())

    def _translated(
        self, table: pa.Table, translate: Callable[[dict[str, pa.Array]], list[Any]], to: pa.Schema
    ) -> pa.Table:
        batches = []
        for some in bounded_tables(table, BATCH_ROWS, BATCH_BYTES):
            columns = {name: some[name].combine_chunks() for name in some.schema.names}
            batches.append(pa.record_batch(translate(columns), schema=to))
        return pa.Table.from_batches(batches, schema=to)

    def _typed_columns(self, rows: dict[str, pa.Array]) -> list[pa.Array]:
        columns = [rows["group"], self._column("key", self._key.decode, rows["key"])]
        if self._sub is not None:
            decoded = self._column(self._sub.name, self._sub.decode, rows["sub"])
            columns += decoded.flatten() if self._sub.is_struct else [decoded]
        values = rows["value"]
        times = list[pa.Array]()
        if self.schema.ttl is not None:
            times = [self._column(_UPDATED.name, _to_updated, values)]
            values = self._column("value", without_times, values)
        return [*columns, self._column("value", self._value.decode, values), *times]

    def _row_columns(self, typed: dict[str, pa.Array]) -> list[pa.Array]:
        groups = typed["key_group"]
        if groups.null_count or (len(groups) and pc.min(groups).as_py() < 0):
            raise self._wrong("key_group", "every row needs a key group, which must be 0 or more")
        subs = pa.nulls(len(groups), pa.binary())
        if self._sub is not None:
            columns = [typed[f.name] for f in self._sub.fields]
            fields = self._sub.fields
            joined = columns[0]
            if self._sub.is_struct:
                joined = pa.StructArray.from_arrays(columns, fields=fields)
            subs = self._column(self._sub.name, self._sub.encode, joined)
        values = self._column("value", self._value.encode, typed["value"])
        if self.schema.ttl is not None:
            times = self._column(_UPDATED.name, _from_updated, typed[_UPDATED.name])
            values = with_times(values, times)
        return [groups, self._column("key", self._key.encode, typed["key"]), subs, values]

    def _column(self, name: str, translate: Translate, column: pa.Array) -> Any:
        try:
            return translate(column)
        except _CONVERSION_ERRORS as error:
            raise self._wrong(name, str(error)) from error

    def _wrong(self, column: str, what: str) -> StateError:
        return StateError(
            f"state {self.schema.name!r} of operator {self.schema.uid!r}, column {column}: {what}"
        )

    def _unusable(self, what: str) -> IncompatibleStateError:
        return IncompatibleStateError(
            f"state {self.schema.name!r} of operator {self.schema.uid!r} cannot be read: {what}. "
            "Use the version of Turnback that wrote it, or a newer one"
        )


class _SubColumns(NamedTuple):
    """What tells the rows of a key apart: a column, or one for every field of a struct."""

    fields: list[pa.Field]
    decode: Translate
    encode: Translate
    is_struct: bool = False

    @property
    def name(self) -> str:
        return ", ".join(field.name for field in self.fields)


def _sub_columns(kind: str, type_: TypeInfo | None) -> _SubColumns | None:
    if kind in LIST_KINDS:
        field = pa.field("position", pa.int64(), nullable=False)
        return _SubColumns([field], _to_positions, _from_positions)
    if type_ is None:
        return None
    required = isinstance(sub_codec(type_), KeyCodec)
    codec = ColumnCodec(type_, required=required)
    if kind == WINDOWED:
        return _SubColumns(list(codec.arrow), codec.decode, codec.encode, is_struct=True)
    name = "time" if kind == WAITING else "map_key"
    field = pa.field(name, codec.arrow, nullable=not required)
    return _SubColumns([field], codec.decode, codec.encode)


def _to_positions(subs: pa.Array) -> pa.Array:
    lengths = pc.min_max(pc.binary_length(subs))
    if subs.null_count or {lengths["min"].as_py(), lengths["max"].as_py()} - {12, None}:
        raise ValueError("a list position must have 12 bytes")
    fixed = subs.cast(pa.binary(12))
    stored = np.frombuffer(fixed.buffers()[1] or b"", _POSITION)
    stored = stored[fixed.offset : fixed.offset + len(fixed)]
    epochs = stored["epoch"].astype(np.uint64)
    if len(epochs) and int(epochs.max()) > _MAX_EPOCH:
        raise ValueError(f"the epoch {int(epochs.max())} in a list position is too large")
    return pa.array(epochs.astype(np.int64) << 32 | stored["index"].astype(np.int64))


def _from_positions(positions: pa.Array) -> pa.Array:
    if positions.null_count:
        raise ValueError("every element of a list needs a position")
    numbers = positions.to_numpy()
    if len(numbers) and int(numbers.min()) < 0:
        raise ValueError(f"the list position {int(numbers.min())} is negative")
    stored = np.empty(len(numbers), _POSITION)
    stored["epoch"], stored["index"] = numbers >> 32, numbers & 0xFFFFFFFF
    size = len(numbers)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(12), size, [None, pa.py_buffer(stored.tobytes())]
    )
    return fixed.cast(pa.binary())


def _to_updated(values: pa.Array) -> pa.Array:
    return pa.array(update_times(values) * 1000).view(_UPDATED.type)


def _from_updated(times: pa.Array) -> Any:
    if times.null_count:
        raise ValueError("every row of a state with a time to live needs its last update")
    return times.view(pa.int64()).to_numpy() // 1000


def _column_text(columns: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns.items()) or "nothing"
