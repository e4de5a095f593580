"""Times, values and texts as people read them; sizes and durations are in `turnback.core.units`."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from turnback.core.units import format_age

NOTHING = "-"
"""Stands where there is no value, so that every line has the same number of columns."""


def printable(text: str) -> str:
    """Return text that cannot move the cursor: names and causes come from elsewhere."""
    if text.isprintable():
        return text
    return "".join(c if _is_harmless(c) else c.encode("unicode_escape").decode() for c in text)


def utc_time(ms: int) -> str:
    """Return a time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def local_time(ms: int, now_ms: int) -> str:
    """Return a time where the user is: to the second if it was today, else with its day."""
    try:
        then = datetime.fromtimestamp(ms / 1000).astimezone()
        today = datetime.fromtimestamp(now_ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    same_day = then.date() == today.date()
    return then.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def time_ago(ms: int, now_ms: int) -> str:
    """Return how long ago something was; clocks of machines differ, so it is never negative."""
    age = now_ms - ms
    return "now" if age < 1_000 else f"{format_age(age)} ago"


def value_text(value: Any) -> str | None:
    """Return a value as text: text as it is, everything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    import msgspec

    return msgspec.json.encode(value).decode()


def json_value(value: Any) -> Any:
    """Return a value of Spark's in a form that JSON can hold."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if hasattr(value, "asDict"):
        return {name: json_value(part) for name, part in value.asDict(recursive=False).items()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: json_value(part) for key, part in value.items()}
        return [[json_value(key), json_value(part)] for key, part in value.items()]
    if isinstance(value, Sequence):
        return [json_value(part) for part in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _is_harmless(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) in ("Zs", "Co", "Cn")
