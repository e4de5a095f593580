"""Runs programs over two streams with event time, however input is cut into epochs and tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from local_engine import LocalEngine, environment, source
from turnback import CollectSink, DataStream, Duration, WatermarkStrategy
from turnback.program.time import MIN_TIME

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
    """Run a program in up to three attempts, each with a parallelism and a backend of its own."""
    files: Any = ()
    watermarks: dict[str, int] = {}
    number, at = 0, [0, 0]
    results: list[list[Any]] = []
    attempts = data.draw(st.integers(1, 3))
    with tempfile.TemporaryDirectory() as root:
        for attempt in range(1, attempts + 1):
            env = environment(data.draw(st.sampled_from([1, 2, 3, 8]))).set_max_parallelism(8)
            one, two = (
                stamped(source(env, uid, schema), bound).uid(f"time-{uid}")
                for uid, schema, bound in zip("xy", schemas, bounds, strict=True)
            )
            sinks = build(one, two)
            engine = LocalEngine(
                env.plan(), Path(root), attempt=attempt, files=files, epoch=number,
                backend=data.draw(st.sampled_from(["hashmap", "rocksdb"])),
                source_tasks=data.draw(st.integers(1, 3)), watermarks=watermarks,
            )  # fmt: skip
            for _ in range(data.draw(st.integers(1, 3))):
                upto = [data.draw(st.integers(a, len(s))) for a, s in zip(at, streams, strict=True)]
                engine.epoch(_parts(streams, at, upto))
                at = upto
            if attempt == attempts:
                engine.epoch(_parts(streams, at, [len(stream) for stream in streams]))
                engine.epoch({}, ended=True)
            results = results or [[] for _ in sinks]
            for known, sink in zip(results, sinks, strict=True):
                known += sink.results
            files, number = engine.chains.live(), engine.number
            watermarks = engine.time.watermarks()
    return results


def _parts(
    streams: Sequence[Sequence[Any]], start: Sequence[int], end: Sequence[int]
) -> dict[str, Sequence[Any]]:
    return {uid: s[a:b] for uid, s, a, b in zip("xy", streams, start, end, strict=True)}


def by_key(results: Sequence[Any]) -> dict[Any, list[Any]]:
    """What each key got, in order; between keys there is none."""
    keys: dict[Any, list[Any]] = {}
    for result in results:
        keys.setdefault(result[0], []).append(tuple(result))
    return keys
