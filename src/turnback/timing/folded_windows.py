"""Windows by event time whose elements are folded into one value per pane.

Sliding windows share panes: an element is added once, and the values of panes are merged when a
window fires. A pane is state that waits for its last window; in the order of time, so that what
fires is found without a search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.errors import PlanError, StateError
from turnback.functions.aggregates import (
    Aggregate,
    Combination,
    Groups,
    definitions,
    key_columns,
    merge_accumulators,
    naming_keys,
    plan_aggregation,
    record_batch,
    results_of,
)
from turnback.functions.base import (
    AggregateFunction,
    Function,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
)
from turnback.functions.descriptors import TimeOrderedStateDescriptor
from turnback.functions.event_time import FURTHEST_TIME, MIN_TIME
from turnback.functions.partitioning import KeySpec
from turnback.timing.triggers import EventTimeTrigger
from turnback.timing.window_operator import WINDOWS, WindowAccumulator, WindowPlan
from turnback.timing.window_state import UNFORESEEN, WindowStates, keeps_window_state
from turnback.timing.windows import AlignedWindows, TimeWindow, WindowAssigner
from turnback.values.coerce import row_values
from turnback.values.columns import from_column, stream_columns, to_column
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

PANE_START = "window_start"
"""In the state of a pane, where it begins."""


class PaneFunction(Function, ABC):
    """Base of what runs windows by their panes."""

    panes: Panes
    in_order = True

    @abstractmethod
    def folded_type(self) -> TypeInfo:
        """What has become of the elements of a pane."""

    @abstractmethod
    def definition(self) -> Mapping[str, str] | None:
        """What makes that, if it is known; see `StateDescriptor`."""

    def pane_type(self) -> RowTypeInfo:
        """What is stored of a pane."""
        return RowTypeInfo((PANE_START, "value"), (Types.LONG(), self.folded_type()))

    def state(self) -> TimeOrderedStateDescriptor:
        """The state that panes are kept in, under their last millisecond."""
        stored = TimeOrderedStateDescriptor(WINDOWS, self.pane_type())
        return stored.defined_as(self.panes.definition()).accumulated_by(self.definition())

    def check_start(self, uid: str, pane: int, start: int) -> None:
        """Refuse a pane of other windows, stored by a version that did not tell which."""
        if start != self.panes.start(pane):
            raise StateError(
                f"operator {uid!r}: its state has a window, or a part of one, from {start} to "
                f"{pane + 1}, which does not match the windows of this program. Size, slide and "
                "offset of windows cannot change while windows are open: give the operator "
                "another uid, or stop the job with --drain first"
            )


class PaneWindows(PaneFunction):
    """Windows that are reduced or aggregated by a function, element by element."""

    def __init__(self, plan: WindowPlan, panes: Panes, folding: WindowAccumulator) -> None:
        self.plan = plan
        self.panes = panes
        self.folding = folding
        self.states: WindowStates | None = None

    @classmethod
    def of(cls, plan: WindowPlan) -> PaneWindows | None:
        """How to run windows by their panes.

        None if they keep all elements, have a trigger, or state of their own.
        """
        panes = Panes.of(plan.assigner)
        if panes is None or plan.folding is None or plan.keeps_elements:
            return None
        if type(plan.trigger) is not EventTimeTrigger:
            return None
        return None if keeps_window_state(plan.function) else cls(plan, panes, plan.folding)

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self.plan.function, ProcessWindowFunction):
            self.states = WindowStates(runtime_context, UNFORESEEN)
        for function in self.plan.functions():
            function.open(runtime_context)

    def close(self) -> None:
        for function in self.plan.functions():
            function.close()

    def folded_type(self) -> TypeInfo:
        return self.folding.type

    def definition(self) -> Mapping[str, str] | None:
        return self.folding.definition


@dataclass(frozen=True)
class Panes:
    """The longest spans of time that are in a window either as a whole or not at all.

    An element is in one pane, however many windows it is in. Panes and windows are known by their
    last millisecond. All methods take numbers as well as arrays of them.

    Attributes:
        size: Length of a window.
        slide: Distance from window to window; not more than the size.
        offset: Where windows begin, after 1970.
        width: Length of a pane.
    """

    size: int
    slide: int
    offset: int
    width: int

    @classmethod
    def of(cls, assigner: WindowAssigner) -> Panes | None:
        """The panes of windows by event time; None for windows that cannot share them."""
        if not isinstance(assigner, AlignedWindows) or not assigner.is_event_time:
            return None
        size = assigner.size_ms
        slide = assigner.slide_ms
        offset = assigner.offset_ms
        return cls(size, slide, offset, gcd(size, slide)) if slide <= size else None

    def definition(self) -> str:
        """Which windows these are the panes of; see `WindowAssigner.definition`."""
        return AlignedWindows(self.size, self.slide, self.offset).definition()

    def of_time(self, time: Any) -> Any:
        return time - (time - self.offset) % self.width + (self.width - 1)

    def start(self, pane: Any) -> Any:
        return pane + 1 - self.width

    def first_window(self, pane: Any) -> Any:
        return pane + (self._grid() - pane) % self.slide

    def last_window(self, pane: Any) -> Any:
        return self.window_before(pane + (self.size - self.width))

    def window_before(self, time: Any) -> Any:
        """The last window that has ended at a time."""
        return time - (time - self._grid()) % self.slide

    def any_window(self, after: int, upto: int) -> bool:
        """Whether a window ends in a span of time."""
        return after < upto and (after == MIN_TIME or self.window_before(upto) > after)

    def of_window(self, last: int) -> range:
        return range(last - self.size + self.width, last + 1, self.width)

    def window(self, last: int) -> TimeWindow:
        return TimeWindow(last + 1 - self.size, last + 1)

    def _grid(self) -> int:
        return self.offset + self.size - 1


WINDOW_START = "window_start"
WINDOW_END = "window_end"
"""The columns that tell the bounds of a window."""

Times = np.ndarray[Any, np.dtype[np.int64]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class WindowCombination(Combination):
    """Turns elements into rows of the key, the pane, and the accumulators of its elements."""

    panes: Panes
    assigner: WindowAssigner

    def over(self, panes: Times, watermarks: Times) -> Times:
        """The last window of each pane that has ended at a watermark, `MIN_TIME` if none has."""
        first = self.panes.first_window(panes)
        last = self.panes.window_before(np.maximum(watermarks, first))
        over: Times = np.where(watermarks >= first, last, MIN_TIME)
        return over


@dataclass(eq=False, repr=False)
class WindowAggregation(PaneFunction):
    """Merges what combinations give into panes, and panes into windows.

    It gives one row per key and window: the key, the bounds, and the result of every aggregate.
    """

    in_order = False

    key: KeySpec
    aggregates: Mapping[str, Aggregate]
    accumulators: RowTypeInfo
    type: RowTypeInfo
    panes: Panes

    def folded_type(self) -> TypeInfo:
        return self.accumulators

    def definition(self) -> dict[str, str]:
        return definitions(self.aggregates)

    def merge(self, columns: Sequence[pa.Array], index: Any, keys: pa.Array) -> list[pa.Array]:
        """The accumulators of groups of rows; each group has a key."""
        with naming_keys(keys):
            return merge_accumulators(self.aggregates, columns, index, len(keys))

    def results(
        self, keys: pa.Array, windows: Times, accumulators: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """What comes out of windows, which are given by their last milliseconds."""
        ends = windows + 1
        starts = ends - self.panes.size
        # At the ends of time, where global windows are, there is no timestamp for a bound.
        unbound = (ends > FURTHEST_TIME) | (starts < -FURTHEST_TIME)
        bounds = [
            pa.array(np.where(unbound, 0, each) * 1000, pa.int64(), mask=unbound).cast(
                pa.timestamp("us", "UTC")
            )
            for each in (starts, ends)
        ]
        results = results_of(self.aggregates, accumulators)
        return record_batch([*key_columns(keys, self.key), *bounds, *results], self.type)


class DeclaredAggregates(AggregateFunction):
    """Declared aggregates as a function of one element after the other.

    For windows whose elements cannot be combined first, because of what may happen between two.
    """

    def __init__(
        self, element_type: TypeInfo, aggregates: Mapping[str, Aggregate], accumulators: RowTypeInfo
    ) -> None:
        self._element_type = element_type
        self._aggregates = aggregates
        self._types = accumulators.types

    def create_accumulator(self) -> Any:
        return (None,) * len(self._types)

    def add(self, value: Any, accumulator: Any) -> Any:
        kind = self._element_type
        one = Groups(np.zeros(1, np.int64), 1)
        values = row_values(value, kind) if isinstance(kind, RowTypeInfo) else (value,)
        element = {
            name: to_column([each], type_)
            for (name, type_), each in zip(stream_columns(kind), values, strict=True)
        }
        combined = [
            aggregate.combine(one, *(element[name] for name in aggregate.columns))
            for aggregate in self._aggregates.values()
        ]
        return self._merged(self._columns(accumulator), combined)

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return self._merged(self._columns(acc_a), self._columns(acc_b))

    def get_result(self, accumulator: Any) -> list[pa.Array]:
        """Columns of one value each."""
        return results_of(self._aggregates, self._columns(accumulator))

    def _columns(self, accumulator: Any) -> list[pa.Array]:
        return [to_column([each], t) for each, t in zip(accumulator, self._types, strict=True)]

    def _merged(self, one: Sequence[pa.Array], other: Sequence[pa.Array]) -> Any:
        pairs = zip(one, other, strict=True)
        both = [pa.concat_arrays([first, second.cast(first.type)]) for first, second in pairs]
        merged = merge_accumulators(self._aggregates, both, np.zeros(2, np.int64), 1)
        return tuple(from_column(c, t)[0] for c, t in zip(merged, self._types, strict=True))


class DeclaredRow(WindowFunction):
    """Makes the row of a window: the key, the bounds, and the result of every aggregate."""

    def __init__(self, type: RowTypeInfo, results: int) -> None:
        self._keys = len(type.types) - results - 2
        self._results = type.types[self._keys + 2 :]

    def apply(self, key: Any, window: TimeWindow, inputs: Any) -> Iterator[Any]:
        (results,) = inputs
        keys = (key,) if self._keys == 1 else tuple(key)
        is_unbound = window.end > FURTHEST_TIME or window.start < -FURTHEST_TIME
        bounds = (None, None) if is_unbound else map(_instant, window)
        values = (
            from_column(column.cast(kind.arrow()), kind)[0]
            for column, kind in zip(results, self._results, strict=True)
        )
        yield (*keys, *bounds, *values)


def _fires_once(plan: WindowPlan) -> bool:
    """Whether each window fires when its end has come, and late elements leave no trace."""
    plain = type(plan.trigger) is EventTimeTrigger and plan.evictor is None
    return plain and not plan.lateness_ms and plan.late is None


def _instant(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


CombinedWindows = tuple[WindowCombination, WindowAggregation]
"""What combines elements before the shuffle, and what puts that together behind it."""


@dataclass(frozen=True)
class DeclaredWindows:
    """A declared aggregation in windows, in both of the ways in which it can be run.

    Attributes:
        plan: To aggregate one element after the other.
        combined: To combine elements first; None where that is not possible.
    """

    type: RowTypeInfo
    plan: WindowPlan
    combined: CombinedWindows | None


def plan_window_aggregation(
    plan: WindowPlan, key: KeySpec, aggregates: Mapping[str, Aggregate]
) -> DeclaredWindows:
    """Check a declared aggregation in windows."""
    combination, aggregation = plan_aggregation(plan.element_type, key, aggregates)
    keys = aggregation.key.columns
    for name in (WINDOW_START, WINDOW_END):
        if name in keys or name in aggregates:
            raise PlanError(
                f"aggregate: {name!r} is the name of a window bound; choose another name for the "
                f"{'column of the key' if name in keys else 'aggregate'}"
            )
    states = aggregation.accumulators
    results = aggregation.type.types[len(keys) :]
    bounds = (Types.INSTANT(), Types.INSTANT())
    names = (*keys, WINDOW_START, WINDOW_END, *aggregates)
    type_ = RowTypeInfo(names, (*key.types, *bounds, *results))
    function = DeclaredAggregates(plan.element_type, combination.aggregates, states)
    by_element = replace(
        plan,
        folding=WindowAccumulator(
            states, aggregate=function, definition=definitions(combination.aggregates)
        ),
        function=DeclaredRow(type_, len(results)),
    )
    panes = Panes.of(plan.assigner)
    if panes is None or not _fires_once(plan):
        return DeclaredWindows(type_, by_element, None)
    combined = RowTypeInfo(
        (*keys, PANE_START, *aggregates), (*key.types, Types.LONG(), *states.types)
    )
    return DeclaredWindows(
        type_,
        by_element,
        (
            WindowCombination(key, combination.aggregates, combined, panes, plan.assigner),
            WindowAggregation(aggregation.key, combination.aggregates, states, type_, panes),
        ),
    )
