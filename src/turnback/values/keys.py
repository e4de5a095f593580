"""Keys of keyed streams: the form they are looked up in, their bytes, hash and key group.

Python finds keys equal that are stored as different ones, and the other way round: two instants
with the same clock time in the hour that winter time repeats, 1 and True, or instances of a class
with an ``__eq__`` of its own. Normalized keys are equal exactly if their bytes are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context
from typing import Any

from xxhash import xxh64_intdigest

from turnback.errors import ConfigurationError, NullKeyError, PlanError
from turnback.values.codegen import generate
from turnback.values.coerce import (
    NoneType,
    coercer,
    decimal_quantizer,
    exact_classes,
    row_values,
    short_repr,
)
from turnback.values.row import row_class
from turnback.values.serializer import Serializer, int_to_bytes
from turnback.values.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
)

Convert = Callable[[Any], Any]
Hash = Callable[[Any, int], int]
"""Hashes a value onto a seed; unsigned."""

SEED = 42
_NOT_KEYS = ("float", "double", "pickled")
_holds = tuple.__contains__  # `in` asks a row for names
_SIGN = 1 << 63
_WRAP = 1 << 64


class KeyCodec:
    """The keys of one keyed stream: their bytes and their key group.

    A key of one type is the value itself, a key of several types a tuple. Equal keys have equal
    bytes, however they are written (1.0 and 1.00 as decimals, one instant in two zones).

    Attributes:
        by_columns: Whether Spark computes the group from columns, with its ``xxhash64``.
        encode: Returns the bytes of a key. Raises `NullKeyError` if it is or holds None,
            `ElementTypeError` if it does not fit the types.
        normalizer: Whoever looks keys up in a dict has to normalize them first.
        group: Returns the key group of a key, 0 to max_parallelism - 1, which is its second
            argument. Raises as `encode` does.

    Raises:
        PlanError: A type cannot be a key.
    """

    __slots__ = ("by_columns", "decode", "encode", "group", "normalizer", "types")

    def __init__(self, types: tuple[TypeInfo, ...], by_columns: bool) -> None:
        self.types = tuple(types)
        self.by_columns = by_columns
        if not self.types:
            raise PlanError("key_by needs at least one column or a key type")
        for type_ in self.types:
            _check_key_type(type_)
        whole = self.types[0] if len(self.types) == 1 else Types.TUPLE(self.types)
        self.normalizer = KeyNormalizer(whole)
        serializer = Serializer(whole)
        self.encode: Callable[[Any], bytes] = _key_encoder(whole, serializer.encode)
        self.decode: Callable[[bytes], Any] = serializer.decode
        hash_key = _column_hash(whole) if by_columns else _bytes_hash(self.encode)
        self.group: Callable[[Any, int], int] = _grouper(hash_key)

    def __reduce__(self) -> tuple[type[KeyCodec], tuple[Any, ...]]:
        return KeyCodec, (self.types, self.by_columns)

    def __repr__(self) -> str:
        how = "by columns" if self.by_columns else "by value"
        return f"KeyCodec({', '.join(map(str, self.types))}; {how})"


def partition_of(group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the partition a key group belongs to."""
    return group * parallelism // max_parallelism


