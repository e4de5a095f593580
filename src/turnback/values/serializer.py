"""Values to bytes and back: MessagePack, checked on the way in, typed on the way out.

Rows are arrays. Most values go to msgspec as they are; only integers beyond 64 bits, 32 bit floats
and pickled objects are packed in a way of their own.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import Any, ClassVar

import msgspec

from turnback.errors import ElementTypeError
from turnback.values.codegen import generate
from turnback.values.coerce import INT_RANGES, coercer, in_field, row_arranger, type_mismatch
from turnback.values.row import row_builder, row_class
from turnback.values.typeinfo import (
    BASIC,
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

_encode = msgspec.msgpack.Encoder().encode

Convert = Callable[[Any], Any]


class Serializer:
    """Values of one type to bytes and back.

    The functions are attributes, not methods: where nothing needs to be done around them they are
    msgspec's own.

    Attributes:
        encode: Returns the bytes of a value, which may be None. Raises `ElementTypeError` if it
            does not fit the type: what was written can always be read.
        decode: Returns the value of bytes. Raises `msgspec.DecodeError` for bytes that are not of
            this type.
    """

    __slots__ = ("_pass", "decode", "encode", "type")

    def __init__(self, type: TypeInfo) -> None:
        self.type = type
        packing = _packing(type)
        self.encode: Callable[[Any], bytes] = _encoder(type, packing)
        self.decode: Callable[[bytes], Any] = _decoder(packing)
        self._pass = _all_pass(packing)

    def encode_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return the bytes of each value: as `encode`, but with one check for all of them."""
        encode = _encode if self._pass(values) else self.encode
        try:
            return list(map(encode, values))
        except UnicodeEncodeError:
            return list(map(self.encode, values))

    def __reduce__(self) -> tuple[type[Serializer], tuple[TypeInfo]]:
        return Serializer, (self.type,)

    def __repr__(self) -> str:
        return f"Serializer({self.type})"


def _encoder(type_: TypeInfo, packing: Packing) -> Callable[[Any], bytes]:
    exact = packing.exact
    pack = packing.pack

    def encode_other(value: Any) -> bytes:
        try:
            return _encode(None if value is None else pack(value))
        except UnicodeEncodeError as error:
            raise type_mismatch(value, type_, str(error)) from None

    if exact is None:
        return encode_other
    if packing.bounds is None:

        def encode(value: Any, encode: Any = _encode, exact: Any = exact) -> bytes:
            if value.__class__ is exact:
                try:
                    return encode(value)  # type: ignore[no-any-return]
                except UnicodeEncodeError:
                    pass
            return encode_other(value)

        return encode
    low, high = packing.bounds

    def encode_int(value: Any, encode: Any = _encode, low: int = low, high: int = high) -> bytes:
        if value.__class__ is int and low <= value <= high:
            return encode(value)  # type: ignore[no-any-return]
        return encode_other(value)

    return encode_int


def _decoder(packing: Packing) -> Callable[[bytes], Any]:
    decode = msgspec.msgpack.Decoder(packing.hint | None, dec_hook=_from_hook).decode
    unpack = packing.unpack
    if unpack is None:
        return decode

    def decode_unpack(data: bytes) -> Any:
        value = decode(data)
        return None if value is None else unpack(value)

    return decode_unpack


# The parameters of these hints are only known at run time.
_LIST: Any = list
_DICT: Any = dict
_TUPLE: Any = tuple


