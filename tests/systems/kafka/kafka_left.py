"""A job without Spark that writes to topics of Kafka, and can be killed while it publishes.

`python kafka_left.py (kill|live) SERVERS TOPIC ...`; the password is in KAFKA_PASSWORD.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import confluent_kafka
from kafka_job import kafka_sink

from services.kafka import USER
from turnback import StreamExecutionEnvironment
from turnback.connectors.kafka import sink as kafka_memory
from turnback.testing import LocalEngine

ROWS = [(f"k{n}", n) for n in range(20)]


class Killed(confluent_kafka.Producer):
    """Dies with an open transaction: all records are written, and none is committed."""

    has_records = False

    def produce(self, topic: str, *args: Any, **options: Any) -> None:
        super().produce(topic, *args, **options)
        self.has_records = self.has_records or topic != kafka_memory.TOPIC

    def send_offsets_to_transaction(self, *args: Any) -> None:
        if not self.has_records:  # it only notes whose the prefix is
            super().send_offsets_to_transaction(*args)
            return
        assert self.flush(10) == 0
        os.kill(os.getpid(), signal.SIGKILL)


def main(end: str, servers: str, *topics: str) -> None:
    if end == "kill":
        confluent_kafka.Producer = Killed
    sink = kafka_sink(
        servers,
        topics,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=USER,
        sasl_password=os.environ["KAFKA_PASSWORD"],
    )
    env = StreamExecutionEnvironment(engine=LocalEngine())
    env.enable_checkpointing(10)
    rows = env.from_collection(ROWS, "key string, n bigint", uid="rows")
    rows.sink_to(sink).uid("out")
    env.execute("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
