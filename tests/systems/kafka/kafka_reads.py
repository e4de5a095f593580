"""Reads topics in several ways on one Spark, and prints what came, a line of JSON for each.

`python kafka_reads.py SERVERS WANTED A B`, where WANTED is JSON: by name, the topic and the way.
A and B are topics for `kafka_positions.py`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kafka_positions import positions

from turnback import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from turnback.connectors import JsonRowDeserializationSchema, SimpleStringSchema
from turnback.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from turnback.connectors.kafka import client as kafka_client

ROWS = JsonRowDeserializationSchema.builder().type_info("user string, n bigint")
METADATA = ("key", "partition", "offset", "timestamp", "headers")
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = MODULE + ' required username="{}" password="{}";'


def source(servers: str, topic: str, way: str, argument: Any) -> KafkaSource:
    if way in ("elsewhere", "login"):
        servers = argument[0]
    builder = KafkaSource.builder().set_bootstrap_servers(servers)
    builder.set_bounded(KafkaOffsetsInitializer.latest())
    builder.set_value_only_deserializer(SimpleStringSchema())
    if way == "login":
        user, password = argument[1:]
        builder.set_property("security.protocol", "SASL_PLAINTEXT")
        builder.set_property("sasl.mechanism", "PLAIN")
        builder.set_property("sasl.jaas.config", JAAS.format(user, password))
    if way == "pattern":
        return builder.set_topic_pattern(topic).build()
    builder.set_topics(topic)
    if way == "json":
        builder.set_value_only_deserializer(ROWS.ignore_parse_errors().build())
        builder.set_metadata_columns(*METADATA)
    if way == "malformed":
        builder.set_value_only_deserializer(JsonRowDeserializationSchema(ROWS.build().type_info))
    if way == "offsets":
        start = {(topic, int(partition)): offset for partition, offset in argument.items()}
        builder.set_starting_offsets(KafkaOffsetsInitializer.offsets(start))
    if way == "timestamp":
        builder.set_starting_offsets(KafkaOffsetsInitializer.timestamp(argument))
    if way == "uncommitted":
        builder.set_property("isolation.level", "read_uncommitted")
    return builder.build()


def read(
    env: StreamExecutionEnvironment, source: KafkaSource, job: str, on_malformed: str | None
) -> list[Any]:
    timeless = WatermarkStrategy.no_watermarks()
    stream = env.from_source(source, timeless, "records", uid="records", on_malformed=on_malformed)
    if on_malformed == "dead_letter":
        stream = stream.dead_letters()
    with stream.execute_and_collect(job) as elements:
        return [_plain(element) for element in elements]


def _plain(element: Any) -> Any:
    if isinstance(element, str):
        return element
    row = element.as_dict()
    if "place" in row:
        return row
    row["key"] = None if row["key"] is None else row["key"].decode()
    row["timestamp"] = int(row["timestamp"].timestamp() * 1000)
    row["headers"] = [[h.key, h.value.decode()] for h in row["headers"] or ()]
    return row


def main() -> None:
    servers, wanted, moved = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
    kafka_client.START_S = 3.0  # of what is not there
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(10)
    # Whatever is not refused at once never ends.
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 1000))
    for name, (topic, way, argument) in wanted.items():
        try:
            policy = argument if way == "malformed" else None
            found: Any = read(env, source(servers, topic, way, argument), name, policy)
        except Exception as error:  # noqa: BLE001 (what users see is looked at)
            found = f"{type(error).__name__}: {error}"
        print(json.dumps([name, found]), flush=True)
    for name, found in positions(env, servers, *moved).items():
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main()
