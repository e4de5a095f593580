"""Keys as people write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

from turnback.core.errors import ConfigurationError
from turnback.core.types import BasicTypeInfo, RowTypeInfo, TypeInfo

_TRUE, _FALSE = ("true", "True"), ("false", "False")


def parse_key(text: str, types: Sequence[TypeInfo]) -> Any:
    """Read a key.

    Args:
        text: A string as it is or as JSON, in quotes; a number, ``true``, a date or time in ISO
            format, bytes as ``0x...``; several columns as a JSON array or separated by commas; a
            row as a JSON array or object.
        types: The types of the key's columns.

    Returns:
        The key as the engine knows it: a value, or a tuple of several.

    Raises:
        ConfigurationError: It is no key of these types.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"a key is searched for by its text, not by {text!r}")
    if len(types) == 1:
        return _parse(text, types[0])
    told = ", ".join(map(str, types))
    typed = text.lstrip().startswith("[")
    parts = _json(text) if typed else [part.strip() for part in text.split(",")]
    if not isinstance(parts, list) or len(parts) != len(types):
        raise ConfigurationError(
            f"{text!r} is no key of {len(types)} columns ({told}): write them as a JSON array, or "
            "separated by commas"
        )
    return tuple(_parse(part, type_, typed=typed) for part, type_ in zip(parts, types, strict=True))


def _parse(given: Any, type_: TypeInfo, *, typed: bool = False) -> Any:
    """Read a value; one that is typed comes out of JSON, and its quotes are its own."""
    if isinstance(type_, RowTypeInfo):
        return _row(given, type_)
    text = given
    if not typed and isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == '"':
        text = _json(text)
    if isinstance(text, _Literal):
        text = text.text
    if not isinstance(text, str):
        raise _misfit(given, type_)
    try:
        return _scalar(text, type_)
    except (ValueError, InvalidOperation) as error:
        raise _misfit(given, type_) from error


def _row(given: Any, type_: RowTypeInfo) -> tuple[Any, ...]:
    found = _json(given) if isinstance(given, str) else given
    if isinstance(found, Mapping) and set(found) == set(type_.names):
        found = [found[name] for name in type_.names]
    if not isinstance(found, list) or len(found) != len(type_.types):
        raise ConfigurationError(
            f"{given!r} is no row of {', '.join(type_.names)}: write it as a JSON object or array"
        )
    return tuple(_parse(one, t, typed=True) for one, t in zip(found, type_.types, strict=True))


class _Literal:
    """A number in JSON, with every digit that was written."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _json(text: str) -> Any:
    try:
        found = json.loads(text, parse_int=_Literal, parse_float=_Literal)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{text!r} is not valid JSON: {error}") from error
    return _words(found)


def _words(found: Any) -> Any:
    if isinstance(found, bool):
        return _Literal("true" if found else "false")
    if isinstance(found, list):
        return list(map(_words, found))
    if isinstance(found, dict):
        return {name: _words(value) for name, value in found.items()}
    return found


def _scalar(text: str, type_: TypeInfo) -> Any:
    if not isinstance(type_, BasicTypeInfo):
        return Decimal(text)
    return _PARSERS[type_.name](text)


def _boolean(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(text)


def _bytes(text: str) -> bytes:
    if not text.startswith("0x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def _zoned(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError("a zone is missing")
    return value


def _zoneless(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError("there is a zone")
    return value


_PARSERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "bytes": _bytes,
    "boolean": _boolean,
    "byte": int,
    "short": int,
    "int": int,
    "long": int,
    "big_int": int,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": _zoneless,
    "instant": _zoned,
}
_EXAMPLES = {
    "bytes": "0x00ff",
    "boolean": "true or false",
    "date": "2026-01-31",
    "time": "12:00:00",
    "timestamp": "2026-01-31T12:00:00, without a zone",
    "instant": "2026-01-31T12:00:00Z, with a zone",
}


def _misfit(given: Any, type_: TypeInfo) -> ConfigurationError:
    name = type_.name if isinstance(type_, BasicTypeInfo) else ""
    example = _EXAMPLES.get(name, "text" if name == "string" else "a number")
    shown = repr(given)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ConfigurationError(f"{shown} is no key of type {type_}: write {example}")
