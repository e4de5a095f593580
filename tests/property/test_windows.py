"""Windows against a plain model: however epochs and tasks are cut, the same comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from any_cut import results_however_cut
from local_engine import collected, source
from tiers import examples
from turnback import CollectSink, Duration, OutputTag, StreamExecutionEnvironment, WatermarkStrategy
from turnback.functions import AggregateFunction, ProcessWindowFunction
from turnback.windows import EventTimeTrigger, PurgingTrigger
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


@settings(max_examples=examples(50), deadline=None)
@given(
    kind=st.sampled_from(sorted(WINDOWS)),
    events=events_,
    bound=st.integers(0, 15),
    lateness=st.sampled_from([0, 0, 3, 12]),
    folded=st.booleans(),
    purging=st.booleans(),
    data=st.data(),
)
def test_however_the_input_is_cut(
    kind: str,
    events: list[Event],
    bound: int,
    lateness: int,
    folded: bool,
    purging: bool,
    data: st.DataObject,
) -> None:
    def build(env: StreamExecutionEnvironment) -> list[CollectSink]:
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
        if purging:
            windows = windows.trigger(PurgingTrigger.of(EventTimeTrigger.create()))
        if folded:
            results = windows.aggregate(Total(), Labelled(), int, OUTPUT)
        else:
            results = windows.process(Labelled(), OUTPUT)
        too_late = results.uid("op").get_side_output(LATE)
        return [collected(results, "out"), collected(too_late, "late")]

    fired, late = results_however_cut(data, {"s": events}, build)
    want, want_late = expected(kind, events, bound, lateness, purging=purging)
    assert sorted(fired) == sorted(want)
    assert sorted(late) == sorted(want_late)
