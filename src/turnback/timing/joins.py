"""Joins of two streams: within windows, and within an interval of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from turnback.errors import PlanError
from turnback.functions.base import (
    CoGroupFunction,
    FlatJoinFunction,
    Function,
    JoinFunction,
    KeyedCoProcessFunction,
    OutputTag,
    ProcessJoinFunction,
    RuntimeContext,
    WindowFunction,
)
from turnback.functions.descriptors import MapStateDescriptor
from turnback.timing.window_operator import TimedResults, WindowOperator, WindowPlan
from turnback.timing.window_state import WindowedStateDescriptor
from turnback.values.typeinfo import ListTypeInfo, RowTypeInfo, TypeInfo, Types


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

    def process_element1(self, value: Any, ctx: Any) -> TimedResults:
        return self._windows.process_element((1, value, None), ctx)

    def process_element2(self, value: Any, ctx: Any) -> TimedResults:
        return self._windows.process_element((2, None, value), ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> TimedResults:
        return self._windows.on_timer(timestamp, ctx)


LEFT = "join.left"
RIGHT = "join.right"


@dataclass(frozen=True)
class Interval:
    """How much later than its left element the right one of a pair is, in milliseconds.

    Both bounds are part of it; a negative number means that it is earlier.
    """

    lower_ms: int
    upper_ms: int

    def reversed(self) -> Interval:
        """How much later the left one is than the right one."""
        return Interval(-self.upper_ms, -self.lower_ms)

    def gone_at(self, time: int) -> int:
        """The watermark at which an element of this time has no partner to come any more."""
        # One exactly at the watermark is not late, so partners are kept a moment longer.
        return time + max(self.upper_ms, 0) + 1


@dataclass(frozen=True)
class IntervalJoinPlan:
    """Everything an interval join is made of.

    Attributes:
        late_left: Where left elements go that are later than the watermark; None drops them.
        late_right: The same for right elements.
    """

    interval: Interval
    types: tuple[TypeInfo, TypeInfo]
    function: ProcessJoinFunction | None = None
    late_left: OutputTag | None = None
    late_right: OutputTag | None = None

    def with_bounds(self, lower_ms: int, upper_ms: int) -> IntervalJoinPlan:
        if lower_ms > upper_ms:
            raise PlanError(
                "interval_join: the lower bound must not be above the upper bound, but the "
                f"interval is {lower_ms} ms to {upper_ms} ms, both inclusive"
            )
        return replace(self, interval=Interval(lower_ms, upper_ms))


class Pair(NamedTuple):
    """The times of a pair; the context of a `ProcessJoinFunction`."""

    left: int
    right: int

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return max(self)


class IntervalJoinOperator(KeyedCoProcessFunction):
    """Keeps elements for as long as a partner may come, and gives each pair once.

    Elements come in the order of watermarks, so which are late, and in which order pairs are found,
    does not depend on where epochs end.
    """

    def __init__(self, plan: IntervalJoinPlan) -> None:
        assert plan.function is not None
        self._plan = plan
        self._function = plan.function

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)
        self._left, self._right = (
            runtime_context.get_map_state(
                MapStateDescriptor(name, Types.LONG(), ListTypeInfo(type_))
            )
            for name, type_ in zip((LEFT, RIGHT), self._plan.types, strict=True)
        )

    def close(self) -> None:
        self._function.close()

    def process_element1(self, value: Any, ctx: Any) -> TimedResults:
        time = self._time(ctx)
        interval = self._plan.interval
        if time < ctx.timer_service().current_watermark():
            return _late(time, value, self._plan.late_left)
        self._keep(self._left, time, value, interval, ctx)
        return TimedResults(
            (max(time, at), self._function.process_element(value, other, Pair(time, at)))
            for at, other in _partners(self._right, time, interval)
        )

    def process_element2(self, value: Any, ctx: Any) -> TimedResults:
        time = self._time(ctx)
        interval = self._plan.interval.reversed()
        if time < ctx.timer_service().current_watermark():
            return _late(time, value, self._plan.late_right)
        self._keep(self._right, time, value, interval, ctx)
        return TimedResults(
            (max(time, at), self._function.process_element(other, value, Pair(at, time)))
            for at, other in _partners(self._left, time, interval)
        )

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        """Forget the elements that no partner can come for any more."""
        interval = self._plan.interval
        for held, each in ((self._left, interval), (self._right, interval.reversed())):
            kept = []
            for time in held:
                if each.gone_at(time) <= timestamp:
                    held.remove(time)
                else:
                    kept.append(time)
            if kept and min(kept) < timestamp:
                # The timer may be its own, from a time when the interval was shorter.
                ctx.timer_service().register_event_time_timer(each.gone_at(min(kept)))

    def _time(self, ctx: Any) -> int:
        time: int | None = ctx.timestamp()
        if time is None:
            raise PlanError(
                "interval_join needs timestamps, but the elements have none: call "
                "assign_timestamps_and_watermarks(...) before key_by, on both streams"
            )
        return time

    def _keep(self, held: Any, time: int, value: Any, interval: Interval, ctx: Any) -> None:
        held.put(time, [*(held.get(time) or ()), value])
        ctx.timer_service().register_event_time_timer(interval.gone_at(time))


def _partners(held: Any, time: int, interval: Interval) -> list[tuple[int, Any]]:
    """The elements within the interval, with their times, the earliest first."""
    lower = time + interval.lower_ms
    upper = time + interval.upper_ms
    times = sorted(at for at in held if lower <= at <= upper)
    return [(at, value) for at in times for value in held.get(at)]


def _late(time: int, value: Any, tag: OutputTag | None) -> TimedResults:
    return TimedResults([] if tag is None else [(time, [(tag, value)])])
