"""What windows can be asked for, and how they are run then."""

from __future__ import annotations

from typing import Any

import pytest

from local_engine import environment, source
from turnback import OutputTag, Time, WatermarkStrategy, count, sum_of
from turnback.errors import PlanError
from turnback.functions import AggregateFunction
from turnback.timing.folded_windows import PaneWindows, WindowAggregation
from turnback.timing.window_operator import WindowOperator
from turnback.windows import (
    CountTrigger,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

SCHEMA = "k string, at bigint, n bigint"
TEN = TumblingEventTimeWindows.of(Time(10))
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def function_of(windows: Any, schema: str = SCHEMA) -> Any:
    """What runs the windows of a keyed stream."""
    stream = source(environment(), "s", schema).assign_timestamps_and_watermarks(MONOTONOUS)
    return windows(stream.key_by(stream.type.names[0]))._node.function  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("windows", "kind"),
    [
        (lambda s: s.window(TEN).aggregate(n=count()), WindowAggregation),
        (
            lambda s: s.window(SlidingEventTimeWindows.of(Time(4), Time(2))).aggregate(n=count()),
            WindowAggregation,
        ),
        (lambda s: s.window(TEN).allowed_lateness(1).aggregate(n=count()), PaneWindows),
        (
            lambda s: s.window(TEN).side_output_late_data(OutputTag("l")).aggregate(n=count()),
            PaneWindows,
        ),
        (lambda s: s.window(TEN).aggregate(Count(), None, int, int), PaneWindows),
        (lambda s: s.window(TEN).reduce(lambda a, b: a), PaneWindows),
        (lambda s: s.window(TEN).trigger(CountTrigger.of(1)).aggregate(n=count()), WindowOperator),
        (
            lambda s: s.window(EventTimeSessionWindows.with_gap(Time(1))).aggregate(n=count()),
            WindowOperator,
        ),
    ],
)
def test_windows_are_run_in_the_fastest_way_there_is(windows: Any, kind: type) -> None:
    assert type(function_of(windows)) is kind


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (lambda s: s.window(TEN).aggregate(), "takes an AggregateFunction, or aggregates by name"),
        (lambda s: s.window(TEN).aggregate(n=3), "n=3 is not an aggregate"),
        (lambda s: s.window(TEN).aggregate(count()), "takes an AggregateFunction, or aggregates"),
        (lambda s: s.window(TEN).aggregate(Count(), n=count()), "takes either"),
        (lambda s: s.window(TEN).aggregate(output_type=count(), n=count()), "cannot be named"),
        (lambda s: s.window(TEN).aggregate(k=count()), "'k' is the name of the key"),
        (lambda s: s.window(TEN).aggregate(window_end=count()), "'window_end' is the name of a"),
        (lambda s: s.window(TEN).aggregate(n=sum_of("x")), "there is no column 'x'"),
        (lambda s: s.window(TEN).aggregate(n=sum_of("k")), "does not contain numbers"),
        (
            lambda s: s.window(TEN).aggregate(n=count()).get_side_output(OutputTag("late")),
            "has no side outputs",
        ),
    ],
)
def test_what_cannot_be(windows: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        function_of(windows)


def test_a_key_column_with_the_name_of_a_bound() -> None:
    with pytest.raises(PlanError, match="another name for the column of the key"):
        function_of(lambda s: s.window(TEN).aggregate(n=count()), "window_start int, at bigint")
