"""Windows against a plain model: however epochs and tasks are cut, the same comes out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import LocalEngine, collected, environment, source
from turnback import (
    AggregateFunction,
    Duration,
    OutputTag,
    ProcessWindowFunction,
    WatermarkStrategy,
)
from window_model import WINDOWS, Event, events_, expected

SCHEMA = "k string, at bigint, n bigint"
OUTPUT = "k string, start bigint, stop bigint, total bigint"
LATE = OutputTag("late", SCHEMA)


class Total(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.n)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Labelled(ProcessWindowFunction):
    """The bounds of the window, and the sum of what it is given."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        window = context.window()
        total = sum(each if isinstance(each, int) else each.n for each in elements)
        yield key, window.start, window.end, total


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(WINDOWS)),
    events=events_,
    bound=st.integers(0, 15),
    lateness=st.sampled_from([0, 0, 3, 12]),
    folded=st.booleans(),
    data=st.data(),
)
def test_however_the_input_is_cut(
    kind: str,
    events: list[Event],
    bound: int,
    lateness: int,
    folded: bool,
    data: st.DataObject,
) -> None:
    files: Any = ()
    number = at = 0
    watermarks: dict[str, int] = {}
    fired: list[Any] = []
    late: list[Any] = []
    attempts = data.draw(st.integers(1, 3))
    with tempfile.TemporaryDirectory() as root:
        for attempt in range(1, attempts + 1):
            env = environment(data.draw(st.integers(1, 3))).set_max_parallelism(8)
            strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(bound))
            stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(
                strategy.with_timestamp_assigner("at")
            )
            windows = (
                stamped.uid("time")
                .key_by("k")
                .window(WINDOWS[kind])
                .allowed_lateness(lateness)
                .side_output_late_data(LATE)
            )
            if folded:
                results = windows.aggregate(Total(), Labelled(), int, OUTPUT)
            else:
                results = windows.process(Labelled(), OUTPUT)
            sink = collected(results.uid("op"), "out")
            too_late = collected(results.get_side_output(LATE), "late")
            engine = LocalEngine(
                env.plan(), Path(root), attempt=attempt, files=files, epoch=number,
                backend=data.draw(st.sampled_from(["hashmap", "rocksdb"])),
                source_tasks=data.draw(st.integers(1, 4)), watermarks=watermarks,
            )  # fmt: skip
            for _ in range(data.draw(st.integers(1, 3))):
                upto = data.draw(st.integers(at, len(events)))
                engine.epoch({"s": events[at:upto]})
                at = upto
            if attempt == attempts:
                engine.epoch({"s": events[at:]})
                engine.epoch({}, ended=True)
            fired += map(tuple, sink.results)
            late += map(tuple, too_late.results)
            files, number = engine.chains.live(), engine.number
            watermarks = engine.time.watermarks()
    want, want_late = expected(kind, events, bound, lateness)
    assert sorted(fired) == sorted(want)
    assert sorted(late) == sorted(want_late)