class _AnyInstance(type):
    """Lets msgspec accept whatever `_from_hook` returns for a marker class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


class BigInt(metaclass=_AnyInstance):
    """Marks an integer that travels as bytes when 64 bits cannot hold it."""


class Pickled(metaclass=_AnyInstance):
    """Marks an object that travels as its pickle."""


class _RenamingUnpickler(pickle.Unpickler):
    """Reads objects whose class has moved since they were pickled."""

    _MOVED: ClassVar = {"turnback.core.row": "turnback.values.row"}

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(self._MOVED.get(module, module), name)


def pickle_value(value: Any) -> bytes:
    """Return the pickle of an object, in the protocol that state files have always had."""
    return pickle.dumps(value, protocol=5)


def unpickle(data: bytes) -> Any:
    """Return a pickled object, also one that an older version of Turnback has pickled."""
    try:
        return pickle.loads(data)
    except ModuleNotFoundError:  # rare, so that all others pay nothing for it
        return _RenamingUnpickler(BytesIO(data)).load()


def _from_hook(marker: type, packed: Any) -> Any:
    """Turn what msgspec read for a marker class into the value."""
    if marker is Pickled:
        return unpickle(packed)
    return int.from_bytes(packed, "big", signed=True) if packed.__class__ is bytes else packed


@dataclass(frozen=True, slots=True)
class Packing:
    """What becomes of the values of one type in MessagePack.

    Attributes:
        hint: The type msgspec decodes; None is always allowed besides.
        exact: The class whose instances may go to msgspec unseen, except for the range of
            integers; None where every value must be checked.
        bounds: The least and greatest integer, for integers of fixed size.
        pack: Checks any value but None and returns what msgspec shall write.
        unpack: Turns what msgspec read, if not None, into the value; None where it is the value.
    """

    hint: Any
    exact: type | None
    bounds: tuple[int, int] | None
    pack: Convert
    unpack: Convert | None


def _all_pass(packing: Packing) -> Callable[[Iterable[Any]], bool]:
    """Return the test whether all values may go to msgspec as they are."""
    exact = packing.exact
    bounds = packing.bounds
    if bounds is None:

        def classes_pass(values: Iterable[Any]) -> bool:
            return all([v.__class__ is exact for v in values])  # noqa: C419 (twice as fast)

        return classes_pass if exact is not None else lambda values: False
    low, high = bounds

    def integers_pass(values: Iterable[Any]) -> bool:
        for value in values:  # noqa: SIM110 (twice as fast)
            if value.__class__ is not int or not low <= value <= high:
                return False
        return True

    return integers_pass


def _packing(type_: TypeInfo) -> Packing:
    if isinstance(type_, RowTypeInfo):
        return _row(type_)
    if isinstance(type_, ListTypeInfo):
        return _list(type_)
    if isinstance(type_, MapTypeInfo):
        return _map(type_)
    if isinstance(type_, DecimalTypeInfo):
        return Packing(Decimal, None, None, coercer(type_), None)
    if isinstance(type_, BasicTypeInfo):
        return _basic(type_)
    raise TypeError(f"no serializer for {type_!r}")


# Of these, values of the right class may still not fit.
_NOT_EXACT = ("big_int", "float", "time", "timestamp", "instant", "pickled")


def _basic(type_: BasicTypeInfo) -> Packing:
    name = type_.name
    hint, special = _SPECIAL.get(name, (None, coercer))
    hint = hint or BASIC[name].python_class
    return Packing(
        hint, None if name in _NOT_EXACT else hint, INT_RANGES.get(name), special(type_), None
    )


def _pack_big_int(type_: TypeInfo) -> Convert:
    coerce = coercer(type_)

    def pack(value: Any) -> int | bytes:
        number: int = coerce(value)
        if -(1 << 63) <= number < 1 << 63:
            return number
        return int_to_bytes(number)

    return pack


def int_to_bytes(number: int) -> bytes:
    """Return the shortest two's complement, highest byte first, as Java's BigInteger does."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _pack_float(type_: TypeInfo) -> Convert:
    coerce = coercer(type_)
    single = struct.Struct("<f")

    def pack(value: Any) -> float:
        try:
            result: float = single.unpack(single.pack(coerce(value)))[0]
        except OverflowError:
            raise type_mismatch(value, type_, "it is too large for 32 bits") from None
        return result

    return pack


# The type msgspec decodes if it is not the class of the values, and what packs them.
_SPECIAL: dict[str, tuple[type | None, Callable[[TypeInfo], Convert]]] = {
    "big_int": (BigInt, _pack_big_int),
    "float": (None, _pack_float),
    "pickled": (Pickled, lambda type_: pickle_value),
}


