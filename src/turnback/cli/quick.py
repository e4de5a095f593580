"""Values that need no conversion, taken as they are.

typer converts with pydantic, whose import alone takes as long as a whole command here. Text and
defaults are what they should be already, and that is all that most calls have.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup


class QuickCommand(TyperCommand):
    """A command that converts only what has to be converted."""

    def get_params(self, ctx: Any) -> Any:
        """Its parameters; those for help and completion are made when they are asked for."""
        return make_quick(super().get_params(ctx))


class QuickGroup(TyperGroup):
    """The same for the options before the command."""

    def get_params(self, ctx: Any) -> Any:
        """Its parameters; those for help and completion are made when they are asked for."""
        return make_quick(super().get_params(ctx))


class _Quick:
    """Stands before the conversion of a parameter."""

    def __init__(self, convert: Any) -> None:
        self._convert = convert

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as its function wants it."""
        several = getattr(param, "multiple", False)
        if value is None:
            return () if several or param.nargs == -1 else None
        annotation = param.type_descriptor.annotation
        if value is param.default or annotation in (str, list[str]):
            return value
        return self._convert().coerce(value, param=param, ctx=ctx)


def make_quick(params: list[Any]) -> list[Any]:
    """Let parameters convert only what has to be converted."""
    for param in params:
        # Older versions of typer have no such method and need none: they convert by themselves.
        convert = getattr(param, "get_runtime_param", None)
        if convert is not None and not isinstance(convert, partial):
            param.get_runtime_param = partial(_Quick, convert)
    return params