def group_range(partition: int, parallelism: int, max_parallelism: int) -> tuple[int, int]:
    """Return the first and the last key group of a partition."""
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"the parallelism {parallelism} must be 1 to the max parallelism {max_parallelism}"
        )
    if not 0 <= partition < parallelism:
        raise ConfigurationError(f"no partition {partition} among {parallelism}")
    first = -(-partition * max_parallelism // parallelism)
    return first, -(-(partition + 1) * max_parallelism // parallelism) - 1


class KeyNormalizer:
    """Brings keys of one type into the form in which they are looked up.

    Attributes:
        normalize: Returns a key in this form. Raises `NullKeyError` if it is or holds None,
            `ElementTypeError` if it does not fit the type.
        are_normal: Tells whether all of some keys have the form already.
        changes_class: Whether the form is not the class that was declared. It is a tuple for
            classes whose instances are equal in a way of their own. Without such a class, keys
            that come from columns have the form already.
    """

    __slots__ = ("are_normal", "changes_class", "normalize")

    def __init__(self, type_: TypeInfo) -> None:
        self.normalize: Convert = _normalize(type_)
        self.are_normal: Callable[[Sequence[Any]], bool] = _are_normal(type_)
        self.changes_class = _changes_class(type_)


def _null_key(key: Any) -> NullKeyError:
    return NullKeyError(
        f"the key {short_repr(key)} is or contains null; filter these elements out or give them "
        "a separate key before key_by"
    )


def _not_null(convert: Convert) -> Convert:

    def checked(key: Any) -> Any:
        if key is None:
            raise _null_key(key)
        return convert(key)

    return checked


def _normalize(type_: TypeInfo) -> Convert:
    if isinstance(type_, RowTypeInfo):
        return _normalize_row(type_)
    return _not_null(coercer(type_))


def _normalize_row(type_: RowTypeInfo) -> Convert:
    parts = [_normalize(t) for t in type_.types]
    width = len(parts)
    cls = _tuple_class(type_)
    in_order: tuple[Any, ...] = (tuple, cls)
    new: Callable[[Any, Any], Any] = tuple.__new__

    def normalize(key: Any) -> Any:
        if key is None:
            raise _null_key(key)
        fields = key
        if key.__class__ not in in_order or len(key) != width:
            fields = row_values(key, type_)
        if any(value is None for value in fields):
            raise _null_key(key)
        return new(cls, [part(value) for part, value in zip(parts, fields, strict=True)])

    return normalize


def _are_normal(type_: TypeInfo) -> Callable[[Sequence[Any]], bool]:
    if isinstance(type_, RowTypeInfo):
        return _are_normal_rows(type_)
    classes = exact_classes(type_) - {NoneType}
    if type_ == BasicTypeInfo("instant"):
        return lambda keys: (
            classes.issuperset(map(type, keys)) and all(key.tzinfo is UTC for key in keys)
        )
    return lambda keys: classes.issuperset(map(type, keys))


def _are_normal_rows(type_: RowTypeInfo) -> Callable[[Sequence[Any]], bool]:
    tests = [_are_normal(t) for t in type_.types]
    cls = _tuple_class(type_)
    width = len(tests)

    def are_normal(keys: Sequence[Any]) -> bool:
        if not {cls}.issuperset(map(type, keys)) or not {width}.issuperset(map(len, keys)):
            return False
        columns = zip(*keys, strict=True)
        return all(test(column) for test, column in zip(tests, columns, strict=False))

    return are_normal


def _tuple_class(type_: RowTypeInfo) -> type:
    """Return the class of normal keys: the declared one if its instances are equal as tuples."""
    cls = type_.python_class or row_class(type_.names)
    return cls if _equal_as_tuples(cls) else tuple


def _equal_as_tuples(cls: Any) -> bool:
    same_equality: bool = cls.__eq__ is tuple.__eq__
    return issubclass(cls, tuple) and same_equality and cls.__hash__ is tuple.__hash__


def _changes_class(type_: TypeInfo) -> bool:
    if not isinstance(type_, RowTypeInfo):
        return False
    cls = type_.python_class
    return (cls is not None and not _equal_as_tuples(cls)) or any(map(_changes_class, type_.types))


def _check_key_type(type_: TypeInfo) -> None:
    if isinstance(type_, RowTypeInfo):
        for field_type in type_.types:
            _check_key_type(field_type)
    elif not isinstance(type_, DecimalTypeInfo) and (
        not isinstance(type_, BasicTypeInfo) or type_.name in _NOT_KEYS
    ):
        name = f"the type {type_}"
        reason = "equal values may differ in their bytes"
        if type_ == Types.PICKLED_BYTE_ARRAY():
            name = "a pickled object"
        elif type_ in (Types.FLOAT(), Types.DOUBLE()):
            reason = "NaN does not equal itself, and 0.0 equals -0.0, which has different bytes"
        advice = "cast it to a decimal, a string or a bigint"
        if isinstance(type_, ListTypeInfo | MapTypeInfo):
            reason = "keys are single values, or tuples and rows of them"
            advice = "key by a function that returns a tuple, or by a string made of its elements"
        raise PlanError(f"{name} cannot be a key: {reason}; {advice}")


def _key_encoder(type_: TypeInfo, inner: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    canonical = _canonical(type_)
    return _not_null(inner) if canonical is None else lambda key: inner(canonical(key))


def _canonical(type_: TypeInfo) -> Convert | None:
    """Return what makes equal keys the same and finds nulls; None for types without either."""
    if isinstance(type_, DecimalTypeInfo):
        coerce = coercer(type_)
        quantize = decimal_quantizer(type_)
        return _not_null(lambda key: quantize(coerce(key)))
    if isinstance(type_, RowTypeInfo):
        return _canonical_row(type_)
    return None


def _canonical_row(type_: RowTypeInfo) -> Convert:
    parts = [_canonical(t) for t in type_.types]
    plain = not any(parts)
    in_order: tuple[Any, ...] = (tuple, _tuple_class(type_))

    def canonical(key: Any) -> Any:
        if key is None:
            raise _null_key(key)
        if key.__class__ not in in_order or len(key) != len(parts):
            key = row_values(key, type_)
        if _holds(key, None):
            raise _null_key(key)
        if plain:
            return key
        return tuple([v if c is None else c(v) for c, v in zip(parts, key, strict=True)])

    return canonical


def _grouper(hash_key: Hash) -> Callable[[Any, int], int]:
    def group(key: Any, max_parallelism: int) -> int:
        value = hash_key(key, SEED)
        # Spark's hash is signed: the same bits, and so another remainder.
        return (value - _WRAP if value >= _SIGN else value) % max_parallelism

    return group


def _bytes_hash(encode: Callable[[Any], bytes]) -> Hash:
    return lambda key, seed: xxh64_intdigest(encode(key), seed)


def _column_hash(type_: TypeInfo) -> Hash:
    hash_value = _spark_hash(type_)
    canonical = _canonical(type_)
    if canonical is not None:
        return lambda key, seed: hash_value(canonical(key), seed)

    def hash_key(key: Any, seed: int) -> int:
        if key is None:
            raise _null_key(key)
        return hash_value(key, seed)

    return hash_key


_int32 = struct.Struct("<i").pack
_int64 = struct.Struct("<q").pack
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def _spark_hash(type_: TypeInfo) -> Hash:
    """Return Spark's ``xxhash64`` for values of a key type other than None, bit for bit.

    Spark hashes several columns by giving the hash of one as the seed of the next, and a struct
    like its fields.
    """
    if isinstance(type_, RowTypeInfo):
        return _row_hash(type_)
    if isinstance(type_, DecimalTypeInfo):
        return _decimal_hash(type_)
    assert isinstance(type_, BasicTypeInfo)  # nothing else can be a key
    coerce = coercer(type_)
    to_bytes = _BYTES[type_.name]
    exact = _UNCHECKED.get(type_.name)

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


# Values of these classes need no check before they are hashed. A byte or a short is hashed as an
# int, so its range would go unchecked.
_UNCHECKED = {"string": str, "bytes": bytes, "boolean": bool, "int": int, "long": int}
_BYTES: dict[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "bytes": bytes,
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
    coerce = coercer(type_)
    quantize = decimal_quantizer(type_)
    to_bytes = _int64 if type_.precision <= 18 else int_to_bytes
    shift = Context(prec=2 * 38).scaleb
    scale = type_.scale

    def hash_value(value: Any, seed: int) -> int:
        return xxh64_intdigest(to_bytes(int(shift(quantize(coerce(value)), scale))), seed)

    return hash_value


def _row_hash(type_: RowTypeInfo) -> Hash:
    """Compile the chain of hashes: a loop over the fields takes half as long again."""
    scope: dict[str, Any] = {f"h{i}": _spark_hash(t) for i, t in enumerate(type_.types)}
    width = range(len(scope))
    lines = ["def hash_row(row, seed):", f"    {', '.join(f'v{i}' for i in width)}, = row"]
    lines += [f"    seed = h{i}(v{i}, seed)" for i in width]
    hash_row: Hash = generate("hash_row", [*lines, "    return seed"], scope)
    return hash_row
