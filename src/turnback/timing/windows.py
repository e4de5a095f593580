"""Windows: which of them an element belongs to; PyFlink's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from turnback.core.units import format_duration
from turnback.errors import PlanError
from turnback.functions.event_time import MAX_TIME, Time, as_milliseconds
from turnback.timing.triggers import (
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
)


class TimeWindow(NamedTuple):
    """A span of time in milliseconds, from `start` up to but not including `end`."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond that belongs to it."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether they overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


GLOBAL_WINDOW = TimeWindow(0, MAX_TIME)
"""The one window of `GlobalWindows`."""


class WindowAssigner(ABC):
    """Puts elements into windows.

    Attributes:
        is_event_time: Whether it goes by event time, or else by the clock.
        merges: Whether windows that touch become one.
    """

    is_event_time: bool = True
    merges: bool = False

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: int) -> Collection[TimeWindow]:
        """The windows of an element with this timestamp."""

    def default_trigger(self) -> Trigger:
        """What fires windows if nothing else is said."""
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()

    def definition(self) -> str | None:
        """What is stored with windows, and has to be the same for them to be restored.

        For people as well as for comparison, so a released text never changes. None: windows of
        before are always taken over.
        """
        return None

    def _clock(self) -> str:
        return "by event time" if self.is_event_time else "by the clock"


@dataclass(frozen=True)
class AlignedWindows(WindowAssigner):
    """Windows of one size at equal distances."""

    size_ms: int
    slide_ms: int
    offset_ms: int

    def assign_windows(self, element: Any, timestamp: int) -> Collection[TimeWindow]:
        slide = self.slide_ms
        size = self.size_ms
        last = timestamp - (timestamp - self.offset_ms) % slide
        return [TimeWindow(start, start + size) for start in range(last, timestamp - size, -slide)]

    def definition(self) -> str:
        size = format_duration(self.size_ms)
        slide = format_duration(self.slide_ms)
        kind = f"tumbling windows of {size}"
        if self.slide_ms != self.size_ms:
            kind = f"sliding windows of {size} every {slide}"
        offset = self.offset_ms % self.slide_ms
        shifted = f" shifted by {format_duration(offset)}" if offset else ""
        return f"{kind}{shifted} {self._clock()}"


def _aligned(size: Any, slide: Any, offset: Any) -> tuple[int, int, int]:
    size_ms = as_milliseconds(size, "the size of a window", least=1)
    slide_ms = size_ms if slide is None else as_milliseconds(slide, "slide", least=1)
    offset_ms = 0 if offset is None else as_milliseconds(offset, "offset", least=-(2**62))
    if abs(offset_ms) >= slide_ms:
        raise PlanError(f"the offset of windows must be less than {slide_ms} ms, got {offset_ms}")
    return size_ms, slide_ms, offset_ms


class _TumblingWindows(AlignedWindows):
    @classmethod
    def of(cls, size: Time, offset: Time | None = None) -> Self:
        return cls(*_aligned(size, None, offset))


class TumblingEventTimeWindows(_TumblingWindows):
    """Adjacent windows of equal size, by event time."""


class TumblingProcessingTimeWindows(_TumblingWindows):
    """One window after the other, by the clock."""

    is_event_time = False


class _SlidingWindows(AlignedWindows):
    @classmethod
    def of(cls, size: Time, slide: Time, offset: Time | None = None) -> Self:
        return cls(*_aligned(size, slide, offset))


class SlidingEventTimeWindows(_SlidingWindows):
    """Overlapping windows, by event time."""


class SlidingProcessingTimeWindows(_SlidingWindows):
    """Windows that overlap, by the clock."""

    is_event_time = False


SessionGap = Callable[[Any], int]


@dataclass(frozen=True)
class _SessionWindows(WindowAssigner):
    """Windows that end when nothing came for a while."""

    gap: int | SessionGap
    merges = True

    @classmethod
    def with_gap(cls, size: Time) -> Self:
        return cls(as_milliseconds(size, "the gap of a session", least=1))

    @classmethod
    def with_dynamic_gap(cls, session_window_time_gap_extractor: Any) -> Self:
        return cls(_dynamic_gap(session_window_time_gap_extractor))

    def assign_windows(self, element: Any, timestamp: int) -> Collection[TimeWindow]:
        gap = self.gap if isinstance(self.gap, int) else self.gap(element)
        if type(gap) is not int or gap < 1:
            raise ValueError(
                f"the gap of a session must be whole milliseconds above 0, got {gap!r}"
            )
        return [TimeWindow(timestamp, timestamp + gap)]

    def definition(self) -> str:
        # Not the gap: a session has its bounds, whatever gap its next element comes with.
        return f"sessions {self._clock()}"


def _dynamic_gap(extractor: Any) -> SessionGap:
    extract = getattr(extractor, "extract", extractor)
    if not callable(extract):
        raise PlanError(f"with_dynamic_gap takes a function of the element, got {extractor!r:.60}")
    return extract  # type: ignore[no-any-return]


class EventTimeSessionWindows(_SessionWindows):
    """Sessions by event time: a window ends after a gap without elements."""


class ProcessingTimeSessionWindows(_SessionWindows):
    """Sessions by the clock: a window ends when nothing came for a while."""

    is_event_time = False


@dataclass(frozen=True)
class GlobalWindows(WindowAssigner):
    """One window for all elements of a key; fires only by a trigger of your own."""

    @classmethod
    def create(cls) -> GlobalWindows:
        return cls()

    def assign_windows(self, element: Any, timestamp: int) -> Collection[TimeWindow]:
        return [GLOBAL_WINDOW]

    def definition(self) -> str:
        return "global windows"

    def default_trigger(self) -> Trigger:
        return NeverTrigger()
