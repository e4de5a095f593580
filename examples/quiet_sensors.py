"""Alert when a sensor has been silent for ten minutes of event time.

    python examples/quiet_sensors.py readings/ alerts/

`readings` is a directory of JSON lines with `sensor`, `at` (milliseconds since 1970) and `value`.
"""

import sys
from collections.abc import Iterator
from typing import Any

from turnback import (
    Duration,
    FileSink,
    KeyedProcessFunction,
    MapStateDescriptor,
    Row,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)

SILENCE_MS = 10 * 60 * 1000


class Silence(KeyedProcessFunction):
    times = MapStateDescriptor("times", int, bool)

    def process_element(self, value: Row, ctx: Any) -> None:
        self.times[ctx.timestamp()] = True
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + SILENCE_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Row]:
        since = timestamp - SILENCE_MS
        del self.times[since]
        # Readings may be ahead of event time: those after this moment do not count.
        if not any(at <= timestamp for at in self.times):
            yield Row(ctx.get_current_key(), since)


def build(env: StreamExecutionEnvironment, readings: str, alerts: str) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(30))
    (
        env.from_files(readings, "json", "sensor string, at bigint, value double", "readings")
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
        .uid("time")
        .key_by("sensor")
        .process(Silence(), "sensor string, silent_since bigint")
        .uid("silence")
        .sink_to(FileSink(alerts, "json"))
        .uid("alerts")
    )


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env, *sys.argv[1:3])
    env.execute("quiet-sensors", bounded=True)
