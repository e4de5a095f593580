"""Plain Python functions in the places of function classes."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from typing import Any

from turnback.core.errors import PlanError
from turnback.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    ReduceFunction,
)


class CallableMap(MapFunction):
    """A function as a `MapFunction`."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.map = function  # type: ignore[method-assign,assignment]

    def map(self, value: Any) -> Any:
        """Replaced by the function itself."""


class CallableFlatMap(FlatMapFunction):
    """A function as a `FlatMapFunction`."""

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        self.flat_map = function  # type: ignore[method-assign,assignment]

    def flat_map(self, value: Any) -> Iterable[Any]:
        """Replaced by the function itself."""
        return ()


class CallableFilter(FilterFunction):
    """A function as a `FilterFunction`."""

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.filter = function  # type: ignore[method-assign,assignment]

    def filter(self, value: Any) -> bool:
        """Replaced by the function itself."""
        return True


class CallableReduce(ReduceFunction):
    """A function as a `ReduceFunction`."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.reduce = function  # type: ignore[method-assign,assignment]

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Replaced by the function itself."""


def as_function(given: Any, wanted: type, wrapper: Callable[[Any], Any], method: str) -> Any:
    """The given function object, or a plain callable wrapped as one."""
    if isinstance(given, wanted):
        return given
    if isinstance(given, type) and issubclass(given, Function):
        raise PlanError(f"{method} takes an instance; write {given.__name__}() with parentheses")
    if callable(given):
        return wrapper(given)
    raise PlanError(f"{method} takes a {wanted.__name__} or a function, got {type(given).__name__}")


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
