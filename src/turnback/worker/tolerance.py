"""Lets an operator go on without elements at which its function fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from turnback.errors import PlanError
from turnback.functions.base import OutputTag, TimerFunction
from turnback.plan.bad_records import DEAD_LETTER, DEAD_LETTERS, ErrorPolicy, Letter
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator, has_timers
from turnback.state.backend import KeyedStateBackend
from turnback.values.coerce import INT_RANGES
from turnback.values.row import Row, row_class
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import BasicTypeInfo, RowTypeInfo, TypeInfo
from turnback.worker.event_time import TaskTime
from turnback.worker.output import FunctionOutput, is_sent_aside

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


_SHOWN = 1_000
"""So many characters of an element or an error are kept as text."""
_LETTER_TAG = OutputTag(DEAD_LETTERS, DEAD_LETTER)
_TWO_INPUTS = frozenset({NodeKind.CO_MAP, NodeKind.CO_FLAT_MAP, NodeKind.CO_PROCESS})


class ElementGuard:
    """Calls the function of an operator; an element at which it fails leaves no trace."""

    def __init__(
        self, operator: Operator, backend: KeyedStateBackend | None, time: TaskTime
    ) -> None:
        self._operator = operator
        self._backend = backend
        self._time = time
        self._encode = [Serializer(each.type).encode for each in operator.inputs]
        self._types = [each.type.describe() for each in operator.inputs]
        self._side_outputs = {tag: type for tag, _, type in operator.side_outputs}
        self._fits = surely_fits(operator.type)
        self._seen = self.failed = 0
        self.job_id = ""
        self.attempt = 0
        """Of the epoch that runs."""

    def begin(self) -> None:
        """Start an epoch."""
        self._seen = 0
        self.failed = 0

    def operator(self) -> Operator:
        """The same operator, with a function that does not fail."""
        operator = self._operator
        keyed = self._backend is not None
        if operator.kind is NodeKind.FILTER:
            functions: tuple[ElementFunction, ...] = (_passing(operator.function.filter),)
        else:
            functions = element_functions(operator)
        calls = [self._tolerant(number, each) for number, each in enumerate(functions)]
        if operator.kind in _TWO_INPUTS:
            kind = NodeKind.CO_PROCESS
        else:
            kind = NodeKind.KEYED_PROCESS if keyed else NodeKind.PROCESS
        timed = has_timers(operator.function)
        function = (_TolerantTimed if timed else _Tolerant)(calls, operator.function)
        return replace(operator, kind=kind, function=function, on_error=ErrorPolicy.FAIL)

    def _tolerant(self, input: int, function: ElementFunction) -> ElementFunction:
        backend = self._backend
        check = self._check

        def call(row: Any, context: Any) -> Iterable[Any]:
            self._seen += 1
            saved = [] if backend is None else backend.save()
            try:
                elements = [*(function(row, context) or ())]
                check(elements)
            except PlanError:
                raise  # it is the program that is wrong
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                if backend is not None:
                    backend.restore(saved)
                return self._left_out(input, row, context.timestamp(), error)
            return elements

        return call

    def _check(self, elements: list[Any]) -> None:
        """Raise if an element does not fit the type of its output, as it would later."""
        operator = self._operator
        fits = self._fits
        main: list[Any] = []
        for element in elements:
            if is_sent_aside(element):
                self._check_side(*element)
            else:
                main.append(element)
        if operator.type is not None and not all(map(fits, main)):
            who = f"operator {operator.uid!r} ({operator.name})"
            assert FunctionOutput(operator.type, main, who).arrow is not None

    def _check_side(self, tag: OutputTag, element: Any) -> None:
        operator = self._operator
        type_ = self._side_outputs.get(tag.tag_id)
        if type_ is None:
            return  # nobody reads it
        who = f"operator {operator.uid!r} ({operator.name}), side output {tag.tag_id!r}"
        assert FunctionOutput(type_, [element], who, operator).arrow is not None

    def _left_out(self, input: int, row: Any, time: int | None, error: Exception) -> Iterable[Any]:
        """What is given instead of what an element would have become: its dead letter, if wanted.

        As to a side output, so that it has the time and the place of its element.
        """
        self.failed += 1
        if DEAD_LETTERS not in self._side_outputs:
            return ()
        letter = Letter(
            job_id=self.job_id,
            operator=self._operator.uid,
            attempt=self.attempt,
            epoch=self._time.number,
            task=self._time.task,
            position=self._seen - 1,
            input=input,
            time=time,
            type=self._types[input],
            element=self._encode[input](row),
        )
        key = None if self._backend is None else f"{self._backend.declared_key()!r:.{_SHOWN}}"
        why = f"{type(error).__name__}: {error}"
        fields = (
            letter.operator,
            key,
            f"{row!r:.{_SHOWN}}",
            f"{why:.{_SHOWN}}",
            letter.epoch,
            letter.task,
            letter.position,
            letter.encode(),
        )
        return ((_LETTER_TAG, fields),)


def surely_fits(type_: TypeInfo | None) -> Callable[[Any], bool]:
    """A quick look at an element: whether it fits a type. False if it takes more than that."""
    if not isinstance(type_, RowTypeInfo):
        return _value_fits(type_)
    fits = tuple(map(_value_fits, type_.types))
    width = len(type_.types)
    declared = type_.python_class or row_class(type_.names)
    classes = {tuple, Row, *((declared,) if issubclass(declared, tuple) else ())}

    def row_fits(row: Any) -> bool:
        if type(row) not in classes or len(row) != width:
            return False
        return all(each(value) for each, value in zip(fits, row, strict=True))

    return row_fits


def _value_fits(type_: TypeInfo | None) -> Callable[[Any], bool]:
    name = type_.name if isinstance(type_, BasicTypeInfo) else ""
    if name == "string":
        return lambda value: value is None or (type(value) is str and value.isascii())
    if name in INT_RANGES:
        least, most = INT_RANGES[name]
        return lambda value: value is None or (type(value) is int and least <= value <= most)
    exact = {"double": float, "boolean": bool}.get(name)
    return lambda value: value is None or (exact is not None and type(value) is exact)


class _Tolerant:
    """Stands for a function of one input or two."""

    def __init__(self, calls: list[ElementFunction], function: Any) -> None:
        self.process_element = self.process_element1 = calls[0]
        self.process_element2 = calls[-1]
        self.wrapped = function


class _TolerantTimed(_Tolerant, TimerFunction):
    """The same for one with timers, which may fail."""

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return self.wrapped.on_timer(timestamp, ctx)


def _passing(passes: Callable[[Any], Any]) -> ElementFunction:
    return lambda value, ctx: (value,) if passes(value) else ()
