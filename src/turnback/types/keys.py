"""The one Python form in which a key is looked up.

Python finds keys equal that are stored as different ones, and the other way round: two instants
with the same clock time in the hour that winter time repeats, 1 and True, or instances of a class
with an ``__eq__`` of its own. In the form made here, keys are equal exactly if their bytes are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

from xxhash import xxh64_intdigest

from turnback.core.errors import ConfigurationError, NullKeyError, PlanError
from turnback.types.coerce import NoneType, coercer, cut, decimal_quantizer, exact_classes, spread
from turnback.types.factory import Types
from turnback.types.row import row_class
from turnback.types.serializer import Serializer
from turnback.types.spark_hash import SEED, column_hash
from turnback.types.typeinfo import BasicTypeInfo, DecimalTypeInfo, RowTypeInfo, TypeInfo


class KeyForm:
    """Brings keys of one type into the form in which they are looked up.

    Attributes:
        one: Returns one key in this form. Raises `NullKeyError` if it is or holds None,
            `ElementTypeError` if it does not fit the type.
        are_all: Tells whether all of some keys have the form already.
        differs: Whether the form is not the class that was declared. It is a tuple for classes
            whose instances are equal in a way of their own. Without such a class, keys that come
            from columns have the form already.
    """

    __slots__ = ("are_all", "differs", "one")

    def __init__(self, type_: TypeInfo) -> None:
        self.one: Callable[[Any], Any] = _former(type_)
        self.are_all: Callable[[Sequence[Any]], bool] = _test(type_)
        self.differs = _differs(type_)


def null_key(key: Any) -> NullKeyError:
    """Return the error for a key that is or holds None."""
    return NullKeyError(
        f"the key {cut(key)} is or holds null; filter these elements out or give them a key of "
        "their own before key_by"
    )


def _former(type_: TypeInfo) -> Callable[[Any], Any]:
    if isinstance(type_, RowTypeInfo):
        return _row_former(type_)
    coerce = coercer(type_)

    def form(key: Any) -> Any:
        if key is None:
            raise null_key(key)
        return coerce(key)

    return form


def _row_former(type_: RowTypeInfo) -> Callable[[Any], Any]:
    parts = [_former(t) for t in type_.types]
    width, cls = len(parts), _tuple_class(type_)
    new: Callable[[Any, Any], Any] = tuple.__new__

    def form(key: Any) -> Any:
        if key is None:
            raise null_key(key)
        fields = key
        if not isinstance(key, tuple) or len(key) != width:
            fields = spread(key, type_)
        if any(value is None for value in fields):
            raise null_key(key)
        return new(cls, [part(value) for part, value in zip(parts, fields, strict=True)])

    return form


def _test(type_: TypeInfo) -> Callable[[Sequence[Any]], bool]:
    """Return the function that tells whether all keys have the form already."""
    if isinstance(type_, RowTypeInfo):
        return _row_test(type_)
    wanted = exact_classes(type_) - {NoneType}
    if type_ == BasicTypeInfo("instant"):
        return lambda keys: (
            wanted.issuperset(map(type, keys)) and all(key.tzinfo is UTC for key in keys)
        )
    return lambda keys: wanted.issuperset(map(type, keys))


def _row_test(type_: RowTypeInfo) -> Callable[[Sequence[Any]], bool]:
    tests = [_test(t) for t in type_.types]
    cls, width = _tuple_class(type_), len(tests)

    def are_all(keys: Sequence[Any]) -> bool:
        if not {cls}.issuperset(map(type, keys)) or not {width}.issuperset(map(len, keys)):
            return False
        columns = zip(*keys, strict=True)
        return all(test(column) for test, column in zip(tests, columns, strict=False))

    return are_all


def _tuple_class(type_: RowTypeInfo) -> type:
    """Return the class of the form: the declared one if its instances are equal as tuples are."""
    cls = type_.python_class or row_class(type_.names)
    return cls if _equal_as_tuples(cls) else tuple


def _equal_as_tuples(cls: Any) -> bool:
    same_equality: bool = cls.__eq__ is tuple.__eq__
    return issubclass(cls, tuple) and same_equality and cls.__hash__ is tuple.__hash__


def _differs(type_: TypeInfo) -> bool:
    if not isinstance(type_, RowTypeInfo):
        return False
    cls = type_.python_class
    return (cls is not None and not _equal_as_tuples(cls)) or any(map(_differs, type_.types))


_NOT_KEYS = ("float", "double", "pickled")
_SIGN = 1 << 63
_WRAP = 1 << 64


class KeyCodec:
    """The keys of one keyed stream: their bytes and their key group.

    A key of one type is the value itself, a key of several types a tuple. Equal keys have equal
    bytes, however they are written (1.0 and 1.00 as decimals, one instant in two zones).

    Attributes:
        types: The types that make up the key.
        by_columns: Whether Spark computes the group from columns, with its ``xxhash64``.
        encode: Returns the bytes of a key. Raises `NullKeyError` if it is or holds None,
            `ElementTypeError` if it does not fit the types.
        decode: Returns the key of bytes.
        form: The form in which Python finds keys equal exactly if their bytes are. Whoever looks
            keys up in a dict has to bring them into it first.
        group: Returns the key group of a key, 0 to max_parallelism - 1, which is its second
            argument. Raises as `encode` does.

    Raises:
        PlanError: A type cannot be a key.
    """

    __slots__ = ("by_columns", "decode", "encode", "form", "group", "types")

    def __init__(self, types: tuple[TypeInfo, ...], by_columns: bool) -> None:
        self.types = tuple(types)
        self.by_columns = by_columns
        if not self.types:
            raise PlanError("key_by needs at least one column or a key type")
        for type_ in self.types:
            _check_key_type(type_)
        whole = self.types[0] if len(self.types) == 1 else Types.TUPLE(self.types)
        self.form = KeyForm(whole)
        serializer = Serializer(whole)
        self.encode: Callable[[Any], bytes] = _key_encoder(whole, serializer)
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
    """Return the first and the last key group of a partition.

    Raises:
        ConfigurationError: There is no such partition, or more partitions than key groups.
    """
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"the parallelism {parallelism} must be 1 to the max parallelism {max_parallelism}"
        )
    if not 0 <= partition < parallelism:
        raise ConfigurationError(f"no partition {partition} among {parallelism}")
    first = -(-partition * max_parallelism // parallelism)
    return first, -(-(partition + 1) * max_parallelism // parallelism) - 1


def _check_key_type(type_: TypeInfo) -> None:
    if isinstance(type_, RowTypeInfo):
        for field_type in type_.types:
            _check_key_type(field_type)
    elif not isinstance(type_, DecimalTypeInfo) and (
        not isinstance(type_, BasicTypeInfo) or type_.name in _NOT_KEYS
    ):
        raise PlanError(
            f"{_name(type_)} cannot be a key: equal values may differ in their bytes; "
            "cast it to a decimal, a string or a long"
        )


def _name(type_: TypeInfo) -> str:
    pickled = type_ == Types.PICKLED_BYTE_ARRAY()
    return "a pickled object" if pickled else f"the type {type_}"


def _key_encoder(type_: TypeInfo, serializer: Serializer) -> Callable[[Any], bytes]:
    canonical = _canonical(type_)
    inner = serializer.encode
    if canonical is None:

        def encode(key: Any) -> bytes:
            if key is None:
                raise null_key(key)
            return inner(key)

        return encode

    def encode_canonical(key: Any) -> bytes:
        return inner(canonical(key))

    return encode_canonical


def _canonical(type_: TypeInfo) -> Callable[[Any], Any] | None:
    """Return what makes equal keys the same and finds nulls; None for types without either."""
    if isinstance(type_, DecimalTypeInfo):
        coerce, quantize = coercer(type_), decimal_quantizer(type_)

        def canonical_decimal(key: Any) -> Any:
            if key is None:
                raise null_key(key)
            return quantize(coerce(key))

        return canonical_decimal
    if isinstance(type_, RowTypeInfo):
        return _canonical_row(type_)
    return None


def _canonical_row(type_: RowTypeInfo) -> Callable[[Any], Any]:
    parts = [_canonical(t) for t in type_.types]
    plain = not any(parts)

    def canonical(key: Any) -> Any:
        if key is None:
            raise null_key(key)
        if not isinstance(key, tuple) or len(key) != len(parts):
            key = spread(key, type_)
        if None in key:
            raise null_key(key)
        if plain:
            return key
        return tuple([v if c is None else c(v) for c, v in zip(parts, key, strict=True)])

    return canonical


def _grouper(hash_key: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
    def group(key: Any, max_parallelism: int) -> int:
        value = hash_key(key, SEED)
        # Spark's hash is signed: the same bits, and so another remainder.
        return (value - _WRAP if value >= _SIGN else value) % max_parallelism

    return group


def _bytes_hash(encode: Callable[[Any], bytes]) -> Callable[[Any, int], int]:
    def hash_key(key: Any, seed: int) -> int:
        return xxh64_intdigest(encode(key), seed)

    return hash_key


def _column_hash(type_: TypeInfo) -> Callable[[Any, int], int]:
    hash_value = column_hash(type_)
    canonical = _canonical(type_)
    if canonical is not None:
        return lambda key, seed: hash_value(canonical(key), seed)

    def hash_key(key: Any, seed: int) -> int:
        if key is None:
            raise null_key(key)
        return hash_value(key, seed)

    return hash_key
