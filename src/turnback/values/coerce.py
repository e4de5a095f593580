"""Convert a value to the exact Python class of its type, or report why it does not fit.

The fast paths of `columns` and `serializer` only test whether the class of a value is among
`exact_classes`; everything else comes here: NumPy scalars, subclasses, and mistakes.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from turnback.errors import ElementTypeError
from turnback.values.typeinfo import BASIC, BasicTypeInfo, DecimalTypeInfo, RowTypeInfo, TypeInfo

Coercer = Callable[[Any], Any]

NoneType = type(None)
INT_RANGES = {
    name: (-(1 << basic.bits), (1 << basic.bits) - 1)
    for name, basic in BASIC.items()
    if basic.bits is not None
}


def exact_classes(type_: TypeInfo) -> frozenset[type]:
    """Return the classes whose instances need no coercion, None included; empty for any other.

    Integers must still be in range, and datetimes have or not have a zone.
    """
    if isinstance(type_, DecimalTypeInfo):
        return frozenset({Decimal, NoneType})
    cls = BASIC[type_.name].python_class if isinstance(type_, BasicTypeInfo) else None
    return frozenset() if cls is None else frozenset({cls, NoneType})


def coercer(type_: TypeInfo) -> Coercer:
    """Return the function that brings one value into the class of a scalar type.

    It takes anything but None, and raises `ElementTypeError` for a value that does not fit.
    """
    if isinstance(type_, DecimalTypeInfo):
        return _decimal_coercer(type_)
    if not isinstance(type_, BasicTypeInfo):
        raise TypeError(f"{type_} is not a scalar type")
    name = type_.name
    if BASIC[name].python_class is int:
        return _int_coercer(type_, *INT_RANGES.get(name, (None, None)))
    if name == "string":
        return _string_coercer(type_)
    convert, expected = _CONVERT[name]

    def coerce(value: Any) -> Any:
        result = convert(value)
        if result is None:
            raise type_mismatch(value, type_, f"expected {expected}")
        return result

    return coerce


def type_mismatch(value: Any, type_: TypeInfo, reason: str) -> ElementTypeError:
    """Return the error for a value that does not fit its type."""
    declared = str(type_)
    if len(declared) > 120:
        declared = declared[:117] + "..."
    return ElementTypeError(
        f"{short_repr(value)} of class {type(value).__name__} does not match the type "
        f"{declared}: {reason}"
    )


def in_field(name: str, error: ElementTypeError) -> ElementTypeError:
    """Return the error with the name of the field put in front."""
    return type(error)(f"field {name!r}: {error}")


def short_repr(value: Any) -> str:
    """Return the repr of a value, at most 80 characters of it."""
    try:
        text = repr(value[:100] if isinstance(value, str | bytes) else value)
    except Exception:  # noqa: BLE001 (the user's repr may raise anything)
        text = f"<{type(value).__name__} that cannot be printed>"
    return text if len(text) <= 80 else text[:77] + "..."


def _string_coercer(type_: TypeInfo) -> Coercer:
    def coerce(value: Any) -> str:
        if not isinstance(value, str):
            raise type_mismatch(value, type_, "expected a str")
        text = str.__str__(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise type_mismatch(value, type_, str(error)) from None
        return text

    return coerce


def _int_coercer(type_: TypeInfo, low: int | None, high: int | None) -> Coercer:
    def coerce(value: Any) -> int:
        if value.__class__ is not int:
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise type_mismatch(value, type_, "expected an int")
            value = operator.index(value)
        if low is not None and high is not None and not low <= value <= high:
            raise type_mismatch(value, type_, f"it is not between {low} and {high}")
        result: int = value
        return result

    return coerce


def _decimal_coercer(type_: DecimalTypeInfo) -> Coercer:
    check = _decimal_check(type_)

    def coerce(value: Any) -> Decimal:
        if not isinstance(value, Decimal):
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise type_mismatch(value, type_, "expected a decimal.Decimal")
            value = Decimal(operator.index(value))
        check(value)
        result: Decimal = value if value.__class__ is Decimal else Decimal(value)
        return result

    return coerce


def decimal_quantizer(type_: DecimalTypeInfo) -> Callable[[Decimal], Decimal]:
    """Return the function that gives a decimal exactly the scale of its type, without a -0."""
    check = _decimal_check(type_)
    add = Context(prec=type_.precision).add
    return lambda value: add(check(value), 0)


def _decimal_check(type_: DecimalTypeInfo) -> Callable[[Decimal], Decimal]:
    """Return the function that gives a decimal exactly the scale of its type, if it fits."""
    context = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    quantize = context.quantize
    unit = Decimal((0, (1,), -type_.scale))

    def check(value: Decimal) -> Decimal:
        if not value.is_finite():
            raise type_mismatch(value, type_, "it is not a number")
        try:
            return quantize(value, unit)
        except (Inexact, InvalidOperation):
            raise type_mismatch(
                value, type_, f"it needs more than {type_.precision} digits or {type_.scale} places"
            ) from None

    return check


def _bytes(value: Any) -> bytes | None:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    return None


def _double(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return float(value)


def _date(value: Any) -> date | None:
    if value.__class__ is date:
        return value
    if isinstance(value, date) and not isinstance(value, datetime):
        return date(value.year, value.month, value.day)
    return None


def _time(value: Any) -> time | None:
    return value if isinstance(value, time) and value.tzinfo is None else None


def _timestamp(value: Any) -> datetime | None:
    return _datetime(value) if isinstance(value, datetime) and value.tzinfo is None else None


def _instant(value: Any) -> datetime | None:
    if value.__class__ is datetime and value.tzinfo is UTC:
        return value
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return _datetime(value.astimezone(UTC))
    return None


def _datetime(value: datetime) -> datetime:
    if value.__class__ is datetime:
        return value
    return datetime.combine(date(value.year, value.month, value.day), value.timetz())


_CONVERT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "bytes": (_bytes, "bytes"),
    "boolean": (_boolean, "a bool"),
    "float": (_double, "a float"),
    "double": (_double, "a float"),
    "date": (_date, "a datetime.date"),
    "time": (_time, "a datetime.time without a zone"),
    "timestamp": (
        _timestamp,
        "a datetime without a zone (for one with a zone, declare Types.INSTANT())",
    ),
    "instant": (
        _instant,
        "a datetime with a zone (for one without, declare Types.SQL_TIMESTAMP())",
    ),
}
"""How a value becomes one of the class of its type, or None; and what was expected."""


def is_positional(cls: type, type_: RowTypeInfo) -> bool:
    """Whether instances of a class hold the fields of a row type in its order.

    A `Row` with names is taken by these names. Fields called f0, f1 and so on are those that
    nobody has named, in a row as in a type.
    """
    if not issubclass(cls, tuple | list):
        return False
    given = getattr(cls, "__row_names__", ())
    names = type_.names
    if not given or given == names:
        return True
    return (_unnamed(given) or _unnamed(names)) and set(given) != set(names)


def _unnamed(names: tuple[str, ...]) -> bool:
    return names == tuple(f"f{i}" for i in range(len(names)))


def row_values(row: Any, type_: RowTypeInfo) -> tuple[Any, ...]:
    """Return the fields of a row in order, whatever the row is.

    Tuples and lists are taken by position, dicts and rows with names by name, other objects by
    attribute.
    """
    names = type_.names
    if is_positional(type(row), type_):
        if len(row) != len(names):
            raise type_mismatch(row, type_, f"it has {len(row)} values instead of {len(names)}")
        return tuple(row)
    if isinstance(row, tuple):
        return _by_name(row, type_)
    if isinstance(row, dict):
        if row.keys() == set(names):
            return tuple([row[n] for n in names])
        raise type_mismatch(row, type_, f"its keys must be exactly {', '.join(names)}")
    try:
        return tuple([getattr(row, n) for n in names])
    except AttributeError as error:
        raise type_mismatch(row, type_, f"expected a row, a tuple or a dict ({error})") from None


def row_arranger(type_: RowTypeInfo) -> tuple[set[type], Callable[[Any], tuple[Any, ...]]]:
    """Return `row_values` for a type, and the classes whose instances need no call of it.

    Instances of these may still have the wrong length. Further classes are added as they come up.
    """
    in_order: set[type] = {tuple}

    def arrange(row: Any) -> tuple[Any, ...]:
        if is_positional(row.__class__, type_):
            in_order.add(row.__class__)
        return row_values(row, type_)

    return in_order, arrange


def _by_name(row: Any, type_: RowTypeInfo) -> tuple[Any, ...]:
    given: tuple[str, ...] = type(row).__row_names__
    missing = [n for n in type_.names if n not in given]
    extra = [n for n in given if n not in type_.names]
    if missing or extra:
        problems = [f"it has no {', '.join(missing)}"] if missing else []
        problems += [f"there is no field {', '.join(extra)}"] if extra else []
        raise type_mismatch(
            row,
            type_,
            f"{' and '.join(problems)}. A Row with names is matched by name; use a tuple to "
            "match values by position",
        )
    values = dict(zip(given, row, strict=True))
    return tuple([values[n] for n in type_.names])
