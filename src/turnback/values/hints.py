"""From whatever a user declares a type with to a `TypeInfo`.

Python annotations and classes, types of Spark and of Arrow, and DDL as Spark writes it, which is
parsed here because no JVM may be at hand.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any

import msgspec
import pyarrow as pa

from turnback.errors import UnsupportedTypeError
from turnback.values.typeinfo import (
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
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
    name = spec.__qualname__ if isinstance(spec, type) else repr(spec)
    return UnsupportedTypeError(f"{name} is not a type that can be used{why}; {_ALLOWED}")


def _from_hint(hint: Any, inside: tuple[Any, ...]) -> TypeInfo:
    if isinstance(hint, TypeInfo):
        return hint
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
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
            raise _unsupported(hint, ": a tuple has a fixed number of values; use list[X]")
        return Types.TUPLE([_from_hint(a, inside) for a in args])
    raise _unsupported(hint)


def _from_class(cls: type, inside: tuple[Any, ...]) -> TypeInfo:
    if cls in inside:
        raise _unsupported(cls, ": it contains itself")
    names = _field_names(cls)
    if names is None:
        bare = (
            ": specify the type of its elements, for example list[int]"
            if cls in (list, dict, tuple)
            else ""
        )
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
        return _SPARK_WORDS[json] if json in _SPARK_WORDS else parse_ddl(json)
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
        return RowTypeInfo(tuple(f.name for f in arrow), tuple(_from_arrow(f.type) for f in arrow))
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


_SPARK_WORDS = {
    word: type_
    for words, type_ in (
        ("string varchar char character", Types.STRING()),
        ("binary", Types.BYTES()),
        ("boolean", Types.BOOLEAN()),
        ("tinyint byte", Types.BYTE()),
        ("smallint short", Types.SHORT()),
        ("int integer", Types.INT()),
        ("bigint long", Types.LONG()),
        ("float real", Types.FLOAT()),
        ("double", Types.DOUBLE()),
        ("date", Types.SQL_DATE()),
        ("time", Types.SQL_TIME()),
        ("timestamp timestamp_ltz", Types.INSTANT()),
        ("timestamp_ntz", Types.SQL_TIMESTAMP()),
    )
    for word in words.split()
}
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>[^\W]+)|(?P<mark>[<>(),:])|(?P<other>\S))"
)
_LENGTH_ALLOWED = ("varchar", "char", "character", "time")


def parse_ddl(text: str) -> TypeInfo:
    """Return the type a DDL string stands for.

    ``post string, n bigint`` is a row with these fields, ``bigint`` a number, and
    ``struct<post:string,n:bigint>`` the same row as the first.
    """
    try:
        return _Parser(text).parse()
    except RecursionError:
        raise UnsupportedTypeError(f"the type {text[:40]!r}... is nested too deeply") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._tokens: list[tuple[str, str, int]] = []
        self._scan()

    def parse(self) -> TypeInfo:
        if self._kind() == "end":
            raise self._error("it is empty")
        result = self._type() if self._is_type() else self._fields()
        if self._kind() != "end":
            raise self._error("expected the end")
        return result

    def _scan(self) -> None:
        for match in _TOKEN.finditer(self._text):
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind)))
            if kind == "other":
                self._at = len(self._tokens) - 1
                raise self._error("unexpected character")
        self._tokens.append(("end", "", len(self._text)))

    def _is_type(self) -> bool:
        # "bigint" is a type, "n bigint" and "n: bigint" are a field. A type may be followed by
        # its parameters; a field name by a type.
        return self._kind() == "word" and self._tokens[1][1] in ("", "<", "(")

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _value(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> str:
        value = self._value()
        self._at += 1
        return value

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise self._error(f"expected {mark!r}")

    def _accept(self, mark: str) -> bool:
        if self._kind() == "mark" and self._value() == mark:
            self._at += 1
            return True
        return False

    def _fields(self) -> RowTypeInfo:
        names: list[str] = []
        types: list[TypeInfo] = []
        while not names or self._accept(","):
            names.append(self._name())
            self._accept(":")
            types.append(self._type())
            self._options()
        return RowTypeInfo(tuple(names), tuple(types))

    def _name(self) -> str:
        if self._kind() == "word":
            return self._next()
        if self._kind() == "quoted":
            return self._next()[1:-1].replace("``", "`")
        raise self._error("expected a field name")

    def _options(self) -> None:
        while self._kind() == "word" and self._value().lower() in ("not", "comment"):
            if self._next().lower() == "not":
                if self._value().lower() != "null":
                    raise self._error("expected NULL")
            elif self._kind() != "text":
                raise self._error("expected the comment in quotes")
            self._at += 1

    def _type(self) -> TypeInfo:
        if self._kind() != "word":
            raise self._error("expected a type")
        word = self._next().lower()
        if word == "array":
            return ListTypeInfo(*self._parameters(1))
        if word == "map":
            return MapTypeInfo(*self._parameters(2))
        if word == "struct":
            self._expect("<")
            fields = self._fields()
            self._expect(">")
            return fields
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        return self._simple(word)

    def _parameters(self, count: int) -> list[TypeInfo]:
        types = []
        for mark in ("<", ",")[:count]:
            self._expect(mark)
            types.append(self._type())
        self._expect(">")
        return types

    def _simple(self, word: str) -> TypeInfo:
        result = _SPARK_WORDS.get(word)
        if result is None:
            self._at -= 1
            known = ", ".join(sorted(_SPARK_WORDS))
            raise self._error(
                f"unknown type {word!r}; known types are {known}, decimal(p,s), array<>, map<,> "
                "and struct<>"
            )
        if word in _LENGTH_ALLOWED and self._accept("("):
            self._number()
            self._expect(")")
        return result

    def _decimal(self) -> TypeInfo:
        precision = 10
        scale = 0
        if self._accept("("):
            precision = self._number()
            if self._accept(","):
                scale = self._number()
            self._expect(")")
        return DecimalTypeInfo(precision, scale)

    def _number(self) -> int:
        if self._kind() != "word" or not self._value().isdecimal():
            raise self._error("expected a number")
        return int(self._next())

    def _error(self, reason: str) -> UnsupportedTypeError:
        position = self._tokens[self._at][2]
        return UnsupportedTypeError(
            f"cannot read the type {self._text!r} at position {position}: {reason}"
        )
