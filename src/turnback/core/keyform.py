"""The one Python form in which a key is looked up.

Python finds keys equal that are stored as different ones, and the other way round: two instants
with the same clock time in the hour that winter time repeats, 1 and True, or instances of a class
with an ``__eq__`` of its own. In the form made here, keys are equal exactly if their bytes are.
"""

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

from turnback.core.coerce import NoneType, coercer, cut, exact_classes, spread
from turnback.core.errors import NullKeyError
from turnback.core.row import row_class
from turnback.core.types import BasicTypeInfo, RowTypeInfo, TypeInfo


class KeyForm:
    """Brings keys of one type into the form in which they are looked up.

    Attributes:
        one: Returns one key in this form. Raises `NullKeyError` if it is or holds None,
            `ElementTypeError` if it does not fit the type.
        are_all: Tells whether all of some keys have the form already.
        differs: Whether the form is not the class that was declared. It is a tuple for classes
            whose instances are equal in a way of their own. Without such a class, keys that come
            from columns have the form already.
    """

    __slots__ = ("are_all", "differs", "one")

    def __init__(self, type_: TypeInfo) -> None:
        self.one: Callable[[Any], Any] = _former(type_)
        self.are_all: Callable[[Sequence[Any]], bool] = _test(type_)
        self.differs = _differs(type_)


def null_key(key: Any) -> NullKeyError:
    """Return the error for a key that is or holds None."""
    return NullKeyError(
        f"the key {cut(key)} is or holds null; filter these elements out or give them a key of "
        "their own before key_by"
    )


def _former(type_: TypeInfo) -> Callable[[Any], Any]:
    if isinstance(type_, RowTypeInfo):
        return _row_former(type_)
    coerce = coercer(type_)

    def form(key: Any) -> Any:
        if key is None:
            raise null_key(key)
        return coerce(key)

    return form


def _row_former(type_: RowTypeInfo) -> Callable[[Any], Any]:
    parts = [_former(t) for t in type_.types]
    width, cls = len(parts), _tuple_class(type_)
    new: Callable[[Any, Any], Any] = tuple.__new__

    def form(key: Any) -> Any:
        if key is None:
            raise null_key(key)
        fields = key
        if not isinstance(key, tuple) or len(key) != width:
            fields = spread(key, type_)
        if any(value is None for value in fields):
            raise null_key(key)
        return new(cls, [part(value) for part, value in zip(parts, fields, strict=True)])

    return form


def _test(type_: TypeInfo) -> Callable[[Sequence[Any]], bool]:
    """Return the function that tells whether all keys have the form already."""
    if isinstance(type_, RowTypeInfo):
        return _row_test(type_)
    wanted = exact_classes(type_) - {NoneType}
    if type_ == BasicTypeInfo("instant"):
        return lambda keys: (
            wanted.issuperset(map(type, keys)) and all(key.tzinfo is UTC for key in keys)
        )
    return lambda keys: wanted.issuperset(map(type, keys))


def _row_test(type_: RowTypeInfo) -> Callable[[Sequence[Any]], bool]:
    tests = [_test(t) for t in type_.types]
    cls, width = _tuple_class(type_), len(tests)

    def are_all(keys: Sequence[Any]) -> bool:
        if not {cls}.issuperset(map(type, keys)) or not {width}.issuperset(map(len, keys)):
            return False
        columns = zip(*keys, strict=True)
        return all(test(column) for test, column in zip(tests, columns, strict=False))

    return are_all


def _tuple_class(type_: RowTypeInfo) -> type:
    """Return the class of the form: the declared one if its instances are equal as tuples are."""
    cls = type_.python_class or row_class(type_.names)
    return cls if _equal_as_tuples(cls) else tuple


def _equal_as_tuples(cls: Any) -> bool:
    same_equality: bool = cls.__eq__ is tuple.__eq__
    return issubclass(cls, tuple) and same_equality and cls.__hash__ is tuple.__hash__


def _differs(type_: TypeInfo) -> bool:
    if not isinstance(type_, RowTypeInfo):
        return False
    cls = type_.python_class
    return (cls is not None and not _equal_as_tuples(cls)) or any(map(_differs, type_.types))
