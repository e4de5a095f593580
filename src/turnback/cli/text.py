"""Numbers, times and texts as people read them."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Any

from turnback.core.duration import format_duration

NOTHING = "-"
"""Stands where there is no value, so that every line has the same number of columns."""

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGES = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def printable(text: str) -> str:
    """Text without anything that moves the cursor: names and causes come from elsewhere."""
    if text.isprintable():
        return text
    return "".join(c if _is_harmless(c) else c.encode("unicode_escape").decode() for c in text)


def size(bytes_: int) -> str:
    """A size with a unit: ``"1.5 MiB"``."""
    if abs(bytes_) < 1024:
        return f"{bytes_} B"
    amount = float(bytes_)
    for unit in _SIZES:
        if abs(amount) < 1023.95 or unit == _SIZES[-1]:
            break
        amount /= 1024
    return f"{amount:.1f} {unit}"


def iso(ms: int) -> str:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def local(ms: int, now_ms: int) -> str:
    """A time where the user is: to the second if it was today, else with its day."""
    try:
        then = datetime.fromtimestamp(ms / 1000).astimezone()
        today = datetime.fromtimestamp(now_ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    same_day = then.date() == today.date()
    return then.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def ago(ms: int, now_ms: int) -> str:
    """How long ago, in the largest unit that fits; clocks of machines differ, so never negative."""
    seconds = max(now_ms - ms, 0) // 1000
    for unit, step in _AGES:
        if seconds >= step:
            return f"{seconds // step} {unit} ago"
    return "now"


def duration(ms: int) -> str:
    """A duration, without digits nobody reads."""
    if ms >= 60_000:
        ms -= ms % 1_000
    elif ms >= 10_000:
        ms -= ms % 100
    return format_duration(ms)


def told(value: Any) -> str | None:
    """A value as text: text as it is, everything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    import msgspec

    return msgspec.json.encode(value).decode()


def _is_harmless(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) in ("Zs", "Co", "Cn")
