"""Panes: how windows are cut into the parts that they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turnback import Time
from turnback.functions.event_time import MAX_TIME, MIN_TIME
from turnback.timing.folded_windows import Panes
from turnback.windows import (
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
)


@pytest.mark.parametrize(
    ("size", "slide", "offset"),
    [(10, 10, 0), (10, 10, 3), (10, 5, 0), (10, 4, 1), (9, 6, -5), (7, 3, 2), (1, 1, 0)],
)
def test_every_time_is_in_the_windows_that_it_is_assigned_to(
    size: int, slide: int, offset: int
) -> None:
    assigner = SlidingEventTimeWindows.of(Time(size), Time(slide), Time(offset))
    panes = Panes.of(assigner)
    assert panes is not None
    for time in range(-40, 41):
        pane = panes.of_time(time)
        assert panes.start(pane) <= time <= pane
        ends = range(panes.first_window(pane), panes.last_window(pane) + 1, slide)
        assert {panes.window(end) for end in ends} == set(assigner.assign_windows(None, time))
        for end in ends:
            assert pane in panes.of_window(end)
            assert panes.window_before(end) == end
            assert panes.window_before(end + slide - 1) == end
    for end in range(panes.first_window(0), 40, slide):
        cut = panes.of_window(end)
        assert {panes.of_time(time) for time in range(end + 1 - size, end + 1)} == set(cut)


def test_numbers_and_arrays_of_them_are_taken_alike() -> None:
    panes = Panes.of(SlidingEventTimeWindows.of(Time(10), Time(4), Time(1)))
    assert panes is not None
    times = np.arange(-30, 30)
    for method in (panes.of_time, panes.first_window, panes.last_window, panes.window_before):
        assert method(times).tolist() == [method(int(time)) for time in times]


def test_whether_a_window_ends_in_a_span_of_time() -> None:
    panes = Panes.of(TumblingEventTimeWindows.of(Time(10)))
    assert panes is not None
    assert panes.any_window(8, 9)
    assert not panes.any_window(9, 18)
    assert panes.any_window(9, 19)
    assert panes.any_window(MIN_TIME, -1_000)
    assert not panes.any_window(MIN_TIME, MIN_TIME)
    assert panes.any_window(10**15, MAX_TIME)
    assert not panes.any_window(MAX_TIME, MAX_TIME)


@pytest.mark.parametrize(
    "assigner",
    [
        SlidingEventTimeWindows.of(Time(3), Time(5)),
        SlidingProcessingTimeWindows.of(Time(10), Time(5)),
        EventTimeSessionWindows.with_gap(Time(5)),
        GlobalWindows.create(),
    ],
    ids=["with gaps", "by the clock", "sessions", "global"],
)
def test_other_windows_have_none(assigner: Any) -> None:
    assert Panes.of(assigner) is None
