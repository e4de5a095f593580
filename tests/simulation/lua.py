"""The part of Lua that scripts of Turnback use in Redis, translated into Python.

Strings are bytes, tables are lists, and a number is an int. What is not in it is a `SyntaxError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

_TOKEN = re.compile(
    r"(?P<skip>\s+|--[^\n]*)"
    r"|(?P<number>[0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<text>'[^'\\\n]*'|\"[^\"\\\n]*\")"
    r"|(?P<sign>==|~=|<=|>=|\.\.|[-+*<>=()\[\]#,.])"
)
_WORDS = {"and", "do", "else", "end", "false", "for", "function", "if", "local"} | {
    *("nil", "not", "or", "return", "then", "true")
}
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("or",),
    ("and",),
    ("==", "~=", "<", ">", "<=", ">="),
    ("..",),
    ("+", "-"),
    ("*",),
)
"""Operators, from those that bind least."""
_NAMES = {
    "or": "or_",
    "and": "and_",
    "==": "eq",
    "~=": "ne",
    "<": "lt",
    ">": "gt",
    "<=": "le",
    ">=": "ge",
    "..": "join",
    "+": "add",
    "-": "sub",
    "*": "mul",
}


class LuaError(Exception):
    """What a script does not survive."""


Call = Callable[..., Any]
Script = Callable[[Sequence[bytes], Sequence[bytes], Call], Any]


@lru_cache(maxsize=64)
def compiled(script: str) -> Script:
    """A function of KEYS, ARGV and what `redis.call` does."""
    source = _Translator(script).translate()
    names = {"lua": _LUA, "string": _STRING, "tonumber": _number, "unpack": _unpack}
    names["cjson"] = SimpleNamespace(decode=_decode)
    exec(compile(source, "<lua>", "exec"), names)
    run = names["script"]

    def call(keys: Sequence[bytes], arguments: Sequence[bytes], redis_call: Call) -> Any:
        return run(list(keys), list(arguments), SimpleNamespace(call=redis_call))  # type: ignore[operator]

    return call


class _Translator:
    """Reads a script once, from its beginning to its end."""

    def __init__(self, script: str) -> None:
        self._tokens = [*_tokens(script), ("end of script", "")]
        self._at = 0
        self._lines: list[str] = []

    def translate(self) -> str:
        self._lines = ["def script(KEYS, ARGV, redis):"]
        self._block(1)
        self._expect("", "end of script")
        return "\n".join(self._lines)

    # -- statements

    def _block(self, depth: int) -> None:
        before = len(self._lines)
        while self._next not in ("end", "else", ""):
            self._statement(depth)
        if len(self._lines) == before:
            self._write(depth, "pass")

    def _statement(self, depth: int) -> None:
        if self._take("if"):
            self._if(depth)
        elif self._take("for"):
            self._for(depth)
        elif self._take("return"):
            is_empty = self._next in ("end", "else", "")
            self._write(depth, "return" if is_empty else f"return {self._expression()}")
        elif self._take("local"):
            if self._take("function"):
                self._function(depth)
            else:
                self._assign(depth)
        elif self._tokens[self._at + 1][1] in ("=", ","):
            self._assign(depth)
        else:
            self._write(depth, self._expression())

    def _if(self, depth: int) -> None:
        condition = self._expression()
        self._expect("then")
        self._write(depth, f"if lua.true({condition}):")
        self._block(depth + 1)
        if self._take("else"):
            self._write(depth, "else:")
            self._block(depth + 1)
        self._expect("end")

    def _for(self, depth: int) -> None:
        name = self._name()
        self._expect("=")
        bounds = self._list()
        self._expect("do")
        self._write(depth, f"for {name} in lua.count({bounds}):")
        self._block(depth + 1)
        self._expect("end")

    def _function(self, depth: int) -> None:
        name = self._name()
        self._expect("(")
        parameters = [] if self._next == ")" else [self._name()]
        while self._take(","):
            parameters.append(self._name())
        self._expect(")")
        self._write(depth, f"def {name}({', '.join(parameters)}):")
        self._block(depth + 1)
        self._expect("end")

    def _assign(self, depth: int) -> None:
        names = [self._name()]
        while self._take(","):
            names.append(self._name())
        self._expect("=")
        self._write(depth, f"{', '.join(names)}, = ({self._list()},)")

    # -- expressions

    def _list(self) -> str:
        found = [self._expression()]
        while self._take(","):
            found.append(self._expression())
        return ", ".join(found)

    def _expression(self, level: int = 0) -> str:
        if level == len(_LEVELS):
            return self._unary()
        left = self._expression(level + 1)
        while (sign := self._next) in _LEVELS[level]:
            self._at += 1
            right = self._expression(level + 1)
            if sign in ("and", "or"):  # the right side is only looked at if the left does not tell
                right = f"lambda: {right}"
            left = f"lua.{_NAMES[sign]}({left}, {right})"
        return left

    def _unary(self) -> str:
        for sign, name in (("not", "not_"), ("#", "length"), ("-", "minus")):
            if self._take(sign):
                return f"lua.{name}({self._unary()})"
        return self._primary()

    def _primary(self) -> str:
        kind, text = self._tokens[self._at]
        if kind == "text":
            self._at += 1
            return repr(text[1:-1].encode())
        if kind == "number":
            self._at += 1
            return text
        for word, value in (("true", "True"), ("false", "False"), ("nil", "None")):
            if self._take(word):
                return value
        if self._take("("):
            found = f"({self._expression()})"
            self._expect(")")
        else:
            found = self._name()
        return self._suffixes(found)

    def _suffixes(self, found: str) -> str:
        while True:
            if self._take("."):
                found = f"{found}.{self._name()}"
            elif self._take("["):
                found = f"lua.item({found}, {self._expression()})"
                self._expect("]")
            elif self._take("("):
                arguments = "" if self._next == ")" else self._list()
                self._expect(")")
                star = "*" if found == "unpack" else ""
                found = f"{star}{found}({arguments})"
            else:
                return found

    # -- tokens

    @property
    def _next(self) -> str:
        kind, text = self._tokens[self._at]
        return f"'{text}" if kind == "text" else text

    def _take(self, text: str) -> bool:
        if self._next != text:
            return False
        self._at += 1
        return True

    def _name(self) -> str:
        text = self._next
        self._expect(text, "name")
        return text

    def _expect(self, text: str, kind: str | None = None) -> None:
        found = self._tokens[self._at]
        if found[1] != text or kind not in (None, found[0]):
            raise SyntaxError(f"{kind or text!r} is wanted where a script has {found[1]!r}")
        self._at += 1

    def _write(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)


def _tokens(script: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(script):
        match = _TOKEN.match(script, at)
        if match is None:
            raise SyntaxError(f"a script has {script[at : at + 20]!r}")
        at = match.end()
        kind = str(match.lastgroup)
        if kind != "skip":
            text = match.group()
            yield ("word" if text in _WORDS else kind), text


# -- what operators and functions of Lua do


def _is_true(value: Any) -> bool:
    return value is not None and value is not False


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise LuaError(f"attempt to use {value!r} as text")
    return b"%d" % value


def _item(table: list[bytes], place: int) -> bytes | None:
    return table[place - 1] if 1 <= place <= len(table) else None


def _count(first: int, last: int, step: int = 1) -> range:
    return range(first, last + (1 if step > 0 else -1), step)


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _unpack(table: list[bytes], first: int, last: int) -> list[bytes | None]:
    return [_item(table, place) for place in range(first, last + 1)]


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        if type(left) is not type(right) or not isinstance(left, bytes | int):
            raise LuaError(f"attempt to compare {left!r} with {right!r}")
        return compare(left, right)

    return ordered


def _sub(text: Any, first: int, last: int = -1) -> bytes:
    text = _text(text)
    begin = first if first >= 0 else max(len(text) + first + 1, 1)
    end = last if last >= 0 else len(text) + last + 1
    return text[max(begin, 1) - 1 : end]


def _find(text: Any, wanted: Any, first: int = 1, plain: Any = None) -> int | None:
    """Where a text begins in another; what else `string.find` returns is wanted by nobody."""
    if not _is_true(plain):
        raise LuaError("patterns of Lua are not simulated")
    found = _text(text).find(_text(wanted), first - 1)
    return None if found < 0 else found + 1


class _Table(dict[str, Any]):
    """What JSON holds by name; nil where it has nothing."""

    __getattr__ = dict.get


def _decode(text: Any) -> Any:
    def lua(value: Any) -> Any:
        if isinstance(value, dict):
            return _Table({name: lua(each) for name, each in value.items()})
        return value.encode() if isinstance(value, str) else value

    return lua(json.loads(text))


_STRING = SimpleNamespace(sub=_sub, find=_find)
_LUA = SimpleNamespace(
    true=_is_true,
    item=_item,
    count=_count,
    or_=lambda left, right: left if _is_true(left) else right(),
    and_=lambda left, right: right() if _is_true(left) else left,
    not_=lambda value: not _is_true(value),
    length=len,
    minus=lambda value: -value,
    eq=lambda left, right: type(left) is type(right) and left == right,
    ne=lambda left, right: type(left) is not type(right) or left != right,
    lt=_ordered(lambda left, right: left < right),
    gt=_ordered(lambda left, right: left > right),
    le=_ordered(lambda left, right: left <= right),
    ge=_ordered(lambda left, right: left >= right),
    join=lambda left, right: _text(left) + _text(right),
    add=lambda left, right: left + right,
    sub=lambda left, right: left - right,
    mul=lambda left, right: left * right,
)
