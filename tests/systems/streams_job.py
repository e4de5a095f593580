"""A job that reads numbers from streams and notes for each which one came before it.

`python streams_job.py SETTINGS`, where SETTINGS is JSON: `jobs`, `output`, and those of `source`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from turnback import (
    FileSink,
    JsonRowDeserializationSchema,
    KeyedProcessFunction,
    RabbitMQSource,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)

ROWS = JsonRowDeserializationSchema.builder().type_info("stream string, n bigint").build()


class Before(KeyedProcessFunction):
    """Gives each number with the one before it, by stream."""

    last = ValueStateDescriptor("last", int)

    def process_element(self, value: Row, ctx: Any) -> Iterator[Any]:
        before = self.last.value()
        self.last.update(value.n)
        yield value.stream, value.n, -1 if before is None else before


def rabbitmq(settings: dict[str, Any]) -> RabbitMQSource:
    builder = RabbitMQSource.builder().set_host("127.0.0.1").set_port(settings["port"])
    builder.set_user_name(settings["user"]).set_password(settings["password"])
    builder.set_streams(*settings["streams"]).set_value_only_deserializer(ROWS)
    return builder.set_max_records_per_epoch(300).build()


def main() -> None:
    settings = json.loads(sys.argv[1])
    env = StreamExecutionEnvironment.get_execution_environment(root=settings["jobs"])
    env.enable_checkpointing(50)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(100, 100))
    source = rabbitmq(settings["rabbitmq"])
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "rabbitmq", uid="rabbitmq")
    found = numbers.key_by("stream").process(
        Before(), output_type="stream string, n bigint, before bigint"
    )
    found.uid("before").sink_to(FileSink(settings["output"], "json")).uid("output")
    env.execute("numbers")


if __name__ == "__main__":
    main()
