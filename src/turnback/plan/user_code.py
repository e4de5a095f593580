"""Where the user has written what an operator runs, for messages."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from turnback.functions.base import user_function
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator

_PACKAGE = str(Path(__file__).parents[1])
_GIVING_ONE = {
    NodeKind.MAP: ("map",),
    NodeKind.FILTER: ("filter",),
    NodeKind.REDUCE: ("reduce",),
}
_GIVING_MANY = (
    *("process_element", "process_element1", "process_element2", "process_broadcast_element"),
    *("flat_map", "flat_map1", "flat_map2"),
)


def place_line(function: Any, *methods: str) -> str:
    """The file and the line of a function, as the next line of a message; nothing if unknown."""
    code, name = _code(function, methods)
    if code is None:
        return ""
    return f'\n  File "{code.co_filename}", line {code.co_firstlineno}, in {name}'


def operator_place(operator: Operator) -> str:
    """The file and the line of what an operator runs for an element, as `place_line` gives it."""
    return place_line(operator.function, *_GIVING_ONE.get(operator.kind, _GIVING_MANY))


def yield_hint(operator: Operator) -> str:
    """Advice where a function returns although it may give several elements; else nothing."""
    code, name = _code(operator.function, _GIVING_MANY)
    if code is None or operator.kind in _GIVING_ONE or code.co_flags & inspect.CO_GENERATOR:
        return ""
    return f". {name} must return an iterable of elements: to emit one element, `yield` it"


def return_advice(error: BaseException, operator: Operator) -> str:
    """Where what a function returned could not be read as elements: what to write instead."""
    raised_here = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if not raised_here or not isinstance(error, TypeError) or "iterable" not in str(error):
        return ""
    return yield_hint(operator) + operator_place(operator)


def _code(function: Any, methods: tuple[str, ...]) -> tuple[CodeType | None, str]:
    """The code that elements go through, and its name, if the user has written it."""
    user = user_function(function)
    for each in (user, *(getattr(user, name, None) for name in methods)):
        plain = inspect.unwrap(getattr(each, "__func__", each)) if callable(each) else None
        if isinstance(plain, FunctionType):
            code = plain.__code__
            if not code.co_filename.startswith(_PACKAGE):
                return code, plain.__name__
    return None, ""
