"""What Kafka keeps for sinks: numbers with notes, under names, for as long as the cluster lives.

A note is the offset of a consumer group that nobody consumes with: it is quickly read, and written
in one transaction with records. Kafka forgets such offsets when they have not been written for
`offsets.retention.minutes`. So the same transaction puts each note into a compacted topic as well,
where it is looked up if the group has none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import msgspec

from turnback.connectors.kafka import client as kafka_client
from turnback.connectors.kafka.client import (
    FORBIDDEN,
    NO_TOPIC,
    Cluster,
    GroupOffsets,
    KafkaClient,
    Record,
    confluent_kafka,
    look_again,
    of_producers,
    patiently,
)
from turnback.core.errors import SinkError
from turnback.core.extras import require

_LOG = logging.getLogger(__name__)
TOPIC = "_turnback_sinks"
"""Has one record for each name, the newest; all sinks of a cluster share it."""
_SETTINGS = {
    "cleanup.policy": "compact",
    # Only segments that are full are compacted: without these the topic would grow for a week.
    "segment.ms": "3600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
_AT_ONCE = 1000


class Remembered(NamedTuple):
    """A number that Kafka remembers, and a note beside it."""

    number: int
    note: str


class KafkaMemory(KafkaClient):
    """The compacted topic.

    Args:
        cluster: Where to connect to.
        name: What error messages call the sink.
        create: Whether to create the topic if it is not there.
    """

    def __init__(self, cluster: Cluster, name: str, *, create: bool) -> None:
        super().__init__(cluster, name)
        settings = self.settings({}, of_producers(cluster))
        self._api = require("confluent_kafka.admin", "kafka", "KafkaSink")
        self._admin = self.make(self._api.AdminClient, dict(settings))
        self._settings = settings
        self._consumer = self._new_consumer("read_committed")
        with self.failures(f"find topic {TOPIC!r}"):
            there = self._is_there()
        if not there and create:
            there = self._create()
        self.usable = (
            there and len(self._metadata(TOPIC)[TOPIC].partitions) == 1 and self._allowed()
        )
        """Whether notes can be read from the topic and written to it."""
        if create and not self.usable:
            _LOG.warning(
                "%s: topic %r at %s cannot be %s, so Kafka remembers whose a transactional-id "
                "prefix is for offsets.retention.minutes only. Create it with one partition and "
                "cleanup.policy=compact, and let this user read and write it",
                *(name, TOPIC, cluster.servers, "used" if there else "created"),
            )

    def topics(self) -> list[str]:
        """All topics that the user may see."""
        return sorted(self._metadata(None))

    def find(self, name: str, *, settled: bool) -> Remembered | None:
        """The newest note under a name.

        An open transaction of any sink hides what is behind it. That matters only if there is
        something under this name.

        Args:
            name: The name.
            settled: Whether to wait for what is hidden under this name. It may be in a transaction
                that lasts until somebody makes a producer of the same transactional id.

        Raises:
            SinkError: A transaction has hidden a note for too long.
        """
        until = time.monotonic() + kafka_client.PATIENCE_S
        levels = confluent_kafka().IsolationLevel
        key = name.encode()
        with self.failures(f"read topic {TOPIC!r}"):
            while True:
                end = self._end(levels.READ_UNCOMMITTED)
                stable = self._end(levels.READ_COMMITTED)
                notes = [v for k, v in self._read(self._consumer, 0, stable) if k == key and v]
                if not settled or not self._has_hidden(key, stable, end):
                    break
                if time.monotonic() > until:
                    raise SinkError(
                        f"{self.name}: a transaction that is open in topic {TOPIC!r} at "
                        f"{self.cluster.servers} hides what is noted of {name!r}. It ends when its "
                        "job is started again, or after its transaction.timeout.ms; try again then"
                    )
                time.sleep(0.1)
        return Remembered(*msgspec.json.decode(notes[-1], type=tuple[int, str])) if notes else None

    def close(self) -> None:
        self._consumer.close()

    def _has_hidden(self, key: bytes, stable: int, end: int) -> bool:
        if stable >= end:
            return False
        with closing(self._new_consumer("read_uncommitted")) as consumer:
            return any(k == key for k, _ in self._read(consumer, stable, end))

    def _new_consumer(self, level: str) -> Any:
        own = {
            "group.id": "turnback.memory",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": level,
        }
        return self.make(confluent_kafka().Consumer, {**self._settings, **own})

    def _end(self, level: Any) -> int:
        place = confluent_kafka().TopicPartition(TOPIC, 0)
        wait_s = kafka_client.START_S
        wanted = {place: self._api.OffsetSpec.latest()}

        def offset() -> int:
            # One that has seen the broker before it was restarted would go on asking for the past.
            admin = self.make(self._api.AdminClient, dict(self._settings))
            asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=wait_s)
            return int(asked[place].result().offset)

        return patiently(offset)

    def _read(
        self, consumer: Any, first: int, end: int
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Keys and values of the records that a consumer sees up to an offset."""
        if first >= end:
            return
        api = confluent_kafka()
        consumer.assign([api.TopicPartition(TOPIC, 0, first)])
        until = time.monotonic() + kafka_client.PATIENCE_S
        try:
            while time.monotonic() < until:
                for message in consumer.consume(1000, timeout=0.1):
                    if message.error() is None:
                        until = time.monotonic() + kafka_client.PATIENCE_S
                        yield message.key(), message.value()
                    elif message.error().name() != "_PARTITION_EOF":
                        raise api.KafkaException(message.error())
                    elif message.offset() >= end:
                        return
        finally:
            consumer.unassign()
        raise SinkError(
            f"{self.name}: cannot read topic {TOPIC!r} at {self.cluster.servers} to its end: no "
            f"answer within {kafka_client.PATIENCE_S:g} s"
        )

    def _create(self) -> bool:
        new = self._api.NewTopic(TOPIC, 1, -1, config=_SETTINGS)
        try:
            self._admin.create_topics([new], request_timeout=kafka_client.START_S)[TOPIC].result()
        except confluent_kafka().KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                _LOG.info("%s: %s", self.name, self.cluster.hide(error.args[0].str()))
                return False

        def until_there() -> None:
            if not self._is_there():
                error = confluent_kafka().KafkaError
                raise confluent_kafka().KafkaException(error(error.LEADER_NOT_AVAILABLE))

        with self.failures(f"find topic {TOPIC!r}"):
            patiently(until_there)
        return True

    def _is_there(self) -> bool:
        found = self._metadata(TOPIC)[TOPIC]
        if found.error is None:
            return True
        if found.error.name() in (*NO_TOPIC, *FORBIDDEN, "TOPIC_EXCEPTION"):
            return False
        raise confluent_kafka().KafkaException(found.error)

    def _metadata(self, topic: str | None) -> dict[str, Any]:
        try:
            listed = self._consumer.list_topics(topic, timeout=kafka_client.START_S)
        except confluent_kafka().KafkaException:
            self._consumer.poll(0)  # why: the callback for errors runs here
            raise
        return dict(listed.topics)

    def _allowed(self) -> bool:
        """Whether the user may read and write the topic; a broker that does not tell allows it."""
        topics = confluent_kafka().TopicCollection([TOPIC])
        wait_s = kafka_client.START_S

        def operations() -> Any:
            asked = self._admin.describe_topics(
                topics, include_authorized_operations=True, request_timeout=wait_s
            )
            return asked[TOPIC].result().authorized_operations

        try:
            found = patiently(operations, look=look_again(self._admin))
        except confluent_kafka().KafkaException as error:
            if error.args[0].name() in FORBIDDEN:
                return False
            raise self.explain(error.args[0], f"look up who may write topic {TOPIC!r}") from error
        names = {operation.name for operation in found or ()}
        return not names or {"READ", "WRITE"} <= names


