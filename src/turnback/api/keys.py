"""How streams are keyed, from what users write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnback.api.functions import returned_type
from turnback.core.errors import PlanError
from turnback.functions.base import KeySelector
from turnback.functions.key_spec import KeySpec
from turnback.values.columns import stream_columns
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo

if TYPE_CHECKING:
    from turnback.api.stream import DataStream

Selector = str | list[str] | tuple[str, ...] | KeySelector | Callable[[Any], Any]
"""A column, several in a list, or a function."""


def key_spec(type: TypeInfo, key: Sequence[Any], key_type: Any) -> KeySpec:
    """How elements get their key: from column names, or from one function."""
    parts = list(key)
    if len(parts) == 2 and not isinstance(parts[0], str):
        key_type = parts.pop()  # PyFlink gives it by position
    if key_type is not None and parts and isinstance(parts[0], str):
        raise PlanError("key_by: columns have their type already; leave key_type out")
    if len(parts) == 1 and not isinstance(parts[0], str):
        return _function_key(parts[0], key_type)
    return _column_key(type, tuple(parts))


def _column_key(type: TypeInfo, columns: tuple[Any, ...]) -> KeySpec:
    known = dict(stream_columns(type))
    if not columns:
        raise PlanError("key_by needs at least one column name, or a function")
    for column in columns:
        if column not in list(known):
            raise PlanError(f"key_by: there is no column {column!r}; there are {list(known)}")
    return KeySpec(columns, None, tuple(known[column] for column in columns))


def _function_key(function: Any, key_type: Any) -> KeySpec:
    if isinstance(function, type) and issubclass(function, KeySelector):
        raise PlanError(f"key_by takes an instance; write {function.__name__}()")
    if not callable(function) and not isinstance(function, KeySelector):
        raise PlanError(f"key_by takes column names or a function, got {type(function).__name__}")
    if isinstance(function, KeySelector) and type(function).open is not KeySelector.open:
        raise PlanError("key_by: a KeySelector is not opened; prepare it in its constructor")
    declared = key_type if key_type is not None else returned_type(function)
    if declared is None or declared is Any:
        raise PlanError(
            "key_by with a function needs key_type=..., or a return annotation on the function; "
            "or name columns instead"
        )
    call = function.get_key if isinstance(function, KeySelector) else function
    return KeySpec((), call, (as_type(declared),))


def keyed_by(stream: DataStream, selector: Any, key_type: Any) -> DataStream:
    """A stream keyed by one selector: a column, a list of columns, or a function."""
    columns = [selector] if isinstance(selector, str) else selector
    if isinstance(columns, list | tuple):
        return stream.key_by(*columns)
    return stream.key_by(selector, key_type=key_type)


def common_keys(stream1: DataStream, stream2: DataStream) -> tuple[KeySpec, ...]:
    """How both streams are keyed, so that equal keys come together; empty if neither is."""
    keys = [stream1._key, stream2._key]
    known = [key for key in keys if key is not None]
    if len(known) == 1:
        which = "second" if keys[1] is None else "first"
        raise PlanError(f"the {which} of two connected streams has no key; key both, or neither")
    if not known:
        return ()
    first, second = known
    if first.types != second.types:
        types = " and ".join(", ".join(map(str, key.types)) for key in known)
        raise PlanError(
            f"the keys of two connected streams must have one type, and they are {types}; cast one "
            f"of them"
        )
    by_columns = any(key.function is None for key in known)
    return tuple(replace(key, as_columns=by_columns and key.function is not None) for key in known)
