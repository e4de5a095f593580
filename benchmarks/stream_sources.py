"""How fast the sources of RabbitMQ and Kinesis read: `python -m benchmarks.stream_sources`.

Without Spark; needs PYTHONPATH=tests, for the servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from services.kinesis import KEYS, REGION, kinesis_server
from services.rabbitmq import PASSWORD, USER, rabbitmq_server
from turnback.connectors import SimpleStringSchema
from turnback.connectors.kinesis import KinesisSource
from turnback.connectors.kinesis.reader import KinesisReader
from turnback.connectors.rabbitmq import RabbitMQSource
from turnback.connectors.rabbitmq.reader import RabbitMQReader

MESSAGE = "x" * 100
MESSAGES, RECORDS = 500_000, 50_000


def read_all(reader: Any) -> int:
    """Read as Spark would ask for it, epoch by epoch; return how many records came."""
    at, count = reader.initialOffset(), 0
    while (end := reader.latestOffset(at, None)) != at:
        for partition in reader.partitions(at, end):
            count += sum(batch.num_rows for batch in reader.read(partition))
        at = end
    return count


def measure(name: str, reader: Callable[[], Any], expected: int) -> None:
    begun = time.perf_counter()
    assert read_all(reader()) == expected
    seconds = time.perf_counter() - begun
    print(f"{name}: {expected / seconds:,.0f} records/s ({expected:,} of 100 bytes)", flush=True)


def main() -> None:
    text = SimpleStringSchema()
    with rabbitmq_server() as rabbit:
        stream = rabbit.create_stream()
        rabbit.write(stream, [MESSAGE] * MESSAGES)
        made = RabbitMQSource.builder().set_host("127.0.0.1").set_port(rabbit.port)
        made.set_user_name(USER).set_password(PASSWORD).set_streams(stream)
        options = {**made.set_value_only_deserializer(text).build().options, "columns": "[]"}
        measure("RabbitMQ, one stream", lambda: RabbitMQReader(options), MESSAGES)
    with kinesis_server() as kinesis:
        stream = kinesis.create_stream()
        kinesis.write(stream, [MESSAGE] * RECORDS)
        source = KinesisSource.builder().set_stream(stream).set_region(REGION)
        source.set_endpoint(kinesis.url).set_credentials(*KEYS)
        given = {**source.set_value_only_deserializer(text).build().options, "columns": "[]"}
        measure("Kinesis, one shard of moto", lambda: KinesisReader(given), RECORDS)


if __name__ == "__main__":
    main()
