"""How each type travels in MessagePack: checked on the way in, typed on the way out.

Rows are arrays. Most values go to msgspec as they are; only integers beyond 64 bits, 32 bit floats
and pickled objects have a form of their own.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any, ClassVar

from turnback.core.errors import ElementTypeError
from turnback.types.coerce import INT_RANGES, coercer, in_field, misfit, spread
from turnback.types.row import row_builder, row_class
from turnback.types.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

Convert = Callable[[Any], Any]
# The parameters of these hints are only known at run time.
_LIST: Any = list
_DICT: Any = dict
_TUPLE: Any = tuple


class _AnyInstance(type):
    """Lets msgspec accept whatever `from_hook` returns for a marker class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


class BigInt(metaclass=_AnyInstance):
    """Marks an integer that travels as bytes when 64 bits cannot hold it."""


class Pickled(metaclass=_AnyInstance):
    """Marks an object that travels as its pickle."""


class _RenamingUnpickler(pickle.Unpickler):
    """Reads objects whose class has moved since they were pickled."""

    _MOVED: ClassVar = {"turnback.core.row": "turnback.types.row"}

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(self._MOVED.get(module, module), name)


def unpickle(data: bytes) -> Any:
    """Return a pickled object, also one that an older version of Turnback has pickled."""
    try:
        return pickle.loads(data)
    except ModuleNotFoundError:  # rare, so that all others pay nothing for it
        return _RenamingUnpickler(BytesIO(data)).load()


def from_hook(marker: type, wire: Any) -> Any:
    """Turn what msgspec read for a marker class into the value."""
    if marker is Pickled:
        return unpickle(wire)
    return int.from_bytes(wire, "big", signed=True) if wire.__class__ is bytes else wire


@dataclass(frozen=True, slots=True)
class Wire:
    """How one type travels.

    Attributes:
        hint: What msgspec is told to read; None is always allowed besides.
        exact: The class whose instances may go to msgspec unseen, except for the range of
            integers; None where every value must be looked at.
        bounds: The least and greatest integer, for integers of fixed size.
        pack: Checks any value but None and returns what msgspec shall write.
        unpack: Turns what msgspec read, if not None, into the value; None where it is the value.
    """

    hint: Any
    exact: type | None
    bounds: tuple[int, int] | None
    pack: Convert
    unpack: Convert | None


def all_pass(wire: Wire) -> Callable[[Iterable[Any]], bool]:
    """Return the function that tells whether all values may go to msgspec as they are."""
    exact, bounds = wire.exact, wire.bounds
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


def wire_of(type_: TypeInfo) -> Wire:
    """Return how a type travels."""
    if isinstance(type_, RowTypeInfo):
        return _row(type_)
    if isinstance(type_, ListTypeInfo):
        return _list(type_)
    if isinstance(type_, MapTypeInfo):
        return _map(type_)
    if isinstance(type_, DecimalTypeInfo):
        return Wire(Decimal, None, None, coercer(type_), None)
    if isinstance(type_, BasicTypeInfo):
        return _basic(type_)
    raise TypeError(f"no serializer for {type_!r}")


_HINTS: dict[str, Any] = {
    "string": str,
    "bytes": bytes,
    "boolean": bool,
    "byte": int,
    "short": int,
    "int": int,
    "long": int,
    "big_int": BigInt,
    "float": float,
    "double": float,
    "date": date,
    "time": time,
    "timestamp": datetime,
    "instant": datetime,
    "pickled": Pickled,
}
# Of these, values of the right class may still not fit.
_LOOK_CLOSER = ("big_int", "float", "time", "timestamp", "instant", "pickled")


def _basic(type_: BasicTypeInfo) -> Wire:
    name = type_.name
    pack = _PACK[name](type_) if name in _PACK else coercer(type_)
    exact = None if name in _LOOK_CLOSER else _HINTS[name]
    return Wire(_HINTS[name], exact, INT_RANGES.get(name), pack, None)


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
            raise misfit(value, type_, "it is too large for 32 bits") from None
        return result

    return pack


def _pack_pickled(type_: TypeInfo) -> Convert:
    return lambda value: pickle.dumps(value, protocol=5)


