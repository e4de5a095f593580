"""Declared aggregates in windows, against windows that keep all elements, and a plain loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any_cut import results_however_cut
from local_engine import collected, source
from tiers import examples
from turnback import (
    CollectSink,
    DataStream,
    Duration,
    OutputTag,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    count,
    max_of,
    sum_of,
)
from turnback.api import WindowedStream
from turnback.functions import ProcessWindowFunction, list_of
from turnback.worker import runners as batch_runners
from window_model import WINDOWS, Event, events_, expected

SCHEMA = "k string, at bigint, n bigint"
OUTPUT = "k string, start bigint, stop bigint, n int, total bigint, most bigint, every array<int>"
LATE = OutputTag("late", SCHEMA)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Listed(ProcessWindowFunction):
    """What the aggregates must come to."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        window, numbers = context.window(), sorted(each.n for each in elements)
        yield (
            key, window.start, window.end, len(numbers), sum(numbers), numbers[-1], numbers,
        )  # fmt: skip


def declared(windows: WindowedStream) -> DataStream:
    return windows.aggregate(
        n=count(), total=sum_of("n"), most=max_of("n"), every=list_of("n")
    )  # fmt: skip


def milliseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


def plain(row: Any) -> tuple[Any, ...]:
    key, start, end, n, total, most, every = row
    if isinstance(start, datetime):
        start, end = milliseconds(start), milliseconds(end)
    return key, start, end, n, total, most, sorted(every)


def program(
    env: StreamExecutionEnvironment, kind: str, bound: int, lateness: int, late: bool
) -> list[CollectSink]:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(bound))
    stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner("at")
    )
    windows = stamped.uid("time").key_by("k").window(WINDOWS[kind]).allowed_lateness(lateness)
    if late:
        windows = windows.side_output_late_data(LATE)
    results = declared(windows).uid("declared")
    sinks = [collected(results, "out"), collected(windows.process(Listed(), OUTPUT), "all")]
    if late:
        sinks.append(collected(results.get_side_output(LATE), "late"))
    return sinks


@settings(max_examples=examples(50), deadline=None)
@given(
    kind=st.sampled_from(sorted(WINDOWS)),
    events=events_,
    bound=st.integers(0, 15),
    lateness=st.sampled_from([0, 0, 0, 3, 12]),
    late=st.booleans(),
    data=st.data(),
)
def test_however_the_input_is_cut(
    kind: str, events: list[Event], bound: int, lateness: int, late: bool, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_runners, "MOST_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        fired, by_element, *too_late = results_however_cut(
            data, {"s": events}, lambda env: program(env, kind, bound, lateness, late)
        )
    want, want_late = expected(kind, events, bound, lateness)
    assert sorted(map(plain, fired)) == sorted(map(plain, by_element))
    assert sorted((*row[:3], row[4]) for row in map(plain, fired)) == sorted(want)
    if late:
        assert sorted(too_late[0]) == sorted(want_late)
