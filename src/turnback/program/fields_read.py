"""Which fields of its elements a function reads, so that the others need not be read at all."""

from __future__ import annotations

import dis
from collections.abc import Collection
from types import CodeType, FunctionType, MethodType
from typing import Any

_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SEES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})


def fields_read(function: Any, names: Collection[str]) -> set[str] | None:
    """The fields of its element that a function reads, None for all: it might read any.

    It is known of plain Python functions and methods that use their element in no other way than
    ``element.field``. One that hands its element on, looks into it by position, or prints it, might
    read any field.

    Args:
        function: Takes the element as its first argument, after `self`.
        names: The fields there are.
    """
    position = 0
    if isinstance(function, MethodType):
        function = function.__func__
        position = 1
    if not isinstance(function, FunctionType):
        return None
    found = _attributes_read(function.__code__, position)
    return found if found is not None and found <= set(names) else None


def _attributes_read(code: CodeType, position: int) -> set[str] | None:
    """The attributes of an argument that code reads; None if it does anything else with it."""
    if position >= code.co_argcount or _SEES_LOCALS & {*code.co_names}:
        return None
    argument = code.co_varnames[position]
    if argument in code.co_cellvars:  # an inner function has it
        return None
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found = set()
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        loaded = _loaded(step)
        if argument not in loaded:
            continue
        alone = loaded.count(argument) == 1 and loaded[-1] == argument
        if not alone or following is None or following.opname not in _ATTRIBUTES:
            return None
        found.add(str(following.argval))
    return found


def _loaded(step: dis.Instruction) -> tuple[Any, ...]:
    """The local variables that an instruction is about; as its last one, the one it loads last."""
    if "FAST" not in step.opname:
        return ()
    if isinstance(step.argval, tuple):  # two at once, since Python 3.13
        loads = step.opname.startswith("LOAD") and "STORE" not in step.opname
        return step.argval if loads else (*step.argval, None)
    return (step.argval,) if step.opname in _LOADS else (step.argval, None)
