from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from turnback.core import RowTypeInfo, Serializer, TypeInfo
from turnback.core.build import former
from turnback.core.coerce import NoneType, exact_classes
from turnback.core.frozen import can_change
from turnback.core.row import row_class
from turnback.core.types import BasicTypeInfo

_ALTERED = ("float", "instant")
"""Of these, a value of the right class may still come back as another one."""


class _NoValue:
    """The class of no value at all."""


class CachedForm:
    """How the values of a state are kept in memory until the epoch ends.

    What counts is the value at the moment it was given to the state, and what is read is the same
    in this epoch and in the next: a result must not depend on where an epoch ends. Values that can
    be changed in place are therefore kept encoded, and every read gives a new one. All others are
    kept as they are.

    Attributes:
        plain: Values of this very class are kept as they are; it is not worth a call of `keep`.
        keep: Turns a value other than None into what is kept. Raises an error if it does not fit.
        show: Turns what is kept into a value of the reader's own; None where it is that already.
        load: Turns stored bytes into what is kept.
        encode: Turns what is kept into the bytes to be stored.
        encode_all: The same for many.
    """

    __slots__ = ("encode", "encode_all", "keep", "load", "plain", "show")

    def __init__(self, serializer: Serializer) -> None:
        kind = serializer.type
        encode, decode = serializer.encode, serializer.decode
        self.plain: type = _NoValue
        self.keep: Callable[[Any], Any] = encode
        self.show: Callable[[bytes], Any] | None = decode
        self.load: Callable[[bytes], Any] = _same
        self.encode: Callable[[Any], bytes] = _same
        self.encode_all: Callable[[Sequence[Any]], list[bytes]] = list
        plain = _plain(kind)
        if plain is None:
            return
        self.load, self.show = decode, None
        self.encode, self.encode_all = encode, serializer.encode_all
        if isinstance(kind, RowTypeInfo):
            self.plain, self.keep = plain, former(kind)
        elif kind == BasicTypeInfo("instant"):
            self.keep = lambda value: value if _is_utc(value) else decode(encode(value))
        else:
            self.plain = plain if kind != BasicTypeInfo("float") else _NoValue
            self.keep = lambda value: decode(encode(value))


def _plain(kind: TypeInfo) -> type | None:
    """Return the class values come back as; None where values are better kept encoded."""
    if not isinstance(kind, RowTypeInfo):
        return next(iter(exact_classes(kind) - {NoneType}), None)
    if can_change(kind) or not all(map(_comes_back_the_same, kind.types)):
        return None
    return kind.python_class or row_class(kind.names)


def _comes_back_the_same(kind: TypeInfo) -> bool:
    if isinstance(kind, BasicTypeInfo):
        return kind.name not in (*_ALTERED, "bytes")
    return bool(exact_classes(kind))


def _is_utc(value: Any) -> bool:
    return value.__class__ is datetime and value.tzinfo is UTC


def _same(value: Any) -> Any:
    return value
