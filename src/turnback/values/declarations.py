"""Values as their declared type has them, from the moment they leave a function.

A value of another class, such as an int for a double, or of the right class but not in the form
that comes back, such as a datetime in another zone, would be one thing before a shuffle or the end
of an epoch and another one after it. So values are brought into that form at once. Most have it
already: the tests for that are written into functions of their own for each type, and whatever
fails one takes the way that is also taken through the shuffle or the store.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from math import isnan
from operator import attrgetter
from struct import Struct
from typing import Any

from turnback.errors import ElementTypeError
from turnback.values.codegen import generate
from turnback.values.coerce import INT_RANGES, coercer
from turnback.values.freeze import is_mutable
from turnback.values.row import Row, row_class
from turnback.values.typeinfo import (
    BASIC,
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

Convert = Callable[[Any], Any]
Scope = dict[str, Any]

_BIG_INT = 10**38
"""A column holds fewer digits than this number has."""
_SINGLE = Struct("<f")
_new: Callable[[Any, Any], Any] = tuple.__new__


def is_flat(type_: TypeInfo) -> bool:
    """Whether values of a type are scalars, or immutable rows of scalars."""
    if isinstance(type_, RowTypeInfo):
        return not is_mutable(type_) and all(map(_is_scalar, type_.types))
    return _is_scalar(type_)


def declared_elements(type_: TypeInfo) -> Callable[[list[Any]], list[Any] | None]:
    """Return the function that gives elements of a flat type as they come out of columns.

    It returns None if some element is not in that form yet: then make columns of them.
    """
    # Types are equal whatever class their rows have.
    return _declared_elements(type_, getattr(type_, "python_class", None))


@lru_cache(maxsize=1024)
def _declared_elements(
    type_: TypeInfo, python_class: type | None
) -> Callable[[list[Any]], list[Any] | None]:
    if isinstance(type_, RowTypeInfo):
        return _rows_as_declared(type_)
    scope: Scope = {}
    lines = [
        "def declared(values):",
        "    for v in values:",
        f"        if not ({_test(type_, 'v', scope, in_column=True)}): return None",
        "    return values",
    ]
    declared: Callable[[list[Any]], list[Any] | None] = generate("declared", lines, scope)
    return declared


def declared_value(type_: TypeInfo, stored: Convert) -> Convert:
    """Return the function that gives a value of a flat type as it comes back from the store."""
    scope: Scope = {"stored": stored}
    if isinstance(type_, RowTypeInfo):
        lines = _row_lines(type_, scope)
    else:
        lines = [
            "def declared(v):",
            f"    if {_test(type_, 'v', scope, in_column=False)}: return v",
            "    return stored(v)",
        ]
    declared: Convert = generate("declared", lines, scope)
    return declared


def value_test(type_: TypeInfo, v: str, scope: Scope, otherwise: str) -> list[str]:
    """Return lines that do something with a value that is not as it comes back from the store.

    Args:
        type_: A flat type.
        v: What the value is called in the lines; it may be None.
        scope: Gets what the lines refer to.
        otherwise: What is done.
    """
    if not isinstance(type_, RowTypeInfo):
        return [f"if not ({_test(type_, v, scope, in_column=False)}): {otherwise}"]
    cls = type_.python_class or row_class(type_.names)
    tests, values = _field_tests(type_, scope, in_column=False)
    fields = _fields_of(cls, type_)
    scope.update(cls=cls, fields=fields)
    if cls is tuple:
        scope["width"] = len(type_.names)
        is_whole = f"{v}.__class__ is cls and len({v}) == width"
    else:
        is_whole = f"{v}.__class__ is cls"
    return [
        f"if {is_whole}:",
        f"    {values}, = {v if fields is None else f'fields({v})'}",
        f"    if not ({tests}): {otherwise}",
        f"elif {v} is not None: {otherwise}",
    ]


def sufficient_class(type_: TypeInfo) -> type | None:
    """Return the class all of whose instances are as declared; None if that takes another look."""
    name = type_.name if isinstance(type_, BasicTypeInfo) else ""
    return BASIC[name].python_class if name in _BY_CLASS else None


def _is_scalar(type_: TypeInfo) -> bool:
    nested = isinstance(type_, RowTypeInfo | ListTypeInfo | MapTypeInfo)
    return not nested and type_ != BasicTypeInfo("pickled")


def _rows_as_declared(type_: RowTypeInfo) -> Callable[[list[Any]], list[Any] | None]:
    cls = type_.python_class or row_class(type_.names)
    width = len(type_.names)
    scope: Scope = {}
    tests, values = _field_tests(type_, scope, in_column=True)
    fields = _fields_of(cls, type_)
    scope["fields"] = fields or iter
    lines = [
        "def fit(rows):",
        f"    for {values}, in {'map(fields, rows)' if fields else 'rows'}:",
        f"        if not ({tests}): return False",
        "    return True",
    ]
    fit: Callable[[list[Any]], bool] = generate("fit", lines, scope)
    in_order = {cls, tuple, Row} if fields is None else {cls}

    def declared(rows: list[Any]) -> list[Any] | None:
        classes = set(map(type, rows))
        is_declared = classes == {cls}
        # Rows of a class of their own have the right length.
        is_whole = is_declared and cls is not tuple
        if not is_whole and (not classes <= in_order or set(map(len, rows)) != {width}):
            return None
        if not fit(rows):
            return None
        return rows if is_declared else list(map(_new, repeat(cls), rows))

    return declared


def _row_lines(type_: RowTypeInfo, scope: Scope) -> list[str]:
    tests, values = _field_tests(type_, scope, in_column=False)
    return [
        "def declared(given):",
        "    row = given",
        *(f"    {line}" for line in _take_apart(type_, scope, values, "return stored(given)")),
        f"    if {tests}: return row",
        "    return stored(given)",
    ]


def _take_apart(type_: RowTypeInfo, scope: Scope, values: str, otherwise: str) -> list[str]:
    """Lines that make `row` an instance of the declared class, and have its fields as values."""
    cls = type_.python_class or row_class(type_.names)
    scope.update(cls=cls, width=len(type_.names), Row=Row)
    fields = _fields_of(cls, type_)
    if fields is not None:
        scope["fields"] = fields
        return [f"if row.__class__ is not cls: {otherwise}", f"{values}, = fields(row)"]
    positional = "row.__class__ is Row" if cls is tuple else "row.__class__ in (tuple, Row)"
    scope.update(new=_new, tuple=tuple)
    return [
        "if row.__class__ is not cls:",
        f"    if {positional} and len(row) == width: row = new(cls, row)",
        f"    else: {otherwise}",
        # A named tuple has the right length; a plain one may have any.
        *([f"if len(row) != width: {otherwise}"] if cls is tuple else []),
        f"{values}, = row",
    ]


def _fields_of(cls: type, type_: RowTypeInfo) -> Callable[[Any], tuple[Any, ...]] | None:
    """What reads the fields of a row; None if it is a tuple of them."""
    if issubclass(cls, tuple):
        return None
    fields = attrgetter(*type_.names)
    return fields if len(type_.names) > 1 else lambda row: (fields(row),)


def _field_tests(type_: RowTypeInfo, scope: Scope, *, in_column: bool) -> tuple[str, str]:
    """One test of all fields, and what they are called in it; names of fields are not in it."""
    names = [f"v{i}" for i in range(len(type_.types))]
    tests = [
        f"({_test(field, name, scope, in_column=in_column)})"
        for name, field in zip(names, type_.types, strict=True)
    ]
    return " and ".join(tests), ", ".join(names)


def _test(type_: TypeInfo, v: str, scope: Scope, *, in_column: bool) -> str:
    """Source of the test whether a value is as declared, in a column or in the store."""
    if isinstance(type_, DecimalTypeInfo):
        scope["Decimal"] = Decimal
        scope[f"fits_{v}"] = _decimal_test(type_, in_column=in_column)
        return f"{v}.__class__ is Decimal and fits_{v}({v}) or {v} is None"
    assert isinstance(type_, BasicTypeInfo)
    name = type_.name
    cls = BASIC[type_.name].python_class
    assert cls is not None
    scope[cls.__name__] = cls
    test = f"{v}.__class__ is {cls.__name__}"
    if name in INT_RANGES:
        low, high = INT_RANGES[name]
        test += f" and {low} <= {v} <= {high}"
    elif name == "big_int" and in_column:
        test += f" and -{_BIG_INT} < {v} < {_BIG_INT}"
    elif name == "string":
        scope["is_text"] = _is_text
        test += f" and ({v}.isascii() or is_text({v}))"
    elif name == "float":
        scope["is_single"] = _is_single
        test += f" and is_single({v})"
    elif name in ("timestamp", "time"):
        test += f" and {v}.tzinfo is None and not {v}.fold"
    elif name == "instant":
        scope["UTC"] = UTC
        test += f" and {v}.tzinfo is UTC and not {v}.fold"
    return f"{test} or {v} is None"


_BY_CLASS = frozenset({"bytes", "boolean", "double", "date", "big_int"})
"""Types of which every instance of the class is as it comes back from the store."""


def _is_text(value: str) -> bool:
    """Whether a text can be encoded: half of a character cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_single(value: float) -> bool:
    """Whether 32 bits hold a number exactly."""
    try:
        held = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        return False
    return bool(held == value) or isnan(value)


def _decimal_test(type_: DecimalTypeInfo, *, in_column: bool) -> Callable[[Decimal], bool]:
    """In a column all have the same number of places; the store keeps them as they are given."""
    unit = Decimal((0, (1,), -type_.scale))
    limit = Decimal(10 ** (type_.precision - type_.scale))
    coerce = coercer(type_)

    def in_places(value: Decimal) -> bool:
        if not value.same_quantum(unit) or not -limit < value < limit:
            return False
        return not value.is_zero() or not value.is_signed()

    def fits(value: Decimal) -> bool:
        try:
            coerce(value)
        except ElementTypeError:
            return False
        return True

    return in_places if in_column else fits
