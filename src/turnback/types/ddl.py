"""Reads types as Spark writes them."""

from __future__ import annotations

import re

from turnback.core.errors import UnsupportedTypeError
from turnback.types.factory import Types
from turnback.types.typeinfo import (
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

SIMPLE: dict[str, TypeInfo] = {
    "string": Types.STRING(),
    "varchar": Types.STRING(),
    "char": Types.STRING(),
    "character": Types.STRING(),
    "binary": Types.BYTES(),
    "boolean": Types.BOOLEAN(),
    "tinyint": Types.BYTE(),
    "byte": Types.BYTE(),
    "smallint": Types.SHORT(),
    "short": Types.SHORT(),
    "int": Types.INT(),
    "integer": Types.INT(),
    "bigint": Types.LONG(),
    "long": Types.LONG(),
    "float": Types.FLOAT(),
    "real": Types.FLOAT(),
    "double": Types.DOUBLE(),
    "date": Types.SQL_DATE(),
    "time": Types.SQL_TIME(),
    "timestamp": Types.INSTANT(),
    "timestamp_ltz": Types.INSTANT(),
    "timestamp_ntz": Types.SQL_TIMESTAMP(),
}
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>[^\W]+)|(?P<mark>[<>(),:]))"
)
_LENGTH_ALLOWED = ("varchar", "char", "character", "time")


def parse_ddl(text: str) -> TypeInfo:
    """Return the type a DDL string stands for.

    ``post string, n bigint`` is a row with these fields, ``bigint`` a number, and
    ``struct<post:string,n:bigint>`` the same row as the first.

    Raises:
        UnsupportedTypeError: It cannot be read; the message says where.
    """
    try:
        return _Parser(text).parse()
    except RecursionError:
        raise UnsupportedTypeError(f"the type {text[:40]!r}... is nested too deep") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._tokens: list[tuple[str, str, int]] = []
        self._scan()

    def parse(self) -> TypeInfo:
        """Return the type of the whole text."""
        if not self._tokens[:-1]:
            raise self._error("it is empty")
        result = self._type() if self._is_type() else self._fields("")
        if self._kind() != "end":
            raise self._error("expected the end")
        return result

    def _scan(self) -> None:
        text, position = self._text, 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                position += len(text[position:]) - len(text[position:].lstrip())
                self._tokens.append(("end", "", position))
                self._at = len(self._tokens) - 1
                raise self._error("unexpected character")
            kind = match.lastgroup
            self._tokens.append((kind, match[kind], match.start(kind)))
            position = match.end()
        self._tokens.append(("end", "", len(text)))

    def _is_type(self) -> bool:
        # "bigint" is a type, "n bigint" and "n: bigint" are a field. A type may be followed by
        # its parameters; a field name by a type.
        kind = self._tokens[0][0]
        return kind == "word" and self._tokens[1][1] in ("", "<", "(")

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _value(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> str:
        value = self._value()
        self._at += 1
        return value

    def _expect(self, mark: str) -> None:
        if self._kind() != "mark" or self._value() != mark:
            raise self._error(f"expected {mark!r}")
        self._at += 1

    def _accept(self, mark: str) -> bool:
        if self._kind() == "mark" and self._value() == mark:
            self._at += 1
            return True
        return False

    def _fields(self, end: str) -> RowTypeInfo:
        names, types = [], []
        while True:
            names.append(self._name())
            self._accept(":")
            types.append(self._type())
            self._options()
            if not self._accept(","):
                break
        if end:
            self._expect(end)
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
            self._expect("<")
            element = self._type()
            self._expect(">")
            return ListTypeInfo(element)
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return MapTypeInfo(key, value)
        if word == "struct":
            self._expect("<")
            return self._fields(">")
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        return self._simple(word)

    def _simple(self, word: str) -> TypeInfo:
        result = SIMPLE.get(word)
        if result is None:
            self._at -= 1
            raise self._error(f"unknown type {word!r}; known are {', '.join(sorted(SIMPLE))}, "
                              "decimal(p,s), array<>, map<,> and struct<>")  # fmt: skip
        if word in _LENGTH_ALLOWED and self._accept("("):
            self._number()
            self._expect(")")
        return result

    def _decimal(self) -> TypeInfo:
        precision, scale = 10, 0
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
        position = self._tokens[self._at][2] if self._tokens else 0
        return UnsupportedTypeError(
            f"cannot read the type {self._text!r} at position {position}: {reason}"
        )
