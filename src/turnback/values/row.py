"""`Row`: a tuple whose fields may have names."""

from __future__ import annotations

import inspect
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, ClassVar

from turnback.values.codegen import generate
from turnback.values.coerce import row_values
from turnback.values.typeinfo import RowTypeInfo, TypeInfo

_new = tuple.__new__
_new_row: Callable[[Any, Any], Any] = _new
_get = tuple.__getitem__
_classes: dict[tuple[str, ...], type[Row]] = {}
# Integer look-ups of the first fields are compiled into `__getitem__`; beyond, the chain of
# comparisons would cost more than the general way.
_DIRECT = 12


class Row(tuple[Any, ...]):
    """A tuple whose fields may have names.

    ``Row(1, 2)`` has positions only; ``Row(post="a", n=1)`` also has names, and the values are
    ``row.post``, ``row["post"]`` or ``row[0]``. A field takes precedence over a method of the same
    name: ``row.count`` is the field when there is a field called count. As in PyFlink,
    ``Row("post",     "n")`` can be called to make rows with these names.

    ``"post" in row`` tests for a field of that name, or, in a row without names, for a value.

    A row equals any tuple with the same values, whatever its names. A plain tuple is accepted
    wherever a row is, is matched by position, and is several times cheaper to create. A row with
    names is matched by its names.
    """

    __slots__ = ()
    __row_names__: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:
        # The fields of a row are known when it is made, not when it is checked.
        def __getattr__(self, name: str) -> Any: ...

        def __getitem__(self, key: Any) -> Any: ...

    def __new__(cls, /, *values: Any, **fields: Any) -> Row:
        if cls is Row:
            if not fields:
                return _new(cls, values)
            if values:
                raise TypeError("create a Row with names for all of its values, or for none")
            names = (*fields,)
            return _new(_classes.get(names) or row_class(names), (*fields.values(),))
        return _new(cls, _in_order(cls.__row_names__, values, fields))

    def __call__(self, *values: Any) -> Row:
        """Make a row whose field names are the values of this one."""
        return row_class(tuple(self))(*values)

    def get_field_names(self) -> tuple[str, ...]:
        """Return the names of the fields; empty when there are none."""
        return type(self).__row_names__

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the fields as a dict.

        Raises:
            TypeError: The fields have no names.
        """
        names = type(self).__row_names__
        if not names:
            raise TypeError(f"{self!r} has no field names and cannot become a dict")
        values: Iterable[Any] = map(_deep_dict, self) if recursive else self
        return dict(zip(names, values, strict=True))

    def __repr__(self) -> str:
        names = type(self).__row_names__
        if names:
            inner = ", ".join(f"{n}={v!r}" for n, v in zip(names, self, strict=True))
        else:
            inner = ", ".join(map(repr, self))
        return f"Row({inner})"

    def __reduce__(self) -> tuple[Callable[..., Row], tuple[Any, ...]]:
        return _restore, (type(self).__row_names__, tuple(self))


def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the subclass of `Row` with these fields; always the same one for the same names.

    Its fields are read at the speed of a named tuple. ``tuple.__new__(cls, values)`` makes an
    instance from an iterable without any check.
    """
    cls = _classes.get(names)
    if cls is None:
        cls = _classes.setdefault(names, _make_class(names))
    return cls


def _make_class(names: tuple[str, ...]) -> type[Row]:
    if len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
        raise TypeError(f"field names must be distinct strings, got {names}")
    body: dict[str, Any] = {"__slots__": (), "__row_names__": names, "__module__": __name__}
    body["__contains__"] = lambda self, name: name in names
    for index, name in enumerate(names):
        if not _is_dunder(name):
            body[name] = _tuplegetter(index, f"Field {index}.")
    if names != tuple(f"f{i}" for i in range(len(names))):
        body["__getitem__"] = _make_getitem(names)
    return type("Row", (Row,), body)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _make_getitem(names: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    lines = ["def __getitem__(self, key):"]
    for index, name in enumerate(names[:_DIRECT]):
        # A name that is no plain identifier could be code: it never gets into the source.
        plain = name.isascii() and name.isidentifier() and not iskeyword(name)
        if plain and not name.startswith("__"):
            lines.append(f"    if key == {index}: return self.{name}")
    lines.append("    return find(self, key)")
    index_of = {name: index for index, name in enumerate(names)}

    def find(row: Row, key: Any) -> Any:
        if key.__class__ is str:
            index = index_of.get(key)
            if index is None:
                raise KeyError(f"no field {key!r} in a row of {', '.join(names)}")
            return _get(row, index)
        return _get(row, key)

    result: Callable[[Any, Any], Any] = generate("__getitem__", lines, {"find": find})
    return result


def _in_order(
    names: tuple[str, ...], values: tuple[Any, ...], fields: dict[str, Any]
) -> Iterable[Any]:
    if not fields and len(values) == len(names):
        return values
    if not values and len(fields) == len(names) and all(n in fields for n in names):
        return [fields[n] for n in names]
    raise TypeError(f"a row of {', '.join(names)} needs exactly these values")


def _restore(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return _new(row_class(names) if names else Row, values)


def _deep_dict(value: Any) -> Any:
    if isinstance(value, Row) and type(value).__row_names__:
        return Row.as_dict(value, recursive=True)
    if value.__class__ is tuple:
        return tuple(map(_deep_dict, value))
    if isinstance(value, list):
        return [_deep_dict(v) for v in value]
    if isinstance(value, dict):
        return {k: _deep_dict(v) for k, v in value.items()}
    return value


def row_builder(type_: RowTypeInfo) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return the function that makes one row from a tuple of its values; None if that is it."""
    cls = type_.python_class or row_class(type_.names)
    if cls is tuple:
        return None
    if issubclass(cls, tuple):
        return lambda values: _new_row(cls, values)
    if _needs_keywords(type_, cls):
        names = type_.names
        return lambda values: cls(**dict(zip(names, values, strict=True)))
    return lambda values: cls(*values)


def row_converter(type_: TypeInfo) -> Callable[[Any], Any]:
    """Return the function that gives an element the class its type declares."""
    if not isinstance(type_, RowTypeInfo):
        return lambda element: element
    cls = type_.python_class or row_class(type_.names)
    build = row_builder(type_) or tuple

    def convert(element: Any) -> Any:
        return element if isinstance(element, cls) else build(row_values(element, type_))

    return convert


def build_rows(type_: RowTypeInfo, columns: Sequence[Iterable[Any]]) -> list[Any]:
    """Return the rows made of the values of the columns."""
    cls = type_.python_class or row_class(type_.names)
    values = zip(*columns, strict=True)
    if cls is tuple:
        return list(values)
    if issubclass(cls, tuple):
        return list(map(_new_row, repeat(cls), values))
    if _needs_keywords(type_, cls):
        names = type_.names
        return [cls(**dict(zip(names, v, strict=True))) for v in values]
    return list(map(cls, *columns))


def _needs_keywords(type_: RowTypeInfo, cls: type) -> bool:
    parameters = inspect.signature(cls).parameters
    return tuple(parameters) != type_.names or any(
        p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values()
    )