def _list(type_: ListTypeInfo) -> Packing:
    element = _packing(type_.element)
    passes = _all_pass(element)
    pack_one = element.pack
    unpack_one = element.unpack

    def pack(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise type_mismatch(value, type_, "expected a list")
        if passes(value):
            return value
        return [None if v is None else pack_one(v) for v in value]

    def unpack(value: Any) -> Any:
        assert unpack_one is not None
        return [None if v is None else unpack_one(v) for v in value]

    return Packing(_LIST[element.hint | None], None, None, pack, unpack if unpack_one else None)


def _map(type_: MapTypeInfo) -> Packing:
    key = _packing(type_.key)
    item = _packing(type_.value)
    keys_pass = _all_pass(key)
    items_pass = _all_pass(item)
    pack_key = key.pack
    pack_item = item.pack
    unpack_key = key.unpack or _same
    unpack_item = item.unpack or _same

    def pack(value: Any) -> Any:
        if not isinstance(value, dict):
            raise type_mismatch(value, type_, "expected a dict")
        if None in value:
            raise type_mismatch(value, type_, "the keys of a map must not be None")
        if keys_pass(value) and items_pass(value.values()):
            return value
        return {pack_key(k): None if v is None else pack_item(v) for k, v in value.items()}

    def unpack(value: Any) -> Any:
        return {unpack_key(k): None if v is None else unpack_item(v) for k, v in value.items()}

    plain = key.unpack is None and item.unpack is None
    return Packing(_DICT[key.hint, item.hint | None], None, None, pack, None if plain else unpack)


def _same(value: Any) -> Any:
    return value


def _row(type_: RowTypeInfo) -> Packing:
    fields = [_packing(t) for t in type_.types]
    pack = _compile_pack(type_, fields)
    build = row_builder(type_)
    inner = [f.unpack for f in fields]
    if type_.python_class is None and not any(inner):
        return Packing(_typed_row(type_, fields), None, None, pack, None)
    hint = _TUPLE[tuple(f.hint | None for f in fields)]
    if not any(inner):
        return Packing(hint, None, None, pack, build)
    build = build or _same
    unpacks = [f.unpack or _same for f in fields]

    def unpack(value: Any) -> Any:
        parts = [None if v is None else u(v) for u, v in zip(unpacks, value, strict=True)]
        return build(tuple(parts))

    return Packing(hint, None, None, pack, unpack)


def _typed_row(type_: RowTypeInfo, fields: list[Packing]) -> type:
    """Return a row class that msgspec fills by itself, because it takes it for a NamedTuple."""
    hints = {n: f.hint | None for n, f in zip(type_.names, fields, strict=True)}
    body = {
        "__slots__": (),
        "__module__": __name__,
        "_fields": type_.names,
        "_field_defaults": {},
        "__annotations__": hints,
    }
    return type("Row", (row_class(type_.names),), body)


def _compile_pack(type_: RowTypeInfo, fields: list[Packing]) -> Convert:
    """Compile the check of all fields into one function; names of fields are not in its source."""
    values = [f"v{i}" for i in range(len(fields))]
    lines = [
        "def pack(row):",
        "    if row.__class__ not in in_order or len(row) != width: row = arrange(row)",
        f"    {', '.join(values)}, = row",
    ]
    in_order, arrange = row_arranger(type_)
    scope: dict[str, Any] = {"arrange": arrange, "in_order": in_order, "width": len(fields)}
    for i, (name, packing) in enumerate(zip(type_.names, fields, strict=True)):
        scope[f"p{i}"] = _named_pack(name, packing.pack)
        tests = [f"v{i} is not None"]
        if packing.exact is not None:
            scope[f"c{i}"] = packing.exact
            fits = f"v{i}.__class__ is c{i}"
            if packing.bounds:
                fits += f" and {packing.bounds[0]} <= v{i} <= {packing.bounds[1]}"
            tests.insert(0, f"not ({fits})")
        lines.append(f"    if {' and '.join(tests)}: v{i} = p{i}(v{i})")
    lines.append(f"    return ({', '.join(values)},)")
    pack: Convert = generate("pack", lines, scope)
    return pack


def _named_pack(name: str, pack: Convert) -> Convert:
    def named(value: Any) -> Any:
        try:
            return pack(value)
        except ElementTypeError as error:
            raise in_field(name, error) from None

    return named
