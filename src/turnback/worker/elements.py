"""What the function of an operator does with an element of each of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator

ElementFunction = Callable[[Any, Any], Iterable[Any] | None]
"""Takes an element and a context; gives the new elements."""


def element_functions(operator: Operator) -> tuple[ElementFunction, ...]:
    """The function for the elements of each input of an operator."""
    function = operator.function
    match operator.kind:
        case NodeKind.MAP:
            return (_mapped(function.map),)
        case NodeKind.FLAT_MAP:
            return (_without_context(function.flat_map),)
        case NodeKind.CO_MAP:
            return _mapped_if_any(function.map1), _mapped_if_any(function.map2)
        case NodeKind.CO_FLAT_MAP:
            return _without_context(function.flat_map1), _without_context(function.flat_map2)
        case NodeKind.CO_PROCESS:
            return function.process_element1, function.process_element2
    return (function.process_element,)


def _mapped(map: Callable[[Any], Any]) -> ElementFunction:
    return lambda value, ctx: (map(value),)


def _mapped_if_any(map: Callable[[Any], Any]) -> ElementFunction:
    """As in PyFlink, where a `CoMapFunction` that returns None gives nothing."""

    def mapped(value: Any, ctx: Any) -> Iterable[Any] | None:
        result = map(value)
        return None if result is None else (result,)

    return mapped


def _without_context(flat_map: Callable[[Any], Any]) -> ElementFunction:
    return lambda value, ctx: flat_map(value)
