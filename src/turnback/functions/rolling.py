"""Rolling aggregates of the elements of a key, by one field: PyFlink's sum, min, max and so on."""

from __future__ import annotations

from typing import Any

from turnback.core.errors import PlanError
from turnback.functions.base import ReduceFunction
from turnback.values.coerce import row_values
from turnback.values.typeinfo import BasicTypeInfo, DecimalTypeInfo, RowTypeInfo, TypeInfo

_NUMBERS = ("byte", "short", "int", "long", "float", "double", "big_int")


class RollingAggregate(ReduceFunction):
    """Reduces elements by one of their fields; null is no value.

    Args:
        method: ``sum``, ``min``, ``max``, ``min_by`` or ``max_by``.
        position: The name of the field, or its number; 0 for elements that are no rows.
        type: Of the elements.
    """

    def __init__(self, method: str, position: int | str, type: TypeInfo) -> None:
        self._method = method
        self._type = type
        self._index = _field(method, position, type)
        field = type.types[self._index] if isinstance(type, RowTypeInfo) else type
        if not _fits(method, field):
            kind = "added up" if method == "sum" else "compared"
            raise PlanError(f"{method}: values of {field} cannot be {kind}; choose another field")

    def reduce(self, value1: Any, value2: Any) -> Any:
        one = self._value(value1)
        two = self._value(value2)
        if self._method in ("min_by", "max_by"):
            return value2 if self._wins(two, one) else value1
        if self._method == "sum":
            total = two if one is None else one if two is None else one + two
        else:
            total = two if self._wins(two, one) else one
        if not isinstance(self._type, RowTypeInfo):
            return total
        fields = list(row_values(value1, self._type))
        fields[self._index] = total
        return tuple(fields)

    def _value(self, element: Any) -> Any:
        if not isinstance(self._type, RowTypeInfo):
            return element
        return row_values(element, self._type)[self._index]

    def _wins(self, new: Any, old: Any) -> bool:
        """Whether a new value takes the place of the old one; of equal ones the first stays."""
        if new is None or old is None:
            return new is not None
        return bool(new < old if self._method in ("min", "min_by") else new > old)


def _field(method: str, position: int | str, type_: TypeInfo) -> int:
    if not isinstance(position, int | str) or isinstance(position, bool):
        raise PlanError(f"{method} takes the name or the number of a field, got {position!r:.40}")
    names = type_.names if isinstance(type_, RowTypeInfo) else ()
    if isinstance(position, str) and position in names:
        return names.index(position)
    if isinstance(position, int) and 0 <= position < max(len(names), 1):
        return position
    if not names:
        raise PlanError(f"{method}: elements of {type_} have no fields; leave {position!r} out")
    raise PlanError(f"{method}: there is no field {position!r}; there are {list(names)}")


def _fits(method: str, type_: TypeInfo) -> bool:
    if isinstance(type_, DecimalTypeInfo):
        return True
    if not isinstance(type_, BasicTypeInfo):
        return False
    return type_.name in _NUMBERS if method == "sum" else type_.name != "pickled"
