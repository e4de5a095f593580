"""Sessions of users: from the first click to half an hour of silence, with what was clicked.

    python examples/sessions.py clicks/ sessions/ late/

`clicks` is a directory of JSON lines with `user`, `page` and `at` (milliseconds since 1970). Clicks
that come more than a minute late start no session of their own: they are written to `late`.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from turnback import (
    Duration,
    FileSink,
    OutputTag,
    Row,
    StreamExecutionEnvironment,
    Time,
    WatermarkStrategy,
)
from turnback.functions import AggregateFunction, ProcessWindowFunction
from turnback.windows import EventTimeSessionWindows

CLICK = "user string, page string, at bigint"
SESSION = "user string, first bigint, last bigint, clicks bigint"
LATE = OutputTag("late", CLICK)


class Clicks(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Row, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Session(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Iterable[int]) -> Iterator[Row]:
        (clicks,) = elements
        window = context.window()
        yield Row(key, window.start, window.end - Time.minutes(30).to_milliseconds(), clicks)


def build(env: StreamExecutionEnvironment, clicks: str, sessions: str, late: str) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(1))
    results = (
        env.from_files(clicks, "json", CLICK, "clicks")
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
        .uid("time")
        .key_by("user")
        .window(EventTimeSessionWindows.with_gap(Time.minutes(30)))
        .side_output_late_data(LATE)
        .aggregate(
            Clicks(), Session(), int, "user string, first bigint, last bigint, clicks bigint"
        )
        .uid("sessions")
    )
    results.sink_to(FileSink(sessions, "json")).uid("out")
    results.get_side_output(LATE).sink_to(FileSink(late, "json")).uid("late-out")


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env, *sys.argv[1:4])
    env.execute("sessions", bounded=True)
