"""Windows of one size at equal distances, cut into the panes that they share."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from turnback.program.time import MIN_TIME
from turnback.program.windows import AlignedWindows, TimeWindow, WindowAssigner


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
