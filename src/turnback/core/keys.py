"""Keys: their bytes, their key group, and the partition a key group belongs to."""

from collections.abc import Callable
from typing import Any

from xxhash import xxh64_intdigest

from turnback.core.coerce import coercer, decimal_quantizer, spread
from turnback.core.errors import ConfigurationError, PlanError
from turnback.core.keyform import KeyForm, null_key
from turnback.core.serde import Serializer
from turnback.core.sparkhash import SEED, column_hash
from turnback.core.types import BasicTypeInfo, DecimalTypeInfo, RowTypeInfo, TypeInfo, Types

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

    def __reduce__(self) -> tuple[type["KeyCodec"], tuple[Any, ...]]:
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
