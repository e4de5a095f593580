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
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.connectors import JsonRowDeserializationSchema
from turnback.connectors.kinesis import KinesisSource
from turnback.connectors.rabbitmq import RabbitMQSource

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
    return builder.set_max_records_per_epoch(150).build()


def kinesis(settings: dict[str, Any]) -> KinesisSource:
    builder = KinesisSource.builder().set_stream(settings["stream"]).set_region(settings["region"])
    builder.set_endpoint(settings["endpoint"]).set_credentials(*settings["keys"])
    return builder.set_value_only_deserializer(ROWS).set_max_records_per_epoch(75).build()


def main() -> None:
    settings = json.loads(sys.argv[1])
    env = StreamExecutionEnvironment.get_execution_environment(root=settings["jobs"])
    env.enable_checkpointing(50)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(100, 100))
    sources = {"rabbitmq": rabbitmq(settings["rabbitmq"]), "kinesis": kinesis(settings["kinesis"])}
    timeless = WatermarkStrategy.no_watermarks()
    first, second = (env.from_source(s, timeless, name, uid=name) for name, s in sources.items())
    found = (
        first.union(second)
        .key_by("stream")
        .process(Before(), output_type="stream string, n bigint, before bigint")
    )
    found.uid("before").sink_to(FileSink(settings["output"], "json")).uid("output")
    env.execute("numbers")


if __name__ == "__main__":
    main()
