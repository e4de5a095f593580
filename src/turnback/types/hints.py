"""Whatever a user declares a type with, to a `TypeInfo`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any

import msgspec
import pyarrow as pa

from turnback.core.errors import UnsupportedTypeError
from turnback.types.ddl import SIMPLE, parse_ddl
from turnback.types.factory import Types
from turnback.types.typeinfo import (
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

_ALLOWED = (
    "allowed are Types.*, str, int, float, bool, bytes, date, time, datetime, Decimal, list[X], "
    "dict[K, V], tuple[X, Y], X | None, NamedTuple, dataclass and msgspec.Struct classes, a DDL "
    "string, Spark and Arrow types; Types.PICKLED_BYTE_ARRAY() for any other object"
)
_CLASSES: dict[type, TypeInfo] = {
    str: Types.STRING(),
    int: Types.LONG(),
    float: Types.DOUBLE(),
    bool: Types.BOOLEAN(),
    bytes: Types.BYTES(),
    date: Types.SQL_DATE(),
    time: Types.SQL_TIME(),
    datetime: Types.INSTANT(),
    Decimal: Types.BIG_DEC(),
}


def as_type(spec: Any) -> TypeInfo:
    """Return the type that is meant.

    Args:
        spec: A `TypeInfo`; a Python class or annotation (``int``, ``list[str]``, ``X | None``); a
            NamedTuple, dataclass or `msgspec.Struct` class; a DDL string such as ``"post string,
            n bigint"``; a Spark type or schema; an Arrow type or schema.

    Raises:
        UnsupportedTypeError: It is none of these, or a part of it is not.
    """
    if isinstance(spec, TypeInfo):
        return spec
    if isinstance(spec, str):
        return parse_ddl(spec)
    if isinstance(spec, pa.Schema):
        return _from_arrow(pa.struct(list(spec)))
    if isinstance(spec, pa.DataType):
        return _from_arrow(spec)
    if callable(getattr(spec, "jsonValue", None)):
        return _from_spark(spec() if isinstance(spec, type) else spec)
    return _from_hint(spec, ())


def _unsupported(spec: Any, why: str = "") -> UnsupportedTypeError:
    shown = spec.__qualname__ if isinstance(spec, type) else repr(spec)
    return UnsupportedTypeError(f"{shown} is not a type that can be used{why}; {_ALLOWED}")


def _from_hint(hint: Any, inside: tuple[Any, ...]) -> TypeInfo:
    if isinstance(hint, TypeInfo):
        return hint
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        # A TypeInfo among the annotations is the exact type wanted: Annotated[int, Types.INT()].
        exact = [a for a in args[1:] if isinstance(a, TypeInfo)]
        return exact[0] if exact else _from_hint(args[0], inside)
    if origin is typing.Union or origin is UnionType:
        rest = [a for a in args if a is not NoneType]
        if len(rest) == 1:
            return _from_hint(rest[0], inside)
        raise _unsupported(hint, ": a union can only be X | None")
    if origin is not None:
        return _from_generic(hint, origin, args, inside)
    if isinstance(hint, typing.NewType):
        return _from_hint(hint.__supertype__, inside)
    if isinstance(hint, type):
        return _CLASSES.get(hint) or _from_class(hint, inside)
    raise _unsupported(hint)


def _from_generic(
    hint: Any, origin: Any, args: tuple[Any, ...], inside: tuple[Any, ...]
) -> TypeInfo:
    if origin in (list, Sequence):
        return ListTypeInfo(_from_hint(args[0], inside))
    if origin in (dict, Mapping):
        return MapTypeInfo(_from_hint(args[0], inside), _from_hint(args[1], inside))
    if origin is tuple:
        if Ellipsis in args or not args:
            raise _unsupported(hint, ": a tuple has a fixed number of values, use list[X]")
        return Types.TUPLE([_from_hint(a, inside) for a in args])
    raise _unsupported(hint)


def _from_class(cls: type, inside: tuple[Any, ...]) -> TypeInfo:
    if cls in inside:
        raise _unsupported(cls, ": it contains itself")
    names = _field_names(cls)
    if names is None:
        bare = ": say what is in it, for example list[int]" if cls in (list, dict, tuple) else ""
        raise _unsupported(cls, bare)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise _unsupported(cls, f": {error}") from None
    types = []
    for name in names:
        try:
            types.append(_from_hint(hints[name], (*inside, cls)))
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(f"field {name!r} of {cls.__qualname__}: {error}") from None
    return RowTypeInfo(names, tuple(types), cls)


def _field_names(cls: type) -> tuple[str, ...] | None:
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    if dataclasses.is_dataclass(cls):
        fields = dataclasses.fields(cls)
        for f in fields:
            if not f.init:
                raise _unsupported(cls, f": field {f.name!r} has init=False")
        return tuple(f.name for f in fields)
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "__annotations__"):
        names: tuple[str, ...] = cls._fields
        return names
    return None


def _from_spark(spec: Any) -> TypeInfo:
    try:
        return _from_spark_json(spec.jsonValue())
    except (KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UnsupportedTypeError):
            raise
        raise _unsupported(spec) from None


def _from_spark_json(json: Any) -> TypeInfo:
    if isinstance(json, str):
        return SIMPLE[json] if json in SIMPLE else parse_ddl(json)
    kind = json["type"]
    if kind == "array":
        return ListTypeInfo(_from_spark_json(json["elementType"]))
    if kind == "map":
        return MapTypeInfo(_from_spark_json(json["keyType"]), _from_spark_json(json["valueType"]))
    if kind == "struct":
        fields = json["fields"]
        return RowTypeInfo(
            tuple(f["name"] for f in fields), tuple(_from_spark_json(f["type"]) for f in fields)
        )
    raise KeyError(kind)


def _from_arrow(arrow: pa.DataType) -> TypeInfo:
    for is_kind, type_ in _ARROW:
        if is_kind(arrow):
            return type_
    if pa.types.is_timestamp(arrow):
        return Types.SQL_TIMESTAMP() if arrow.tz is None else Types.INSTANT()
    if pa.types.is_decimal(arrow):
        return DecimalTypeInfo(arrow.precision, arrow.scale)
    if pa.types.is_struct(arrow):
        fields = list(arrow)
        names = tuple(f.name for f in fields)
        return RowTypeInfo(names, tuple(_from_arrow(f.type) for f in fields))
    if pa.types.is_map(arrow):
        return MapTypeInfo(_from_arrow(arrow.key_type), _from_arrow(arrow.item_type))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return ListTypeInfo(_from_arrow(arrow.value_type))
    if pa.types.is_dictionary(arrow):
        return _from_arrow(arrow.value_type)
    raise _unsupported(arrow)


_ARROW: list[tuple[Callable[[pa.DataType], bool], TypeInfo]] = [
    (pa.types.is_string, Types.STRING()),
    (pa.types.is_large_string, Types.STRING()),
    (pa.types.is_binary, Types.BYTES()),
    (pa.types.is_large_binary, Types.BYTES()),
    (pa.types.is_boolean, Types.BOOLEAN()),
    (pa.types.is_int8, Types.BYTE()),
    (pa.types.is_int16, Types.SHORT()),
    (pa.types.is_int32, Types.INT()),
    (pa.types.is_int64, Types.LONG()),
    (pa.types.is_uint8, Types.SHORT()),
    (pa.types.is_uint16, Types.INT()),
    (pa.types.is_uint32, Types.LONG()),
    (pa.types.is_float32, Types.FLOAT()),
    (pa.types.is_float64, Types.DOUBLE()),
    (pa.types.is_date, Types.SQL_DATE()),
    (pa.types.is_time, Types.SQL_TIME()),
]
