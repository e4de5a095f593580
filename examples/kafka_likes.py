"""Likes of every post, counted from one Kafka topic into another, each like exactly once.

The topics have to exist: `likes` with objects such as {"post": "p1", "n": 2}, and `totals`.

    turnback run -D spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        examples/kafka_likes.py localhost:9092

With `--table`, the totals go to a Delta table as well. `make demo-kafka` shows it with kills.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from turnback import (
    KeyedProcessFunction,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.connectors import JsonRowDeserializationSchema, JsonRowSerializationSchema
from turnback.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from turnback.connectors.tables import DeltaSink


class Total(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        total = (self.total.value() or 0) + value.n
        self.total.update(total)
        yield Row(value.post, total)


def source(servers: str, topic: str, bounded: bool) -> KafkaSource:
    rows = JsonRowDeserializationSchema.builder().type_info("post string, n bigint")
    builder = (
        KafkaSource.builder()
        .set_bootstrap_servers(servers)
        .set_topics(topic)
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(rows.ignore_parse_errors().build())
    )
    if bounded:
        builder.set_bounded(KafkaOffsetsInitializer.latest())
    return builder.build()


def sink(servers: str, topic: str) -> KafkaSink:
    records = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_key_field("post")
        .set_value_serialization_schema(JsonRowSerializationSchema.builder().build())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(records)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(f"{topic}-of-likes")
        .build()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", help="Kafka's bootstrap servers, such as localhost:9092")
    parser.add_argument("--likes", default="likes", help="the topic to read")
    parser.add_argument("--totals", default="totals", help="the topic to write")
    parser.add_argument("--table", help="a directory: the totals as a Delta table as well")
    parser.add_argument("--bounded", action="store_true", help="end with what is there now")
    args = parser.parse_args()

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing("1 s")
    likes = env.from_source(
        source(args.servers, args.likes, args.bounded),
        WatermarkStrategy.no_watermarks(),
        "likes",
        uid="likes",
    )
    totals = likes.key_by("post").process(Total(), "post string, total bigint").uid("total")
    totals.sink_to(sink(args.servers, args.totals)).uid("totals")
    if args.table:
        totals.sink_to(DeltaSink(args.table)).uid("table")
    env.execute("kafka-likes")


if __name__ == "__main__":
    main()
