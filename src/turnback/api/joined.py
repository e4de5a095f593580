"""Joins of two streams: by intervals of event time, and by windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from turnback.api.functions import checked_instance, name_of, output_type_of
from turnback.api.keys import Selector, keyed_by
from turnback.core.errors import PlanError
from turnback.functions.base import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    OutputTag,
    ProcessJoinFunction,
    declared_states,
)
from turnback.functions.event_time import Duration, Time, as_milliseconds
from turnback.plan.graph import NodeKind
from turnback.timing.interval_join import Interval, IntervalJoinOperator, IntervalJoinPlan
from turnback.timing.triggers import Evictor, Trigger
from turnback.timing.window_join import CoGroupWindow, WindowJoinOperator, tagged_type
from turnback.timing.window_operator import WindowPlan
from turnback.timing.windows import WindowAssigner

if TYPE_CHECKING:
    from turnback.api.stream import DataStream, KeyedStream

_ANY_TIME = -(2**62)


class IntervalJoin:
    """Two keyed streams whose elements are to be joined by time."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        self._left = left
        self._right = right

    def between(self, lower_bound: Time | Duration, upper_bound: Time | Duration) -> IntervalJoined:
        """Join elements if the right one is later than the left one by so much.

        Args:
            lower_bound: At least so much later; negative, if it may be earlier.
            upper_bound: At most so much later.
        """
        lower, upper = (
            as_milliseconds(bound, f"the {which} bound of an interval join", least=_ANY_TIME)
            for which, bound in (("lower", lower_bound), ("upper", upper_bound))
        )
        plan = IntervalJoinPlan(Interval(0, 0), (self._left.type, self._right.type))
        return IntervalJoined(self._left, self._right, plan.with_bounds(lower, upper))


class IntervalJoined:
    """Two keyed streams that are joined where elements are at most so far apart."""

    def __init__(self, left: KeyedStream, right: KeyedStream, plan: IntervalJoinPlan) -> None:
        self._left = left
        self._right = right
        self._plan = plan

    def lower_bound_exclusive(self) -> IntervalJoined:
        """Leave out pairs exactly at the lower bound."""
        bounds = self._plan.interval
        return self._with(self._plan.with_bounds(bounds.lower_ms + 1, bounds.upper_ms))

    def upper_bound_exclusive(self) -> IntervalJoined:
        """Leave out pairs exactly at the upper bound."""
        bounds = self._plan.interval
        return self._with(self._plan.with_bounds(bounds.lower_ms, bounds.upper_ms - 1))

    def side_output_left_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send left elements that are later than the watermark to a side output."""
        tag = checked_instance(output_tag, OutputTag, "side_output_left_late_data")
        return self._with(replace(self._plan, late_left=tag))

    def side_output_right_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send right elements that are later than the watermark to a side output."""
        tag = checked_instance(output_tag, OutputTag, "side_output_right_late_data")
        return self._with(replace(self._plan, late_right=tag))

    def process(
        self, process_join_function: ProcessJoinFunction, output_type: Any = None
    ) -> DataStream:
        """Give every pair to a function; what comes out has the later timestamp of the two."""
        given = process_join_function
        function = _stateless(checked_instance(given, ProcessJoinFunction, "process"))
        type_ = output_type_of(output_type, None, "process")
        operator = IntervalJoinOperator(replace(self._plan, function=function))
        return self._left._add_two(
            self._right, NodeKind.CO_PROCESS, name_of(function), operator, type_
        )

    def _with(self, plan: IntervalJoinPlan) -> IntervalJoined:
        return IntervalJoined(self._left, self._right, plan)


class JoinedStreams:
    """Two streams that are to be joined by key and window; `where` says how the first is keyed."""

    functions: tuple[type, ...] = (JoinFunction, FlatJoinFunction)

    def __init__(self, first: DataStream, second: DataStream) -> None:
        self._first = first
        self._second = second

    def where(self, key_selector: Selector, key_type: Any = None) -> JoinedWhere:
        """Say how the first stream is keyed: by a column, several in a list, or a function."""
        return JoinedWhere(
            keyed_by(self._first, key_selector, key_type), self._second, self.functions
        )


