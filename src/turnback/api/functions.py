"""What users give for a function: an object of one of the classes, or a plain callable."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from turnback.core.errors import PlanError
from turnback.functions.base import (
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    ReduceFunction,
)
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo


class CallableFunction(MapFunction, FlatMapFunction, FilterFunction, ReduceFunction):
    """A plain Python function in the place of any of these: every instance has it as its method."""

    map: Any = None
    flat_map: Any = None
    filter: Any = None
    reduce: Any = None

    def __init__(self, function: Callable[..., Any]) -> None:
        self.map = self.flat_map = self.filter = self.reduce = function


def as_function(given: Any, wanted: type[Function], method: str) -> Any:
    """The given function object, or a plain callable wrapped as one."""
    if isinstance(given, wanted):
        return given
    if isinstance(given, type) and issubclass(given, Function):
        raise PlanError(f"{method} takes an instance; write {given.__name__}() with parentheses")
    if not callable(given):
        raise PlanError(
            f"{method} takes a {wanted.__name__} or a function, got {type(given).__name__}"
        )
    if not issubclass(CallableFunction, wanted):
        raise PlanError(
            f"process takes a ProcessFunction or, after key_by, a KeyedProcessFunction or a "
            f"KeyedBatchFunction; {name_of(given)!r} is a plain function: use flat_map"
        )
    return CallableFunction(given)


def checked_instance(given: Any, wanted: type | tuple[type, ...], method: str) -> Any:
    """What was given, if it is an instance of one of the wanted classes."""
    if isinstance(given, type):
        raise PlanError(f"{method} takes an instance; write {given.__name__}() with parentheses")
    if not isinstance(given, wanted):
        names = wanted if isinstance(wanted, tuple) else (wanted,)
        expected = " or ".join(map(_with_article, (each.__name__ for each in names)))
        raise PlanError(f"{method} takes {expected}, got {type(given).__name__}")
    return given


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def output_type_of(given: Any, annotated: Any, method: str) -> TypeInfo:
    """The type of what a method gives: that which was given, or the annotation of a function."""
    if given is None and annotated is not None:
        given = returned_type(annotated)
        given = None if given is Any else given
    if given is None:
        raise PlanError(
            f"{method} needs output_type: a DDL string such as 'post string, n bigint', "
            f"Types..., a NamedTuple or a dataclass"
        )
    return as_type(given)


def name_of(function: Any) -> str:
    """What to call an operator that was given no name."""
    name = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else str(name)


def returned_type(function: Any) -> Any | None:
    """The annotated return type of a function, if it has one."""
    target = function if not hasattr(function, "get_key") else function.get_key
    try:
        return typing.get_type_hints(target).get("return")
    except (TypeError, NameError):
        return None
