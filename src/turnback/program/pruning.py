"""Which columns of a source are needed: the others are neither read, nor shuffled, nor unpacked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from turnback.program.fields_read import fields_read
from turnback.program.functions import KeyedBatchFunction
from turnback.program.graph import PASSED_THROUGH, KeySpec, Node, NodeKind
from turnback.program.timers import has_timers
from turnback.types.typeinfo import RowTypeInfo, TypeInfo

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
    """By id, the type of what is read of a source, and of what operators pass on of it as it is."""
    type = source.type
    assert type is not None
    if isinstance(type, RowTypeInfo) and type.python_class is None:
        passing, readers = [source], list[Node]()
        for node in passing:  # which grows
            readers += readers_of(node)
            passing += [each for each in readers_of(node) if each.kind in _PASSING_ON]
        needed = _union(_columns_read(reader, type.names) for reader in readers)
        if needed is not None:
            fields = [each for each in type.fields() if each[0] in needed] or type.fields()[:1]
            names, types = zip(*fields, strict=True)
            return {node.id: RowTypeInfo(names, types) for node in passing}
    return {source.id: type}


def _union(parts: Iterable[set[str] | None]) -> set[str] | None:
    union: set[str] = set()
    for part in parts:
        if part is None:
            return None
        union |= part
    return union


def _columns_read(node: Node, names: Collection[str]) -> set[str] | None:
    """The columns of its input that an operator reads; None for all of them."""
    if any(each.kind in PASSED_THROUGH for each in node.inputs):
        return None
    if node.kind is NodeKind.COMBINE:
        key, aggregates = node.function.key, node.function.aggregates.values()
        read: set[str] | None = {column for each in aggregates for column in each.columns}
    else:
        key, read = node.key, _read_by_function(node, names)
    of_key = set() if key is None else _read_by_key(key, names)
    return None if read is None or of_key is None else read | of_key


def _read_by_key(key: KeySpec, names: Collection[str]) -> set[str] | None:
    return {*key.columns} if key.function is None else fields_read(key.function, names)


def _read_by_function(node: Node, names: Collection[str]) -> set[str] | None:
    function: Any = node.function
    if isinstance(function, KeyedBatchFunction):
        return None if function.columns is None else {*function.columns}
    if has_timers(function):
        return None  # elements that wait for a timer are state, and its type is to stay
    if node.kind is NodeKind.TIMESTAMPS:
        assigner = function.assigner
        read_by = getattr(assigner, "extract_timestamp", assigner)
        return {assigner} if isinstance(assigner, str) else fields_read(read_by, names)
    method = _METHODS.get(node.kind)
    return None if method is None else fields_read(getattr(function, method, None), names)
