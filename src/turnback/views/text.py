"""Values of state in a form that JSON can hold and people can read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from turnback.checkpoint.source_offsets import partition_positions
from turnback.errors import ConfigurationError
from turnback.values.typeinfo import BasicTypeInfo, ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInfo

LONGEST = 2_000
"""Of values with more characters only the beginning is returned, by default."""
_EXACT = 1 << 53  # beyond this JavaScript changes the last digits

Formatter = Callable[[Any], Any]


def formatter(type_: TypeInfo, *, longest: int | None = LONGEST) -> Formatter:
    """Return the function that formats values of a type, as they stand in a typed column.

    Integers that JavaScript cannot hold, decimals, dates and times become text, bytes ``0x...``,
    rows objects. Maps become objects if their keys are plain, else lists of pairs. A pickle is
    never opened: only its size is given. Values longer than about `longest` characters are cut.
    """
    format = _nullable(type_)
    return lambda value: format(value, _Budget(math.inf if longest is None else longest))


def position_lines(offset: str | None) -> list[str | None]:
    """Where a source resumes, by partition if it has any; else Spark's own JSON."""
    lines = [position.text for position in partition_positions(offset)]
    return [*lines] or [offset]


class _Budget:
    """How many more characters of a value may be returned."""

    __slots__ = ("left",)

    def __init__(self, left: float) -> None:
        self.left = left

    def text(self, text: str, unit: str = "characters", size: int | None = None) -> str:
        """Spend the budget on a text, and cut off what is beyond it."""
        left = max(self.left, 0)
        self.left -= len(text) + 1
        if len(text) <= left:
            return text
        return f"{text[: int(left)]}… ({size or len(text):,} {unit})"


_Format = Callable[[Any, _Budget], Any]


def _nullable(type_: TypeInfo) -> _Format:
    format = _of_type(type_)
    return lambda value, budget: None if value is None else format(value, budget)


def _of_type(type_: TypeInfo) -> _Format:
    if isinstance(type_, RowTypeInfo):
        fields = [(name, _nullable(t)) for name, t in zip(type_.names, type_.types, strict=True)]
        return lambda value, budget: {name: format(value[name], budget) for name, format in fields}
    if isinstance(type_, ListTypeInfo):
        return _list(type_)
    if isinstance(type_, MapTypeInfo):
        return _map(type_)
    if isinstance(type_, BasicTypeInfo):
        if type_.name == "pickled":
            return lambda value, budget: f"<pickle, {len(value):,} bytes>"
        if type_.name == "float":
            return lambda value, budget: _float(_shortest_digits(value), budget)
    return _scalar


def _scalar(value: Any, budget: _Budget) -> Any:
    if isinstance(value, str):
        return budget.text(value)
    if isinstance(value, bytes):
        return _bytes(value, budget)
    if isinstance(value, float):
        return _float(value, budget)
    if isinstance(value, Decimal):
        return budget.text(format(value, "f"))
    if isinstance(value, datetime):
        return budget.text(value.isoformat().replace("+00:00", "Z"))
    if isinstance(value, date | time):
        return budget.text(value.isoformat())
    budget.left -= len(str(value)) + 1
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    return value


