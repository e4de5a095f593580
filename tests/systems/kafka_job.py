"""A job with a Kafka sink and without Spark: it stages, writes a manifest, and commits.

`run_life` is one life of the job, which ends at its last epoch or kills itself at a named point.
"""

from __future__ import annotations

import os
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from turnback import Types
from turnback.connectors import JsonRowSerializationSchema
from turnback.connectors.kafka import (
    DeliveryGuarantee,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaTopicSelector,
)
from turnback.connectors.kafka import client as kafka_client
from turnback.sinks.base import ClosingCommitter, Committer, CommitterContext, WriterContext
from turnback.state.files import StorageRef
from turnback.storage.local import LocalStorage
from turnback.values.columns import Batch

if TYPE_CHECKING:
    from services.kafka import KafkaBroker

KEYS, EPOCHS, PER_EPOCH = 500, 20, 20
"""500 keys, each with the numbers 0 to 399 in order: 20 in each of 20 epochs."""
TASKS = 2
ROWS = Types.ROW_NAMED(["key", "n"], [Types.STRING(), Types.LONG()])
POINTS = (
    "before staging",
    "after staging",
    "after the manifest",
    "before the transaction",
    "after half of the records",
    "after all records",
    "after the marker",
    "after the commit",
    "after the commit is recorded",
)


class ByKey(KafkaTopicSelector):
    """All records of a key go to one topic."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = topics

    def apply(self, data: Any) -> str:
        return self.topics[zlib.crc32(data[0].encode()) % len(self.topics)]


def kafka_sink(
    servers: str,
    topic: str | Sequence[str],
    guarantee: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE,
    key: str = "key",
    **properties: str,
) -> KafkaSink:
    """A sink for one topic, or for several that keys choose among."""
    records = KafkaRecordSerializationSchema.builder().set_key_field(key)
    if isinstance(topic, str):
        records.set_topic(topic)
    else:
        records.set_topic_selector(ByKey(topic), topic)
        topic = topic[0]
    records.set_value_serialization_schema(JsonRowSerializationSchema.builder().build())
    builder = KafkaSink.builder().set_bootstrap_servers(servers)
    builder.set_record_serializer(records.build()).set_delivery_guarantee(guarantee)
    for key, value in properties.items():
        builder.set_property(key.replace("_", "."), value)
    return builder.set_transactional_id_prefix(f"sink-of-{topic}").build()


class SinkJob:
    """One attempt of a job with one sink; its directory outlives it."""

    def __init__(
        self, directory: Path, sink: KafkaSink, attempt: int = 1, uid: str = "out", **changes: Any
    ) -> None:
        self.sink, self.attempt, self.uid = sink, attempt, uid
        self._storage = StorageRef(directory.as_uri())
        values = {"job": directory.name, "job_id": f"id-of-{directory.name}"}
        self.ctx = CommitterContext(
            **{**values, **changes},
            uid=uid,
            attempt=attempt,
            type=ROWS,
            job_directory=directory.as_uri(),
            storage=self._storage,
        )

    def start(self, pending: Sequence[bytes] = ()) -> Committer:
        self.sink.check_target(self.ctx)
        self.sink.acquire_target(self.ctx)
        committer = self.sink.committer(self.ctx)
        committer.recover(pending)
        return committer

    def stage(self, epoch: int, rows: Sequence[tuple[str, int]], task: int = 0) -> list[bytes]:
        """What one task prepares."""
        ctx = WriterContext(
            job=self.ctx.job,
            job_id=self.ctx.job_id,
            uid=self.uid,
            attempt=self.attempt,
            epoch=epoch,
            partition=task,
            task_attempt_id=task,
            type=ROWS,
            storage=self._storage,
            directory_id=self.ctx.directory_id,
        )
        writer = self.sink.writer(ctx)
        writer.write(Batch(ROWS, list(rows)))
        prepared = writer.prepare()
        return [] if prepared is None else [prepared]


def rows_of(epoch: int, task: int) -> list[tuple[str, int]]:
    """What a task writes in an epoch, the same in every life of the job."""
    numbers = range((epoch - 1) * PER_EPOCH, epoch * PER_EPOCH)
    return [(f"k{key}", n) for n in numbers for key in range(task, KEYS, TASKS)]


def numbers(records: Iterable[tuple[bytes | None, bytes]]) -> dict[str, list[int]]:
    """The numbers of every key, in the order of the topic."""
    found = defaultdict(list)
    decode = msgspec.json.Decoder(dict[str, str | int]).decode
    for _, value in records:
        row = decode(value)
        found[row["key"]].append(row["n"])
    return found


def values(kafka: KafkaBroker, topic: str, *, committed: bool = True) -> list[int]:
    """The numbers in a topic, sorted."""
    found = numbers(kafka.read(topic, committed=committed))
    return sorted(n for one in found.values() for n in one)


class Manifest(msgspec.Struct, frozen=True):
    """How far the job is, and the transactions of its last epoch."""

    epoch: int = 0
    transactions: tuple[bytes, ...] = ()


class Killer:
    """Kills this process at a point of an epoch."""

    def __init__(self, point: str | None, epoch: int) -> None:
        self._point, self._epoch, self.now = point, epoch, 0

    def at(self, point: str) -> None:
        if point == self._point and self.now == self._epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Look at the steps of transactions from inside the client."""
        killer, real = self, kafka_client.confluent_kafka().Producer
        sent = [0]

        class Watched(real):  # type: ignore[misc, valid-type]
            def begin_transaction(self) -> None:
                sent[0] = 0
                killer.at("before the transaction")
                super().begin_transaction()

            def produce(self, *args: Any, **options: Any) -> None:
                super().produce(*args, **options)
                sent[0] += 1
                if sent[0] == KEYS * PER_EPOCH // 2:
                    self.flush(10)  # what consumers of uncommitted records see
                    killer.at("after half of the records")

            def send_offsets_to_transaction(self, *args: Any) -> None:
                killer.at("after all records")
                super().send_offsets_to_transaction(*args)
                killer.at("after the marker")

            def commit_transaction(self, *args: Any) -> None:
                super().commit_transaction(*args)
                killer.at("after the commit")

        kafka_client.confluent_kafka().Producer = Watched


