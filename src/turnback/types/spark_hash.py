"""Spark's ``xxhash64`` in Python, bit for bit."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Context
from typing import Any

from xxhash import xxh64_intdigest

from turnback.types.coerce import coercer, decimal_quantizer
from turnback.types.typeinfo import BasicTypeInfo, DecimalTypeInfo, RowTypeInfo, TypeInfo
from turnback.types.wire import int_to_bytes

SEED = 42

Hash = Callable[[Any, int], int]

_int32 = struct.Struct("<i").pack
_int64 = struct.Struct("<q").pack
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def column_hash(type_: TypeInfo) -> Hash:
    """Return the function that hashes a value of a key type, None excepted, onto a seed.

    Spark hashes several columns by giving the hash of one as the seed of the next, and a struct
    like its fields. The result is unsigned.
    """
    if isinstance(type_, RowTypeInfo):
        return _row_hash(type_)
    if isinstance(type_, DecimalTypeInfo):
        return _decimal_hash(type_)
    if not isinstance(type_, BasicTypeInfo):
        raise TypeError(f"{type_} has no hash")
    return _basic_hash(type_)


def _basic_hash(type_: BasicTypeInfo) -> Hash:
    coerce = coercer(type_)
    to_bytes = _BYTES[type_.name]
    exact = _UNSEEN.get(type_.name)

    def hash_value(value: Any, seed: int) -> int:
        if value.__class__ is exact:
            try:
                return xxh64_intdigest(to_bytes(value), seed)
            except (UnicodeEncodeError, struct.error):
                pass  # coerce says what is wrong
        return xxh64_intdigest(to_bytes(coerce(value)), seed)

    return hash_value


def _micros(value: datetime) -> bytes:
    delta = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
    return _int64((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)


def _nanos(value: time) -> bytes:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _int64((seconds * 1_000_000 + value.microsecond) * 1_000)


def _bytes(value: bytes) -> bytes:
    return value


# Values of these classes need no look before they are hashed. A byte or a short is hashed as an
# int, so its range would go unchecked.
_UNSEEN = {"string": str, "bytes": bytes, "boolean": bool, "int": int, "long": int}
_BYTES: dict[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "bytes": _bytes,
    "boolean": _int32,
    "byte": _int32,
    "short": _int32,
    "int": _int32,
    "long": _int64,
    "big_int": int_to_bytes,
    "date": lambda value: _int32(value.toordinal() - _EPOCH_DAY),
    "time": _nanos,
    "timestamp": _micros,
    "instant": _micros,
}


def _decimal_hash(type_: DecimalTypeInfo) -> Hash:
    coerce, quantize = coercer(type_), decimal_quantizer(type_)
    to_bytes = _int64 if type_.precision <= 18 else int_to_bytes
    shift = Context(prec=2 * 38).scaleb
    scale = type_.scale

    def hash_value(value: Any, seed: int) -> int:
        return xxh64_intdigest(to_bytes(int(shift(quantize(coerce(value)), scale))), seed)

    return hash_value


def _row_hash(type_: RowTypeInfo) -> Hash:
    """Compile the chain of hashes: a loop over the fields takes half as long again."""
    scope: dict[str, Any] = {f"h{i}": column_hash(t) for i, t in enumerate(type_.types)}
    width = range(len(scope))
    lines = ["def hash_row(row, seed):", f"    {', '.join(f'v{i}' for i in width)}, = row"]
    lines += [f"    seed = h{i}(v{i}, seed)" for i in width]
    exec("\n".join([*lines, "    return seed"]), scope)
    hash_row: Hash = scope["hash_row"]
    return hash_row
