"""Runs programs over two streams with event time, however input is cut into epochs and tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from any_cut import results_however_cut
from local_engine import source
from turnback import (
    CollectSink,
    DataStream,
    Duration,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from turnback.functions.event_time import MIN_TIME

Build = Callable[[DataStream, DataStream], Sequence[CollectSink]]
"""Makes a program of two streams; what it collects is given back in this order."""


def stamped(stream: DataStream, bound: int) -> DataStream:
    """The stream with the timestamps of its column `at`."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(bound))
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))


def in_order(streams: Sequence[Sequence[Any]], bounds: Sequence[int]) -> list[tuple[int, int, Any]]:
    """The watermark at each element, the number of its stream, and the element, in their order."""
    elements = []
    for number, (stream, bound) in enumerate(zip(streams, bounds, strict=True)):
        greatest = MIN_TIME
        for element in stream:
            mark = MIN_TIME if greatest == MIN_TIME else greatest - bound - 1
            elements.append((mark, number, element))
            greatest = max(greatest, element[1])
    return sorted(elements, key=lambda element: element[:2])


def run_cut(
    data: st.DataObject,
    build: Build,
    schemas: tuple[str, str],
    streams: tuple[Sequence[Any], Sequence[Any]],
    bounds: tuple[int, int],
) -> list[list[Any]]:
    """Run a program over two streams, see `results_however_cut`."""

    def program(env: StreamExecutionEnvironment) -> Sequence[CollectSink]:
        one, two = (
            stamped(source(env, uid, schema), bound).uid(f"time-{uid}")
            for uid, schema, bound in zip("xy", schemas, bounds, strict=True)
        )
        return build(one, two)

    return results_however_cut(data, dict(zip("xy", streams, strict=True)), program)


def by_key(results: Sequence[Any]) -> dict[Any, list[Any]]:
    """What each key got, in order; between keys there is none."""
    keys: dict[Any, list[Any]] = {}
    for result in results:
        keys.setdefault(result[0], []).append(tuple(result))
    return keys
