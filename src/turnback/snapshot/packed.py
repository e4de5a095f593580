"""Columns of MessagePack to typed columns and back, without a Python object for each value.

Numbers, text, bytes and rows of them are read and written with NumPy, in what the state itself
writes: the shortest form of each. Whatever else a column holds is left to msgspec, which reads all
there is and can say what is wrong with a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.values.coerce import INT_RANGES
from turnback.values.typeinfo import BasicTypeInfo, RowTypeInfo, TypeInfo

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
        return _row(type_, known) if len(known) == len(fields) else None
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

    Args:
        forms: Of each form the least number it is for, its first byte, and the type of the number
            after that; without such a type the number is added to the first byte.
        small: The numbers that are written in the first byte.
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


def _number(
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

    return _number(_INTEGERS, to_values, lambda values: values.astype(np.int64))


def _to_singles(numbers: Numbers) -> npt.NDArray[np.float32]:
    doubles = numbers.view(np.float64)
    with np.errstate(over="ignore"):
        singles = doubles.astype(np.float32)
    if (np.isinf(singles) & ~np.isinf(doubles)).any():
        raise UnusualError
    return singles


def _sequence(lengths: _Forms, arrow: pa.DataType) -> PackedColumn:
    """Return the column of text or bytes."""

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
    "boolean": _number(
        _BOOLEANS, lambda numbers: numbers != 0, lambda values: values.astype(np.int64)
    ),
    "float": _number(
        _DOUBLES, _to_singles, lambda values: values.astype(np.float64).view(np.int64)
    ),
    "double": _number(
        _DOUBLES, lambda numbers: numbers.view(np.float64), lambda values: values.view(np.int64)
    ),
    "string": _sequence(_TEXT_LENGTHS, pa.string()),
    "bytes": _sequence(_BYTES_LENGTHS, pa.binary()),
    "pickled": _sequence(_BYTES_LENGTHS, pa.binary()),
}


def _row(type_: RowTypeInfo, fields: list[PackedColumn]) -> PackedColumn:
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
