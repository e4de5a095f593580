"""Make row objects from columns of values, or from one tuple of values."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from turnback.core.coerce import spread
from turnback.core.row import row_class
from turnback.core.types import RowTypeInfo, TypeInfo

_new: Callable[[Any, Any], Any] = tuple.__new__


def row_builder(type_: RowTypeInfo) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return the function that makes one row from a tuple of its values; None if that is it."""
    cls = type_.python_class or row_class(type_.names)
    if cls is tuple:
        return None
    if issubclass(cls, tuple):
        return lambda values: _new(cls, values)
    if _needs_keywords(type_, cls):
        names = type_.names
        return lambda values: cls(**dict(zip(names, values, strict=True)))
    return lambda values: cls(*values)


def former(type_: TypeInfo) -> Callable[[Any], Any]:
    """Return the function that gives an element the class its type declares."""
    if not isinstance(type_, RowTypeInfo):
        return lambda element: element
    kind = type_
    wanted, build = kind.python_class or row_class(kind.names), row_builder(kind) or tuple

    def form(element: Any) -> Any:
        return element if isinstance(element, wanted) else build(spread(element, kind))

    return form


def build_rows(type_: RowTypeInfo, columns: Sequence[Iterable[Any]]) -> list[Any]:
    """Return the rows made of the values of the columns."""
    cls = type_.python_class or row_class(type_.names)
    values = zip(*columns, strict=True)
    if cls is tuple:
        return list(values)
    if issubclass(cls, tuple):
        return list(map(_new, repeat(cls), values))
    if _needs_keywords(type_, cls):
        names = type_.names
        return [cls(**dict(zip(names, v, strict=True))) for v in values]
    return list(map(cls, *columns))


def _needs_keywords(type_: RowTypeInfo, cls: type) -> bool:
    parameters = inspect.signature(cls).parameters
    return tuple(parameters) != type_.names or any(
        p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values()
    )