class CoGroupedStreams(JoinedStreams):
    """Two streams whose elements are to be grouped by key and window."""

    functions = (CoGroupFunction,)


@dataclass(frozen=True)
class _Sides:
    """Two streams, and the classes of functions that what becomes of them takes."""

    _first: DataStream
    _second: DataStream
    _functions: tuple[type, ...]


class JoinedWhere(_Sides):
    """Two streams of which the first is keyed."""

    def equal_to(self, key_selector: Selector, key_type: Any = None) -> JoinedKeyed:
        """Say how the second stream is keyed."""
        second = keyed_by(self._second, key_selector, key_type)
        return JoinedKeyed(self._first, second, self._functions)


class JoinedKeyed(_Sides):
    """Two keyed streams, to be put into windows."""

    def window(self, window_assigner: WindowAssigner) -> JoinedWindows:
        """Put the elements of both streams into windows."""
        assigner = checked_instance(window_assigner, WindowAssigner, "window")
        type_ = tagged_type(self._first.type, self._second.type)
        plan = WindowPlan(assigner, assigner.default_trigger(), type_)
        return JoinedWindows(self._first, self._second, self._functions, plan)


@dataclass(frozen=True)
class JoinedWindows(_Sides):
    """The elements of two streams in windows.

    Triggers, evictors and functions of a dynamic gap get elements as rows of three fields: the
    `number` of the stream, 1 or 2, and the element in `one` or in `two`.
    """

    _plan: WindowPlan

    def trigger(self, trigger: Trigger) -> JoinedWindows:
        """Let windows fire when a trigger says so."""
        return self._with(trigger=checked_instance(trigger, Trigger, "trigger"))

    def evictor(self, evictor: Evictor) -> JoinedWindows:
        """Remove elements before or after a window fires."""
        return self._with(evictor=checked_instance(evictor, Evictor, "evictor"))

    def allowed_lateness(self, time_ms: int | Duration) -> JoinedWindows:
        """Let windows take elements for so long after their end; each fires its window again."""
        given = Duration(time_ms) if type(time_ms) is int else time_ms
        return self._with(lateness_ms=as_milliseconds(given, "allowed_lateness"))

    def apply(
        self,
        function: JoinFunction | FlatJoinFunction | CoGroupFunction | Callable[[Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Give the elements of each window to a function: by pairs, or all of them at once.

        A plain function takes the place of a `JoinFunction` or a `CoGroupFunction`.
        """
        given: Any = function
        if callable(given) and not isinstance(given, type):
            given = (_PlainCoGroup if CoGroupFunction in self._functions else _PlainJoin)(given)
        given = _stateless(checked_instance(given, self._functions, "apply"))
        annotated = given.join if isinstance(given, JoinFunction) else None
        type_ = output_type_of(output_type, annotated, "apply")
        operator = WindowJoinOperator(replace(self._plan, function=CoGroupWindow(given)))
        return self._first._add_two(
            self._second, NodeKind.CO_PROCESS, name_of(function), operator, type_
        )

    def _with(self, **changes: Any) -> JoinedWindows:
        return replace(self, _plan=replace(self._plan, **changes))


class _PlainJoin(JoinFunction):
    """A plain function of two elements."""

    join: Any = None

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.join = function


class _PlainCoGroup(CoGroupFunction):
    """A plain function of two lists."""

    co_group: Any = None

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.co_group = function


def _stateless(function: Any) -> Any:
    for descriptor in declared_states(function).values():
        raise PlanError(
            f"{type(function).__name__} declares the state {descriptor.name!r}, which a function "
            f"of a join cannot; use connect(...) with a KeyedCoProcessFunction"
        )
    return function
