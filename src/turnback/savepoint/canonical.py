"""One form for values that are equal, so that bytes can be compared instead."""

from collections.abc import Callable
from typing import Any

import msgspec

from turnback.core.types import ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInfo

Reorder = Callable[[bytes], bytes]

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


def reorder(type_: TypeInfo) -> Reorder | None:
    """Return what puts the maps inside a stored value in one order; None if it can have none.

    Equal maps may be stored in different orders, and nothing else that is equal differs in its
    bytes, once decimals have all their places (see `StateTable`). Pickles are not opened: they
    are bytes here.
    """
    return _reordered if _has_map(type_) else None


def _has_map(type_: TypeInfo) -> bool:
    if isinstance(type_, RowTypeInfo):
        return any(map(_has_map, type_.types))
    if isinstance(type_, ListTypeInfo):
        return _has_map(type_.element)
    return isinstance(type_, MapTypeInfo)


def _reordered(data: bytes) -> bytes:
    return _encode(_sorted(_decode(data)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        entries = sorted((_encode(key), key, item) for key, item in value.items())
        return {key: _sorted(item) for _, key, item in entries}
    if isinstance(value, list):
        return list(map(_sorted, value))
    return value