class KafkaRegister(KafkaClient):
    """A number and a note that Kafka keeps under a name.

    The name is that of a consumer group; the note is at partition 0 of the compacted topic, if that
    can be used, and of one topic of the sink, where older versions of Turnback look for it.
    """

    def __init__(self, memory: KafkaMemory, group: str, topic: str) -> None:
        super().__init__(memory.cluster, memory.name)
        self.group = group
        self._memory = memory
        self._places = [TOPIC, topic] if memory.usable else [topic]
        self._consumer = self._new_consumer("read_committed")

    def get(self, *, settled: bool = True) -> list[Remembered]:
        """What is remembered; the newest last.

        Args:
            settled: Whether to wait until no transaction is open that may change it. A producer of
                the same transactional id ends such a transaction; until there is one, it may last.
        """
        with self.failures("read how far it is"):
            found = self._of_group(self._places, settled)
        if not found and self._memory.usable:
            kept = self._memory.find(self.group, settled=settled)
            found = [kept] if kept is not None else []
        return sorted(found)

    def get_anywhere(self, *, settled: bool = True) -> list[Remembered]:
        """As `get`; if there is nothing, also what was noted beside topics of other sinks."""
        found = self.get(settled=settled)
        if found:
            return found
        with self.failures("read whose it is"):
            topics = self._memory.topics()
            for first in range(0, len(topics), _AT_ONCE):
                found += self._of_group(topics[first : first + _AT_ONCE], settled)
        return sorted(found)

    def _of_group(self, topics: Sequence[str], settled: bool) -> list[Remembered]:
        api = confluent_kafka()
        wanted = [api.TopicPartition(topic, 0) for topic in topics]
        consumer = self._consumer if settled else self._new_consumer("read_uncommitted")

        def read() -> Any:
            found = consumer.committed(wanted, timeout=kafka_client.START_S)
            for place in found:
                if place.error is not None:
                    raise api.KafkaException(place.error)
            return found

        try:
            found = patiently(read, look=look_again(consumer))
        finally:
            if not settled:
                consumer.close()
        return [Remembered(p.offset, p.metadata or "") for p in found if p.offset >= 0]

    def _new_consumer(self, level: str) -> Any:
        own = {
            "group.id": self.group,
            "enable.auto.commit": False,
            "isolation.level": level,
            "allow.auto.create.topics": False,
        }
        settings = self.settings(own, of_producers(self.cluster))
        return self.make(confluent_kafka().Consumer, settings)

    def offsets(self, value: Remembered) -> GroupOffsets:
        """What a transaction commits so that it is remembered."""
        partition = confluent_kafka().TopicPartition
        offsets = [partition(topic, 0, value.number, value.note) for topic in self._places]
        return GroupOffsets(offsets, self._consumer.consumer_group_metadata())

    def records(self, value: Remembered) -> list[Record]:
        """What a transaction writes so that it is remembered for good."""
        if not self._memory.usable:
            return []
        return [(TOPIC, self.group.encode(), msgspec.json.encode((value.number, value.note)))]

    def close(self) -> None:
        self._consumer.close()
