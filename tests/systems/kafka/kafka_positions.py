"""A job that goes on from savepoints with other positions in Kafka; `kafka_reads.py` runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from turnback import (
    FileSink,
    KeyedProcessFunction,
    Row,
    SavepointWriter,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.connectors import SimpleStringSchema
from turnback.connectors.kafka import KafkaOffsetsInitializer, KafkaSource

SAVEPOINTS = Path("savepoints")


class Count(KeyedProcessFunction):
    """Counts all records, which have one key, and tells where each was."""

    n = ValueStateDescriptor("n", int)

    def process_element(self, value, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield Row(value.topic, value.partition, value.offset, n)


def build(
    env: StreamExecutionEnvironment, servers: str, topics: Sequence[str], out: str, bounded: bool
) -> None:
    builder = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(*topics)
    builder.set_value_only_deserializer(SimpleStringSchema())
    builder.set_metadata_columns("topic", "partition", "offset")
    if bounded:
        builder.set_bounded(KafkaOffsetsInitializer.latest())
    timeless = WatermarkStrategy.no_watermarks()
    records = env.from_source(builder.build(), timeless, "records", uid="records")
    row = "topic string, partition int, offset bigint, n bigint"
    records.key_by("value").process(Count(), row).uid("count").sink_to(
        FileSink(Path("out") / out, "json")
    ).uid("out")


def written(out: str) -> list[list[Any]]:
    rows = [json.loads(line) for path in (Path("out") / out).glob("*.json") for line in path.open()]
    return sorted([row["topic"], row["partition"], row["offset"], row["n"]] for row in rows)


def take_savepoint(env: StreamExecutionEnvironment, servers: str, topic: str, records: int) -> str:
    """Run the job until it has counted so many records; stop it with a savepoint."""
    build(env, servers, [topic], "first", bounded=False)
    client = env.execute_async("first")
    end = time.monotonic() + 60
    while len(written("first")) < records:
        if client.done():
            client.result()
        assert time.monotonic() < end, written("first")
        time.sleep(0.1)
    stopped = client.stop_with_savepoint(savepoint_directory=SAVEPOINTS / "first").result(60)
    client.result()
    assert stopped is not None
    return stopped


def positions(env: StreamExecutionEnvironment, servers: str, a: str, b: str) -> dict[str, Any]:
    """What jobs read that go on from changed savepoints; `a` has two partitions of 3 records."""
    savepoint = take_savepoint(env, servers, a, 6)
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(a, "x", partition=1)
    assert producer.flush(30) == 0
    wanted: dict[str, tuple[list[str], dict[str, Any] | None]] = {
        "back": ([a, b], {"offsets": {(a, 0): 1, (b, 0): 2}}),
        "dropped": ([b], {"offsets": {(b, 0): 3}, "without_topics": [a]}),
        "gone": ([b], None),
        "unknown": ([a], {"offsets": {("no-such-topic", 0): 3}}),
    }
    found: dict[str, Any] = {}
    for name, (topics, change) in wanted.items():
        start = savepoint
        if change is not None:
            writer = SavepointWriter.from_existing(savepoint)
            writer.with_kafka_offsets("records", **change).write(SAVEPOINTS / name)
            start = str(SAVEPOINTS / name)
        build(env, servers, topics, name, bounded=True)
        try:
            env.execute(name, start_from=start, fork=True)
            found[name] = written(name)
        except Exception as error:  # noqa: BLE001 (what users see is looked at)
            found[name] = f"{type(error).__name__}: {error}"
    return found
