"""Copies of values that later changes to the originals do not reach.

A function may go on changing a list after it has yielded it. Only values that can change are
copied; which ones those are follows from the declared type, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from turnback.errors import ElementTypeError
from turnback.values.coerce import NoneType, row_values
from turnback.values.row import row_class
from turnback.values.serializer import pickle_value
from turnback.values.typeinfo import BasicTypeInfo, ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInfo

Freeze = Callable[[Any], Any]

_IMMUTABLE = frozenset({NoneType, str, bytes, int, float, bool, complex})


class PickledBytes(bytes):
    """The pickle of an object that was pickled before its column was made."""

    __slots__ = ()


class Freezer:
    """How elements of one type are frozen.

    Attributes:
        freeze: Returns an element, or a copy of it, that cannot change before columns are made.
            An element that does not fit the type is returned as it is: making columns fails.
    """

    __slots__ = ("_immutable", "freeze")

    def __init__(self, type_: TypeInfo | None) -> None:
        freeze = None if type_ is None else _freeze(type_)
        self.freeze: Freeze = freeze or (lambda element: element)
        self._immutable: tuple[type, ...] = ()
        if freeze is None:
            self._immutable = (object,)
        elif type_ == BasicTypeInfo("bytes"):
            self._immutable = (bytes,)
        elif isinstance(type_, RowTypeInfo) and not any(map(_freeze, type_.types)):
            own = type_.python_class
            self._immutable = (tuple, own) if own and _is_frozen_class(own) else (tuple,)

    def admit(self, element: Any) -> tuple[Any, type | None]:
        """Freeze an element; with it goes its class, if none of that class needs to be frozen."""
        cls = type(element)
        if issubclass(cls, self._immutable):
            return element, cls
        return self.freeze(element), None


def is_mutable(type_: TypeInfo | None) -> bool:
    """Whether values of a type, as readers get them, can be changed in place."""
    if isinstance(type_, RowTypeInfo):
        return not _is_frozen_class(type_.python_class) or any(map(is_mutable, type_.types))
    if isinstance(type_, BasicTypeInfo):
        return type_.name == "pickled"
    return isinstance(type_, ListTypeInfo | MapTypeInfo)


def _is_frozen_class(cls: type | None) -> bool:
    if cls is None or issubclass(cls, tuple):
        return True
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_config__.frozen
    parameters = getattr(cls, "__dataclass_params__", None)
    return dataclasses.is_dataclass(cls) and bool(getattr(parameters, "frozen", False))


def _freeze(type_: TypeInfo) -> Freeze | None:
    """Return what freezes a value; None where no value that fits the type can change."""
    if isinstance(type_, RowTypeInfo):
        return _freeze_row(type_)
    if isinstance(type_, ListTypeInfo):
        return _freeze_list(_freeze(type_.element))
    if isinstance(type_, MapTypeInfo):
        return _freeze_map(_freeze(type_.value))
    if type_ == BasicTypeInfo("bytes"):
        return lambda value: bytes(value) if isinstance(value, bytearray | memoryview) else value
    if type_ == BasicTypeInfo("pickled"):
        return _freeze_object
    return None


def _freeze_object(value: Any) -> Any:
    if value.__class__ in _IMMUTABLE:
        return value
    return PickledBytes(pickle_value(value))


def _freeze_list(element: Freeze | None) -> Freeze:
    if element is None:
        return lambda value: list(value) if isinstance(value, list) else value
    each = element

    def freeze(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return [None if v is None else each(v) for v in value]

    return freeze


def _freeze_map(item: Freeze | None) -> Freeze:
    if item is None:
        return lambda value: dict(value) if isinstance(value, dict) else value
    each = item

    def freeze(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: None if v is None else each(v) for k, v in value.items()}

    return freeze


def _freeze_row(type_: RowTypeInfo) -> Freeze:
    width = len(type_.names)
    inner = [(i, f) for i, t in enumerate(type_.types) if (f := _freeze(t)) is not None]
    cls = type_.python_class or row_class(type_.names)
    immutable = _is_frozen_class(cls) and not inner
    in_order = (tuple, cls) if issubclass(cls, tuple) else (tuple,)
    fields = _fields_of(cls, type_)

    def freeze(row: Any) -> Any:
        if row.__class__ in in_order:
            values = row
        elif row.__class__ is cls:
            if immutable:
                return row
            values = fields(row)
        else:
            try:
                values = row_values(row, type_)
            except ElementTypeError:
                return row
        if not inner or len(values) != width:
            return values
        copy = list(values)
        for i, each in inner:
            if copy[i] is not None:
                copy[i] = each(copy[i])
        return tuple(copy)

    return freeze


def _fields_of(cls: type, type_: RowTypeInfo) -> Callable[[Any], tuple[Any, ...]]:
    if issubclass(cls, tuple) or len(type_.names) < 2:
        return lambda row: row_values(row, type_)
    return attrgetter(*type_.names)
