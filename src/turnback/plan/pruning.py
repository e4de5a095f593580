"""Which columns of a source are needed: the others are neither read, nor shuffled, nor unpacked."""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection
from types import CodeType, FunctionType, MethodType
from typing import Any

from turnback.functions.base import KeyedBatchFunction
from turnback.functions.key_spec import KeySpec
from turnback.plan.dead_letters import ErrorPolicy
from turnback.plan.graph import PASSED_THROUGH, Node, NodeKind, has_partitions, strategies_before
from turnback.plan.timers import has_timers
from turnback.timing.folded_windows import FoldedWindows
from turnback.values.typeinfo import RowTypeInfo, TypeInfo

_PASSING_ON = frozenset({NodeKind.FILTER, NodeKind.TIMESTAMPS})
_METHODS = {
    NodeKind.FILTER: "filter",
    NodeKind.MAP: "map",
    NodeKind.FLAT_MAP: "flat_map",
    NodeKind.PROCESS: "process_element",
    NodeKind.KEYED_PROCESS: "process_element",
}
"""By kind of operator, the method that gets its elements; others may keep them."""

ReadersOf = Callable[[Node], list[Node]]


def types_read(source: Node, readers_of: ReadersOf) -> dict[int, TypeInfo]:
    """By id, the type of what is read of a source, and of what operators pass on of it."""
    type = source.type
    assert type is not None
    needed = None
    if isinstance(type, RowTypeInfo) and type.python_class is None and not source.whole:
        needed = _columns_needed(source, readers_of, type.names)
    if needed is None:
        return {source.id: type}
    assert isinstance(type, RowTypeInfo)
    types: dict[int, TypeInfo] = {source.id: _with_columns(type, needed)}
    passing = [source]
    for node in passing:  # which grows
        for each in readers_of(node):
            if each.kind is NodeKind.TIMESTAMPS:
                # Behind it, only what its readers need is left; its own column may be none of that.
                columns = _columns_needed(each, readers_of, type.names)
                types[each.id] = _with_columns(type, columns or needed)
            elif each.kind is NodeKind.FILTER:
                types[each.id] = types[node.id]
            else:
                continue
            passing.append(each)
    return types


def _with_columns(type: RowTypeInfo, needed: Collection[str]) -> RowTypeInfo:
    fields = [each for each in type.fields() if each[0] in needed] or type.fields()[:1]
    names, types = zip(*fields, strict=True)
    return RowTypeInfo(names, types)


def _columns_needed(node: Node, readers_of: ReadersOf, names: Collection[str]) -> set[str] | None:
    """The columns of a source that are read behind an operator; None for all of them."""
    needed = set[str]()
    passing = [node]
    for each in passing:  # which grows
        for reader in readers_of(each):
            columns = _columns_read(reader, names)
            if columns is None:
                return None
            needed |= columns
            passing += [reader] if reader.kind in _PASSING_ON else []
    return needed


def _columns_read(node: Node, names: Collection[str]) -> set[str] | None:
    """The columns of its input that an operator reads; None for all of them."""
    if any(each.kind in PASSED_THROUGH for each in node.inputs):
        return None
    if node.kind is NodeKind.SIDE_OUTPUT and node.inputs[0].kind is NodeKind.SOURCE:
        return set()  # malformed records have no columns
    if node.on_error is ErrorPolicy.DEAD_LETTER:
        return None  # dead letters are whole
    if node.kind is NodeKind.COMBINE:
        key = node.function.key
        aggregates = node.function.aggregates.values()
        read: set[str] | None = {column for each in aggregates for column in each.columns}
    else:
        key = node.key
        read = _read_by_function(node, names)
    of_key = set() if key is None else _read_by_key(key, names)
    return None if read is None or of_key is None else read | of_key


def _read_by_key(key: KeySpec, names: Collection[str]) -> set[str] | None:
    return {*key.columns} if key.function is None else fields_read(key.function, names)


def _read_by_function(node: Node, names: Collection[str]) -> set[str] | None:
    function: Any = node.function
    if isinstance(function, KeyedBatchFunction):
        return None if function.columns is None else {*function.columns}
    if isinstance(function, FoldedWindows):
        return _read_by_windows(node, function, names)
    if has_timers(function):
        return None  # elements that wait for a timer are state, and its type is to stay
    if node.kind is NodeKind.TIMESTAMPS:
        assigner = function.assigner
        read_by = getattr(assigner, "extract_timestamp", assigner)
        return {assigner} if isinstance(assigner, str) else fields_read(read_by, names)
    method = _METHODS.get(node.kind)
    return None if method is None else fields_read(getattr(function, method, None), names)


def _read_by_windows(
    node: Node, function: FoldedWindows, names: Collection[str]
) -> set[str] | None:
    """What an `AggregateFunction` reads, if windows do nothing else with elements."""
    (read,) = node.inputs
    waits = len(strategies_before(read)) > 1 or has_partitions(read)
    kept = function.plan.late is not None or waits
    aggregate = function.folding.aggregate
    return None if kept or aggregate is None else fields_read(aggregate.add, names)


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
