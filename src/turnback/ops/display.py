"""Values of state in a form that JSON can hold and people can read."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from turnback.core.types import (
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

LONGEST = 2_000
"""Of longer values only the beginning is shown, unless all is asked for."""
_EXACT = 1 << 53  # beyond this JavaScript changes the last digits

Show = Callable[[Any], Any]


def shower(type_: TypeInfo, *, longest: int | None = LONGEST) -> Show:
    """Return the function that shows values of a type, as they stand in a typed column.

    Integers that JavaScript cannot hold, decimals, dates and times become text, bytes ``0x...``,
    rows objects. Maps become objects if their keys are plain, else lists of pairs. A pickle is
    never opened: only its size is shown.

    Args:
        type_: The type of the values.
        longest: Characters that are shown of a value, about; None for all of them.
    """
    show = _show(type_)

    def shown(value: Any) -> Any:
        return show(value, _Room(math.inf if longest is None else longest))

    return shown


class _Room:
    """How many characters may still be shown of a value."""

    __slots__ = ("left",)

    def __init__(self, left: float) -> None:
        self.left = left

    def text(self, text: str, unit: str = "characters", size: int | None = None) -> str:
        """Take room for a text, and cut off what there is no room for."""
        left = max(self.left, 0)
        self.left -= len(text) + 1
        if len(text) <= left:
            return text
        return f"{text[: int(left)]}… ({size or len(text):,} {unit})"


_Shown = Callable[[Any, _Room], Any]


def _show(type_: TypeInfo) -> _Shown:
    show = _of_type(type_)
    return lambda value, room: None if value is None else show(value, room)


def _of_type(type_: TypeInfo) -> _Shown:
    if isinstance(type_, RowTypeInfo):
        return _row(type_)
    if isinstance(type_, ListTypeInfo):
        return _list(type_)
    if isinstance(type_, MapTypeInfo):
        return _map(type_)
    if isinstance(type_, BasicTypeInfo):
        if type_.name == "pickled":
            return lambda value, room: f"<pickle, {len(value):,} bytes>"
        if type_.name == "float":
            return lambda value, room: _float(_short(value), room)
    return _scalar


def _scalar(value: Any, room: _Room) -> Any:
    if isinstance(value, str):
        return room.text(value)
    if isinstance(value, bytes):
        return _bytes(value, room)
    if isinstance(value, float):
        return _float(value, room)
    if isinstance(value, Decimal):
        return room.text(format(value, "f"))
    if isinstance(value, datetime):
        return room.text(value.isoformat().replace("+00:00", "Z"))
    if isinstance(value, date | time):
        return room.text(value.isoformat())
    room.left -= len(str(value)) + 1
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    return value


def _bytes(value: bytes, room: _Room) -> str:
    beginning = value if math.isinf(room.left) else value[: int(max(room.left, 0)) // 2 + 1]
    text = "0x" + beginning.hex()
    if len(beginning) == len(value):
        return room.text(text, "bytes", len(value))
    room.left -= len(text)
    return f"{text}… ({len(value):,} bytes)"


def _float(value: float, room: _Room) -> Any:
    room.left -= 8
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _short(value: float) -> float:
    """A number of 32 bits with the digits it was written with, not those of 64 bits."""
    import numpy as np

    return float(str(np.float32(value)))


def _row(type_: RowTypeInfo) -> _Shown:
    fields = [(name, _show(t)) for name, t in zip(type_.names, type_.types, strict=True)]

    def show(value: Any, room: _Room) -> Any:
        return {name: one(value[name], room) for name, one in fields}

    return show


def _list(type_: ListTypeInfo) -> _Shown:
    one = _show(type_.element)

    def show(value: Any, room: _Room) -> Any:
        shown: list[Any] = []
        for element in value:
            if room.left <= 0:
                shown.append(f"… ({len(value) - len(shown):,} more)")
                break
            shown.append(one(element, room))
        return shown

    return show


def _map(type_: MapTypeInfo) -> _Shown:
    key, item = _show(type_.key), _show(type_.value)
    plain = not isinstance(type_.key, RowTypeInfo) and type_.key != BasicTypeInfo("pickled")

    def show(value: Any, room: _Room) -> Any:
        pairs: list[Any] = []
        more = 0
        for k, v in value:
            if room.left <= 0:
                more = len(value) - len(pairs)
                break
            # Keys are shown in full, or two of them might look the same.
            pairs.append((key(k, _Room(math.inf)), item(v, room)))
            room.left -= len(str(pairs[-1][0]))
        if not plain:
            return [list(pair) for pair in pairs] + ([f"… ({more:,} more)"] if more else [])
        shown = {_name(k): v for k, v in pairs}
        return shown | ({"…": f"{more:,} more"} if more else {})

    return show


def _name(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
