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
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowAssigner,
)
from turnback.program.time import MAX_TIME, MIN_TIME

SCHEMA = "k string, at bigint, n bigint"
OUTPUT = "k string, start bigint, stop bigint, total bigint"
LATE = OutputTag("late", SCHEMA)
Event = tuple[str, int, int]


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


def assigned(kind: str, at: int) -> list[tuple[int, int]]:
    if kind == "tumbling":
        start = at - (at - 1) % 10
        return [(start, start + 10)]
    starts = [start for start in range(-60, 101) if start % 4 == 0 and start <= at < start + 10]
    return [(start, start + 10) for start in starts]


def expected(
    kind: str, events: list[Event], bound: int, lateness: int
) -> tuple[list[Any], list[Any]]:
    """All firings and all late elements, in a loop over the elements."""
    fired: list[Any] = []
    late: list[Any] = []
    windows: dict[str, dict[tuple[int, int], list[Any]]] = {}

    def advance(mark: int) -> None:
        """Fire windows whose end has come, and drop those whose time is over, in their order."""
        for key, own in windows.items():
            for window in sorted(own, key=lambda w: w[1]):
                total, is_new = own[window]
                if is_new and window[1] - 1 <= mark:
                    own[window][1] = False
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
            own[window] = [total, is_new]
            if not is_new:
                fired.append((key, *window, total))
        if is_late:
            late.append((key, at, n))
    advance(MAX_TIME)
    return fired, late


WINDOWS: dict[str, WindowAssigner] = {
    "tumbling": TumblingEventTimeWindows.of(Time(10), Time(1)),
    "sliding": SlidingEventTimeWindows.of(Time(10), Time(4)),
    "session": EventTimeSessionWindows.with_gap(Time(5)),
}
events_ = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40), st.integers(1, 9)), max_size=25
)


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