def live(job: SinkJob, directory: Path, killer: Killer) -> None:
    """One life of the job: epoch by epoch, each with a checkpoint."""
    storage = LocalStorage(directory)
    path, at = "manifest", killer.at
    known = storage.get(path) if (directory / path).exists() else None
    manifest = msgspec.msgpack.decode(known, type=Manifest) if known else Manifest()
    killer.now = manifest.epoch
    committer = job.start(manifest.transactions)
    for epoch in range(manifest.epoch + 1, EPOCHS + 1):
        killer.now = epoch
        at("before staging")
        prepared = [
            t for task in range(TASKS) for t in job.stage(epoch, rows_of(epoch, task), task)
        ]
        at("after staging")
        storage.put(path, msgspec.msgpack.encode(Manifest(epoch, tuple(prepared))))
        at("after the manifest")
        committer.commit(prepared)
        storage.put(path, msgspec.msgpack.encode(Manifest(epoch)))
        at("after the commit is recorded")
    if isinstance(committer, ClosingCommitter):
        committer.close()


def run_life(
    servers: str,
    topics: Sequence[str],
    directory: Path,
    attempt: int,
    guarantee: DeliveryGuarantee,
    kill: tuple[str, int] | None = None,
) -> None:
    """Run one life, in a process of its own; `kill` is a point and the epoch to end at."""
    killer = Killer(*(kill or (None, 0)))
    killer.watch()
    sink = kafka_sink(servers, topics, guarantee)
    live(SinkJob(directory, sink, attempt), directory, killer)
