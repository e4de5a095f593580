"""What functions give to the main output and to side outputs, with the element it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pyarrow as pa

from turnback.errors import ElementTypeError, TooLargeError
from turnback.functions.base import OutputTag, user_function
from turnback.plan.plan import Operator
from turnback.plan.user_code import operator_place, yield_hint
from turnback.values.columns import Batch
from turnback.values.declarations import declared_elements, is_flat
from turnback.values.freeze import Freezer
from turnback.values.typeinfo import TypeInfo
from turnback.worker.event_time import Stamps

_MOST_SEEN = 10_000
"""Where a function can reach more than this, a tag may be among it."""


class FunctionOutput(Batch):
    """Elements as a user's function gave them: tuples, dicts, rows without names; frozen.

    Whoever reads them one by one gets rows and values as declared, whether or not there is a
    shuffle in between; a reader of columns does not pay for that.
    """

    __slots__ = ("_declared", "_from", "_operator")

    def __init__(
        self, type: TypeInfo, rows: list[Any], operator: str, made_by: Operator | None = None
    ) -> None:
        super().__init__(type, rows)
        self._operator = operator
        self._from = made_by
        self._declared: list[Any] | None = None

    @property
    def rows(self) -> list[Any]:
        if self._declared is None:
            try:
                self._declared = self._as_declared()
            except ElementTypeError as e:
                raise self._mismatch(e) from None
        return self._declared

    @property
    def arrow(self) -> pa.RecordBatch:
        try:
            return super().arrow
        except ElementTypeError as e:
            raise self._mismatch(e) from None

    def _as_declared(self) -> list[Any]:
        declared = None
        if is_flat(self.type):
            declared = declared_elements(self.type)(self._rows or [])
        if declared is None:  # as a shuffle would make them
            declared = Batch(self.type, super().arrow).rows
        return declared

    def _part(self, rows: list[Any]) -> Batch:
        return FunctionOutput(self.type, rows, self._operator, self._from)

    def _mismatch(self, error: ElementTypeError) -> ElementTypeError:
        if isinstance(error, TooLargeError):
            return TooLargeError(f"the output of {self._operator} is too large: {error}")
        advice = "" if self._from is None else yield_hint(self._from) + operator_place(self._from)
        return ElementTypeError(
            f"{self._operator} returned an element that does not match its output type: "
            f"{error}{advice}"
        )


def is_sent_aside(element: Any) -> bool:
    """Whether a function gives an element to a side output: as a tuple with its tag."""
    return type(element) is tuple and len(element) == 2 and type(element[0]) is OutputTag


def may_emit_side_outputs(function: Any) -> bool:
    """Whether a process function may give elements to side outputs: it can see a tag somewhere.

    Whatever its methods can reach by a name counts: attributes, globals, modules, other functions.
    """
    found = [user_function(function)]
    known: set[int] = set()
    while found:
        each = found.pop()
        if each is OutputTag or type(each) is OutputTag:
            return True
        if id(each) in known:
            continue
        known.add(id(each))
        if len(known) > _MOST_SEEN:
            return True
        found += _seen_from(each)
        if len(known) == 1:
            found += [vars(cls) for cls in type(each).__mro__ if cls.__module__ != "builtins"]
            found += vars(each).values()
    return False


def _seen_from(value: Any) -> Iterable[Any]:
    """What code may reach through a value: what a function names, or a container holds."""
    if isinstance(value, staticmethod | classmethod | MethodType):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, FunctionType):
        return _named_in(value)
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


def _named_in(function: FunctionType) -> list[Any]:
    """What a function refers to; of modules and classes, what it names of them."""
    names = _names(function.__code__)
    cells = [cell for cell in function.__closure__ or () if cell != CellType()]
    seen = [cell.cell_contents for cell in cells]
    seen += [function.__globals__[name] for name in names if name in function.__globals__]
    holders = [each for each in seen if isinstance(each, ModuleType | type)]
    return seen + [vars(each)[name] for each in holders for name in names if name in vars(each)]


def _names(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


class Collected:
    """What a function gives for the elements of a batch, one after the other.

    A tuple of an `OutputTag` and an element goes to that side output, if anything reads it. All
    elements are frozen, since the function may go on changing them.
    """

    def __init__(self, operator: Operator, freezers: Mapping[str | None, Freezer]) -> None:
        self._operator = operator
        self._parts = {tag: _Part(freezer) for tag, freezer in freezers.items()}
        self._main = self._parts[None]

    def add(self, elements: Iterable[Any], index: int) -> None:
        """Add what was made of one element, which is known by its index."""
        for element in elements:
            part = self._main
            # As in `is_sent_aside`, without a call for every element.
            if type(element) is tuple and len(element) == 2 and type(element[0]) is OutputTag:
                tag, element = element
                if tag.tag_id not in self._parts:
                    continue  # nobody reads it
                part = self._parts[tag.tag_id]
            part.rows.append(part.freeze(element))
            part.indices.append(index)

    def main(self, stamps: Stamps | None) -> Batch | None:
        """The main output; `stamps` are those of the elements it was made of."""
        return self._batch(None, self._operator.type, stamps)

    def sides(self, stamps: Stamps | None) -> list[tuple[int, Batch]]:
        """The side outputs, each for the operator that stands for it."""
        batches = []
        for tag, node, type in self._operator.side_outputs:
            batch = self._batch(tag, type, stamps)
            if batch is not None:
                batches.append((node, batch))
        return batches

    def _batch(self, tag: str | None, type: TypeInfo | None, stamps: Stamps | None) -> Batch | None:
        part = self._parts[tag]
        if not part.rows or type is None:
            return None
        which = f"operator {self._operator.uid!r} ({self._operator.name})"
        which += f", side output {tag!r}" if tag is not None else ""
        batch = FunctionOutput(type, part.rows, which, self._operator)
        batch.stamps = None if stamps is None else stamps.take(part.indices)
        return batch


class _Part:
    """One of the outputs."""

    __slots__ = ("freeze", "indices", "rows")

    def __init__(self, freezer: Freezer) -> None:
        self.freeze = freezer.freeze
        self.rows: list[Any] = []
        self.indices: list[int] = []
