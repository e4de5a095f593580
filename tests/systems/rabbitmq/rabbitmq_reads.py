"""Reads streams in several ways on one Spark, and prints what came, a line of JSON for each.

`python rabbitmq_reads.py WANTED`, where WANTED is JSON: by name, what to set in the builder.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from turnback import RestartStrategies, StreamExecutionEnvironment, Time, WatermarkStrategy, count
from turnback.connectors import JsonRowDeserializationSchema, SimpleStringSchema
from turnback.connectors.rabbitmq import RabbitMQOffsetsInitializer, RabbitMQSource
from turnback.windows import TumblingEventTimeWindows

ROWS = JsonRowDeserializationSchema.builder().type_info("user string, n bigint")


def source(settings: dict[str, Any]) -> RabbitMQSource:
    builder = RabbitMQSource.builder().set_bounded(RabbitMQOffsetsInitializer.latest())
    builder.set_value_only_deserializer(SimpleStringSchema())
    for name, value in settings.items():
        if name == "json":
            type_info = ROWS.build().type_info
            builder.set_value_only_deserializer(JsonRowDeserializationSchema(type_info, value))
        elif name == "start":
            kind, *argument = value
            start = getattr(RabbitMQOffsetsInitializer, kind)(*argument)
            builder.set_starting_offsets(start)
        elif isinstance(value, list):
            getattr(builder, f"set_{name}")(*value)
        else:
            getattr(builder, f"set_{name}")(value)
    return builder.build()


def read(env: StreamExecutionEnvironment, source: RabbitMQSource, job: str) -> list[Any]:
    timeless = WatermarkStrategy.no_watermarks()
    policy = "dead_letter" if job == "side" else None
    stream = env.from_source(source, timeless, "records", uid="records", on_malformed=policy)
    if policy:
        stream = stream.dead_letters()
    with stream.execute_and_collect(job) as elements:
        return [_plain(element) for element in elements]


def counted(env: StreamExecutionEnvironment, source: RabbitMQSource, job: str) -> int:
    """How many elements are in windows by event time; those that are late are in none."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    stream = env.from_source(source, strategy, "records", uid="records").key_by("user")
    windows = stream.window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    with windows.aggregate(elements=count()).uid("windows").execute_and_collect(job) as found:
        return sum(row.elements for row in found)


def _plain(element: Any) -> Any:
    if isinstance(element, str):
        return element
    row = element.as_dict()
    if "place" in row:
        return row
    row["timestamp"] = int(row["timestamp"].timestamp() * 1000)
    row["properties"] = [[each.key, each.value.decode()] for each in row["properties"]]
    return row


def main() -> None:
    wanted = json.loads(sys.argv[1])
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(10)
    for name, settings in wanted.items():
        # Whatever is not refused at once never ends, unless it is to fail.
        tries = 2 if settings.pop("fails", False) else 1000
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(tries, 100))
        way = counted if settings.pop("timed", False) else read
        try:
            found: Any = way(env, source(settings), name)
        except Exception as error:  # noqa: BLE001 (what users see is looked at)
            found = f"{type(error).__name__}: {error}"
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main()
