"""Joins two keyed streams by windows: one window operator holds the elements of both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnback.functions.base import (
    CoGroupFunction,
    FlatJoinFunction,
    Function,
    JoinFunction,
    KeyedCoProcessFunction,
    RuntimeContext,
    WindowFunction,
)
from turnback.timing.window_operator import Emissions, WindowOperator, WindowPlan
from turnback.timing.window_state import WindowedStateDescriptor
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types


def tagged_type(one: TypeInfo, two: TypeInfo) -> RowTypeInfo:
    """The type of elements of either stream: the number of the stream, and one of two fields."""
    return RowTypeInfo(("number", "one", "two"), (Types.BYTE(), one, two))


class CoGroupWindow(WindowFunction):
    """Gives the elements of a window to a function, those of each stream apart."""

    def __init__(self, function: JoinFunction | FlatJoinFunction | CoGroupFunction) -> None:
        self._function: Function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        first: list[Any] = []
        second: list[Any] = []
        for number, one, two in inputs:
            if number == 1:
                first.append(one)
            else:
                second.append(two)
        function = self._function
        if isinstance(function, CoGroupFunction):
            return function.co_group(first, second) or ()
        pairs = [(one, two) for one in first for two in second]
        if isinstance(function, JoinFunction):
            return [function.join(*pair) for pair in pairs]
        assert isinstance(function, FlatJoinFunction)
        return [new for pair in pairs for new in function.join(*pair) or ()]


class WindowJoinOperator(KeyedCoProcessFunction):
    """A window operator for the elements of two streams."""

    def __init__(self, plan: WindowPlan) -> None:
        self._windows = WindowOperator(plan)

    def stored_windows(self) -> WindowedStateDescriptor:
        return self._windows.stored_windows()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._windows.open(runtime_context)

    def close(self) -> None:
        self._windows.close()

    def process_element1(self, value: Any, ctx: Any) -> Emissions:
        return self._windows.process_element((1, value, None), ctx)

    def process_element2(self, value: Any, ctx: Any) -> Emissions:
        return self._windows.process_element((2, None, value), ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Emissions:
        return self._windows.on_timer(timestamp, ctx)
