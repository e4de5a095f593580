"""Windows by event time whose elements are folded into one value per pane.

Sliding windows share panes: an element is added once, and the values of panes are merged when a
window fires. A pane is state that waits for its last window; in the order of time, so that what
fires is found without a search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from turnback.core.errors import StateError
from turnback.functions.base import Function, ProcessWindowFunction, RuntimeContext
from turnback.functions.descriptors import WaitingStateDescriptor
from turnback.functions.event_time import MIN_TIME
from turnback.timing.triggers import EventTimeTrigger
from turnback.timing.window_operator import WINDOWS, Folding, WindowPlan
from turnback.timing.window_state import UNFORESEEN, WindowStates, keeps_window_state
from turnback.timing.windows import AlignedWindows, TimeWindow, WindowAssigner
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

PANE_START = "window_start"
"""In the state of a pane, where it begins."""


class PaneFunction(Function, ABC):
    """Base of what runs windows by their panes.

    Attributes:
        panes: How windows are cut.
        in_order: Whether elements are processed one after the other.
    """

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

    def state(self) -> WaitingStateDescriptor:
        """The state that panes are kept in, under their last millisecond."""
        stored = WaitingStateDescriptor(WINDOWS, self.pane_type())
        return stored.defined_as(self.panes.definition()).accumulated_by(self.definition())

    def check_start(self, uid: str, pane: int, start: int) -> None:
        """Refuse a pane of other windows, stored by a version that did not tell which."""
        if start != self.panes.start(pane):
            raise StateError(
                f"operator {uid!r}: its state has a window, or a part of one, from {start} to "
                f"{pane + 1}, where the windows of this program begin and end elsewhere. Size, "
                f"slide and offset of windows cannot change as long as windows are open: give the "
                f"operator another uid, or stop the job with --drain first"
            )


class FoldedWindows(PaneFunction):
    """Windows that are reduced or aggregated by a function, element by element."""

    def __init__(self, plan: WindowPlan, panes: Panes, folding: Folding) -> None:
        self.plan = plan
        self.panes = panes
        self.folding = folding
        self.states: WindowStates | None = None

    @classmethod
    def of(cls, plan: WindowPlan) -> FoldedWindows | None:
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
        """The pane of a time."""
        return time - (time - self.offset) % self.width + (self.width - 1)

    def start(self, pane: Any) -> Any:
        """Where a pane begins."""
        return pane + 1 - self.width

    def first_window(self, pane: Any) -> Any:
        """The first window that a pane is in."""
        return pane + (self._grid() - pane) % self.slide

    def last_window(self, pane: Any) -> Any:
        """The last window that a pane is in."""
        return self.window_before(pane + (self.size - self.width))

    def window_before(self, time: Any) -> Any:
        """The last window that has ended at a time."""
        return time - (time - self._grid()) % self.slide

    def any_window(self, after: int, upto: int) -> bool:
        """Whether a window ends in a span of time."""
        return after < upto and (after == MIN_TIME or self.window_before(upto) > after)

    def of_window(self, last: int) -> range:
        """The panes of a window."""
        return range(last - self.size + self.width, last + 1, self.width)

    def window(self, last: int) -> TimeWindow:
        """The window with this last millisecond."""
        return TimeWindow(last + 1 - self.size, last + 1)

    def _grid(self) -> int:
        return self.offset + self.size - 1
