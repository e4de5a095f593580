"""A job that reads a topic, some records an epoch, and waits at a record until a file is there.

`python kafka_behind.py SERVERS TOPIC OUTPUT GATE`
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from turnback import (
    FileSink,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.connectors import SimpleStringSchema
from turnback.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from turnback.driver import source_monitor

PER_EPOCH = 1_000


class Numbered(KeyedProcessFunction):
    """State that does not grow with the backlog."""

    count = ValueStateDescriptor("count", int)

    def __init__(self, gate: str) -> None:
        self._gate = gate

    def process_element(self, value, ctx):
        while value.startswith("wait") and not Path(self._gate).exists():
            time.sleep(0.1)
        self.count.update((self.count.value() or 0) + 1)
        yield (value[:20],)


def main(servers: str, topic: str, output: str, gate: str) -> None:
    source_monitor._PAUSE_S = 0.5
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing("500 ms")
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(servers)
        .set_topics(topic)
        .set_group_id(f"group-of-{topic}")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
        .set_max_records_per_epoch(PER_EPOCH)
        .build()
    )
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "records", uid="records")
    keyed = records.key_by(lambda value: value[17:20], key_type="string")
    numbered = keyed.process(Numbered(gate), "value string")
    numbered.uid("numbered").sink_to(FileSink(output, "json")).uid("out")
    env.execute("behind")


if __name__ == "__main__":
    main(*sys.argv[1:])