def _bytes(value: bytes, budget: _Budget) -> str:
    beginning = value if math.isinf(budget.left) else value[: int(max(budget.left, 0)) // 2 + 1]
    text = "0x" + beginning.hex()
    if len(beginning) == len(value):
        return budget.text(text, "bytes", len(value))
    budget.left -= len(text)
    return f"{text}… ({len(value):,} bytes)"


def _float(value: float, budget: _Budget) -> Any:
    budget.left -= 8
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _shortest_digits(value: float) -> float:
    """A number of 32 bits with the digits it was written with, not those of 64 bits."""
    import numpy as np

    return float(str(np.float32(value)))


def _list(type_: ListTypeInfo) -> _Format:
    format_element = _nullable(type_.element)

    def format(value: Any, budget: _Budget) -> Any:
        elements: list[Any] = []
        for element in value:
            if budget.left <= 0:
                elements.append(f"… ({len(value) - len(elements):,} more)")
                break
            elements.append(format_element(element, budget))
        return elements

    return format


def _map(type_: MapTypeInfo) -> _Format:
    key = _nullable(type_.key)
    item = _nullable(type_.value)
    plain = not isinstance(type_.key, RowTypeInfo) and type_.key != BasicTypeInfo("pickled")

    def format(value: Any, budget: _Budget) -> Any:
        pairs: list[Any] = []
        more = 0
        for k, v in value:
            if budget.left <= 0:
                more = len(value) - len(pairs)
                break
            # Keys are not cut, or two of them might become the same.
            pairs.append((key(k, _Budget(math.inf)), item(v, budget)))
            budget.left -= len(str(pairs[-1][0]))
        if not plain:
            return [list(pair) for pair in pairs] + ([f"… ({more:,} more)"] if more else [])
        named = {_name(k): v for k, v in pairs}
        return named | ({"…": f"{more:,} more"} if more else {})

    return format


def _name(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}


def parse_key(text: str, types: Sequence[TypeInfo]) -> Any:
    """Return a key as the engine knows it: a value, or a tuple of several columns.

    The text is a string as it is or as JSON, in quotes; a number, ``true``, a date or time in ISO
    format, bytes as ``0x...``; several columns as a JSON array or separated by commas; a row as a
    JSON array or object.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"search for a key by its text, not by {text!r}")
    if len(types) == 1:
        return _parse(text, types[0])
    type_names = ", ".join(map(str, types))
    typed = text.lstrip().startswith("[")
    parts = _json(text) if typed else [part.strip() for part in text.split(",")]
    if not isinstance(parts, list) or len(parts) != len(types):
        raise ConfigurationError(
            f"{text!r} is not a key of {len(types)} columns ({type_names}): write them as a JSON "
            "array, or separated by commas"
        )
    return tuple(_parse(part, type_, typed=typed) for part, type_ in zip(parts, types, strict=True))


def _parse(given: Any, type_: TypeInfo, *, typed: bool = False) -> Any:
    """Read a value; one that is typed comes out of JSON, and its quotes are its own."""
    if isinstance(type_, RowTypeInfo):
        return _parse_row(given, type_)
    text = given
    if not typed and isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == '"':
        text = _json(text)
    if not isinstance(text, str):
        raise _invalid_key(given, type_)
    try:
        return _PARSERS[type_.name](text) if isinstance(type_, BasicTypeInfo) else Decimal(text)
    except (KeyError, ValueError, InvalidOperation) as error:
        raise _invalid_key(given, type_) from error


def _parse_row(given: Any, type_: RowTypeInfo) -> tuple[Any, ...]:
    fields = _json(given) if isinstance(given, str) else given
    if isinstance(fields, Mapping) and set(fields) == set(type_.names):
        fields = [fields[name] for name in type_.names]
    if not isinstance(fields, list) or len(fields) != len(type_.types):
        raise ConfigurationError(
            f"{given!r} is not a row of {', '.join(type_.names)}: write it as a JSON object "
            "or array"
        )
    return tuple(_parse(one, t, typed=True) for one, t in zip(fields, type_.types, strict=True))


class _Literal(str):
    """A number in JSON, with every digit that was written."""

    __slots__ = ()
    __repr__ = str.__str__


def _json(text: str) -> Any:
    try:
        value = json.loads(text, parse_int=_Literal, parse_float=_Literal)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{text!r} is not valid JSON: {error}") from error
    return _with_literals(value)


def _with_literals(value: Any) -> Any:
    if isinstance(value, bool):
        return _Literal("true" if value else "false")
    if isinstance(value, list):
        return list(map(_with_literals, value))
    if isinstance(value, dict):
        return {name: _with_literals(item) for name, item in value.items()}
    return value


def _parse_bytes(text: str) -> bytes:
    if not text.startswith("0x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def _parse_time(text: str, zoned: bool) -> datetime:
    value = datetime.fromisoformat(text)
    if (value.tzinfo is not None) != zoned:
        raise ValueError(text)
    return value


_PARSERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "bytes": _parse_bytes,
    "boolean": _BOOLEANS.__getitem__,
    **dict.fromkeys(("byte", "short", "int", "long", "big_int"), int),
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": partial(_parse_time, zoned=False),
    "instant": partial(_parse_time, zoned=True),
}
_EXAMPLES = {
    "bytes": "0x00ff",
    "boolean": "true or false",
    "date": "2026-01-31",
    "time": "12:00:00",
    "timestamp": "2026-01-31T12:00:00, without a zone",
    "instant": "2026-01-31T12:00:00Z, with a zone",
}


def _invalid_key(given: Any, type_: TypeInfo) -> ConfigurationError:
    name = type_.name if isinstance(type_, BasicTypeInfo) else ""
    example = _EXAMPLES.get(name, "text" if name == "string" else "a number")
    text = repr(given)
    text = text if len(text) <= 80 else text[:77] + "..."
    return ConfigurationError(f"{text} is not a key of type {type_}: write {example}")