_PACK: dict[str, Callable[[TypeInfo], Convert]] = {
    "big_int": _pack_big_int,
    "float": _pack_float,
    "pickled": _pack_pickled,
}


def _list(type_: ListTypeInfo) -> Wire:
    element = wire_of(type_.element)
    passes, pack_one, unpack_one = all_pass(element), element.pack, element.unpack

    def pack(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise misfit(value, type_, "expected a list")
        if passes(value):
            return value
        return [None if v is None else pack_one(v) for v in value]

    def unpack(value: Any) -> Any:
        assert unpack_one is not None
        return [None if v is None else unpack_one(v) for v in value]

    return _composite(_LIST[element.hint | None], pack, unpack if unpack_one else None)


def _map(type_: MapTypeInfo) -> Wire:
    key, item = wire_of(type_.key), wire_of(type_.value)
    keys_pass, items_pass = all_pass(key), all_pass(item)
    pack_key, pack_item = key.pack, item.pack
    unpack_key = key.unpack or _same
    unpack_item = item.unpack or _same

    def pack(value: Any) -> Any:
        if not isinstance(value, dict):
            raise misfit(value, type_, "expected a dict")
        if None in value:
            raise misfit(value, type_, "the keys of a map must not be None")
        if keys_pass(value) and items_pass(value.values()):
            return value
        return {pack_key(k): None if v is None else pack_item(v) for k, v in value.items()}

    def unpack(value: Any) -> Any:
        return {unpack_key(k): None if v is None else unpack_item(v) for k, v in value.items()}

    plain = key.unpack is None and item.unpack is None
    return _composite(_DICT[key.hint, item.hint | None], pack, None if plain else unpack)


def _same(value: Any) -> Any:
    return value


def _composite(hint: Any, pack: Convert, unpack: Convert | None) -> Wire:
    return Wire(hint, None, None, pack, unpack)


def _row(type_: RowTypeInfo) -> Wire:
    fields = [wire_of(t) for t in type_.types]
    pack = _compile_pack(type_, fields)
    build = row_builder(type_)
    inner = [f.unpack for f in fields]
    if type_.python_class is None and not any(inner):
        return _composite(_typed_row(type_, fields), pack, None)
    hint = _TUPLE[tuple(f.hint | None for f in fields)]
    if not any(inner):
        return _composite(hint, pack, build)
    build = build or _same
    unpacks = [f.unpack or _same for f in fields]

    def unpack(value: Any) -> Any:
        parts = [None if v is None else u(v) for u, v in zip(unpacks, value, strict=True)]
        return build(tuple(parts))

    return _composite(hint, pack, unpack)


def _typed_row(type_: RowTypeInfo, fields: list[Wire]) -> type:
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


def _compile_pack(type_: RowTypeInfo, fields: list[Wire]) -> Convert:
    """Compile the check of all fields into one function; names of fields are not in its source."""
    values = [f"v{i}" for i in range(len(fields))]
    lines = [
        "def pack(row):",
        "    if not isinstance(row, tuple) or len(row) != width: row = spread(row, type_)",
        f"    {', '.join(values)}, = row",
    ]
    scope: dict[str, Any] = {"spread": spread, "type_": type_, "width": len(fields)}
    for i, (name, wire) in enumerate(zip(type_.names, fields, strict=True)):
        scope[f"p{i}"] = _named_pack(name, wire.pack)
        tests = [f"v{i} is not None"]
        if wire.exact is not None:
            scope[f"c{i}"] = wire.exact
            fits = f"v{i}.__class__ is c{i}"
            if wire.bounds:
                fits += f" and {wire.bounds[0]} <= v{i} <= {wire.bounds[1]}"
            tests.insert(0, f"not ({fits})")
        lines.append(f"    if {' and '.join(tests)}: v{i} = p{i}(v{i})")
    lines.append(f"    return ({', '.join(values)},)")
    exec("\n".join(lines), scope)
    pack: Convert = scope["pack"]
    return pack


def _named_pack(name: str, pack: Convert) -> Convert:
    def named(value: Any) -> Any:
        try:
            return pack(value)
        except ElementTypeError as error:
            raise in_field(name, error) from None

    return named
