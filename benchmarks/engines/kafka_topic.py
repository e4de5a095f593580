"""A topic to write to, and an independent consumer that adds up what is in it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import parquet

from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import check
from benchmarks.window_dataset import WindowDataset
from benchmarks.workload import PARALLELISM

SERVERS = "BENCHMARK_KAFKA"
"""The environment variable that tells where the broker is."""


def servers() -> str:
    return os.environ[SERVERS]


@contextmanager
def new_topic() -> Iterator[str]:
    """A topic with a partition for each task, which is deleted afterwards."""
    admin, name = AdminClient({"bootstrap.servers": servers()}), f"out-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(name, PARALLELISM, 1)])[name].result(30)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(30)


def check_topic(topic: str, dataset: WindowDataset) -> None:
    """Raise unless readers of committed records see every record once: number and sum."""
    files = Path(dataset.batch_files)
    paths = files.parent.glob(files.name)
    tables = (parquet.read_table(path, columns=["amount"]) for path in paths)
    expected = sum(pc.sum(table.column("amount")).as_py() for table in tables)
    number, total = _read(topic)
    check("records in the topic", number, dataset.workload.records)
    check("sum of amounts in the topic", total, expected)


def _read(topic: str) -> tuple[int, int]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers(),
            "group.id": f"check-{topic}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    left = set(range(PARALLELISM))
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    number = total = 0
    while left:
        for message in consumer.consume(10_000, timeout=1):
            if message.error() is None:
                number, total = number + 1, total + json.loads(message.value())["amount"]
            else:
                left.discard(message.partition())
    consumer.close()
    return number, total


def seconds_until(end: float, timer: BatchTimer, warmup: int) -> float:
    """From the start of the first batch that counts until everything could be read.

    The time of batches alone would leave out what is published beside the next one.
    """
    return end - timer.spans[warmup].start
