"""Windows as a plain loop, to compare them with."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from turnback import Time
from turnback.functions.event_time import MAX_TIME, MIN_TIME
from turnback.windows import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

Event = tuple[str, int, int]
"""A key, a time, a number."""


ALIGNED = {
    "tumbling": (10, 10, 1),
    "sliding": (10, 4, 0),
    "dividing": (10, 5, -2),
    "with gaps": (3, 5, 0),
}
"""Size, slide and offset."""


def assigned(kind: str, at: int) -> list[tuple[int, int]]:
    size, slide, offset = ALIGNED[kind]
    starts = [start for start in range(-60, 101) if (start - offset) % slide == 0]
    return [(start, start + size) for start in starts if start <= at < start + size]


def expected(
    kind: str, events: list[Event], bound: int, lateness: int, *, purging: bool = False
) -> tuple[list[Any], list[Any]]:
    """All firings and all late elements, in a loop over the elements.

    With `purging` a window is empty after it has fired; it is still the window that it was.
    """
    fired: list[Any] = []
    late: list[Any] = []
    windows: dict[str, dict[tuple[int, int], list[Any]]] = {}

    def advance(mark: int) -> None:
        """Fire windows whose end has come, and drop those whose time is over, in their order."""
        for key, own in windows.items():
            for window in sorted(own, key=lambda w: w[1]):
                total, is_new = own[window]
                if is_new and window[1] - 1 <= mark:
                    own[window] = [0 if purging else total, False]
                    fired.append((key, *window, total))
                if window[1] - 1 + lateness <= mark:
                    del own[window]

    mark = greatest = MIN_TIME
    for key, at, n in events:
        if greatest > MIN_TIME:
            mark = greatest - bound - 1
        advance(mark)
        greatest = max(greatest, at)
        own = windows.setdefault(key, {})
        places = assigned(kind, at) if kind != "session" else [(at, at + 5)]
        is_late = True
        for window in places:
            held = 0
            if kind == "session":
                touching = [w for w in own if w[0] <= window[1] and w[1] >= window[0]]
                for other in touching:
                    window = (min(window[0], other[0]), max(window[1], other[1]))
                    held += own.pop(other)[0]
            if window[1] - 1 + lateness <= mark:
                continue
            is_late = False
            total = held + n + (own[window][0] if window in own else 0)
            is_new = window[1] - 1 > mark
            own[window] = [total if is_new or not purging else 0, is_new]
            if not is_new:
                fired.append((key, *window, total))
        # What lies between two windows is late only if event time has passed it.
        if is_late and at + lateness <= mark:
            late.append((key, at, n))
    advance(MAX_TIME)
    return fired, late


WINDOWS: dict[str, WindowAssigner] = {
    "tumbling": TumblingEventTimeWindows.of(Time(10), Time(1)),
    "sliding": SlidingEventTimeWindows.of(Time(10), Time(4)),
    "dividing": SlidingEventTimeWindows.of(Time(10), Time(5), Time(-2)),
    "with gaps": SlidingEventTimeWindows.of(Time(3), Time(5)),
    "session": EventTimeSessionWindows.with_gap(Time(5)),
}
events_ = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40), st.integers(1, 9)), max_size=25
)
