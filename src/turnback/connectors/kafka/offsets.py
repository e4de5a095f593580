"""Offsets of Kafka, looked up while a job runs, over connections that stay open."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turnback.connectors.kafka.client import Cluster, KafkaClient, confluent_kafka, of_producers
from turnback.connectors.kafka.topics import topic_ids
from turnback.core.errors import SourceError
from turnback.core.extras import require

ANSWER_S = 5.0
"""How long Kafka may take to answer one question."""
_RECORDS_S = 5.0
_AT_ONCE = 50
"""Of so many partitions records are read together, which bounds what is held of them."""

Place = tuple[str, int]
"""A topic, and the number of a partition."""


@dataclass(frozen=True)
class TopicRetention:
    """For how long a topic keeps records.

    Attributes:
        ms: For so long; None for ever.
        by_size: Whether records go when there are too many bytes.
    """

    ms: int | None
    by_size: bool

    @property
    def limits(self) -> bool:
        return self.ms is not None or self.by_size


class KafkaOffsets(KafkaClient):
    """Asks where partitions begin and end, and how old a record is.

    Whatever Kafka does not answer in time is a `SourceError`.

    Args:
        cluster: Where to connect to.
        name: What error messages call the source.
        committed: Whether only committed records count, as its readers see them.
    """

    def __init__(self, cluster: Cluster, name: str, *, committed: bool = True) -> None:
        super().__init__(cluster, name, SourceError)
        self._api = require("confluent_kafka.admin", "kafka", "KafkaSource")
        levels = confluent_kafka().IsolationLevel
        self._level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        # While a broker is away its clients would log that again and again.
        settings = self.settings({"log_level": 0}, of_producers(cluster))
        self._admin = self.make(self._api.AdminClient, dict(settings))
        own = {
            "group.id": "turnback.lag",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            # One record of each partition is wanted, and no more than comes with it.
            "queued.min.messages": 1,
            "fetch.queue.backoff.ms": 20,
            "fetch.message.max.bytes": 64 * 1024,
            "fetch.wait.max.ms": 100,
        }
        self._consumer = self.make(confluent_kafka().Consumer, {**settings, **own})

    def partitions(self, topics: Collection[str] | None) -> list[Place]:
        """All partitions of these topics that are there; of all topics, if none is given."""
        with self.failures("list topics"):
            if topics is None:
                found = self._admin.list_topics(timeout=ANSWER_S).topics
            else:
                found = {
                    topic: self._admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
                    for topic in topics
                }
        return [(name, number) for name, topic in found.items() for number in topic.partitions]

    def begins(self, places: Iterable[Place]) -> dict[Place, int]:
        """The first offset that each partition still has."""
        return self._list(places, self._api.OffsetSpec.earliest())

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset behind the last record of each partition that its readers see."""
        return self._list(places, self._api.OffsetSpec.latest())

    def timestamps(self, positions: Mapping[Place, int]) -> dict[Place, int | None]:
        """When the next record at each position was written, in milliseconds since 1970.

        None if there is no record. Partitions that do not answer in time are left out.
        """
        found: dict[Place, int | None] = {}
        end = time.monotonic() + _RECORDS_S
        asked = list(positions.items())
        for first in range(0, len(asked), _AT_ONCE):
            with self.failures("look at the next records"):
                self._read_next(dict(asked[first : first + _AT_ONCE]), end, found)
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's ids of topics, by name; see `topic_ids`."""
        names = list(topics)

        def ids() -> dict[str, str]:
            return topic_ids(self._admin, names, ANSWER_S)

        return self.ask("look up topics", ids, ANSWER_S, self._admin)

    def retention(self, topics: Iterable[str]) -> dict[str, TopicRetention]:
        """For how long topics keep records; one that is only compacted keeps them for ever."""
        kind = self._api.ConfigResource.Type.TOPIC
        wanted = [self._api.ConfigResource(kind, topic) for topic in topics]

        def settings() -> dict[str, Any]:
            answers = self._admin.describe_configs(wanted, request_timeout=ANSWER_S)
            return {resource.name: answer.result() for resource, answer in answers.items()}

        found = self.ask("look up how long records are kept", settings, ANSWER_S, self._admin)
        return {topic: _retention({k: e.value for k, e in c.items()}) for topic, c in found.items()}

    def commit(self, group: str, positions: Mapping[Place, int]) -> None:
        """Commit positions to a consumer group that nobody consumes with."""
        api = confluent_kafka()
        offsets = [api.TopicPartition(*place, at) for place, at in positions.items()]
        wanted = [api.ConsumerGroupTopicPartitions(group, offsets)]

        def commit() -> None:
            answers = self._admin.alter_consumer_group_offsets(wanted, request_timeout=ANSWER_S)
            for answer in answers.values():
                for partition in answer.result().topic_partitions:
                    if partition.error is not None:
                        raise api.KafkaException(partition.error)

        self.ask(f"commit offsets of group {group!r}", commit, ANSWER_S, self._admin)

    def close(self) -> None:
        self._consumer.close()

    def _list(self, places: Iterable[Place], which: Any) -> dict[Place, int]:
        partition = confluent_kafka().TopicPartition
        wanted = {partition(*place): which for place in places}
        if not wanted:
            return {}

        def offsets() -> dict[Place, int]:
            answers = self._admin.list_offsets(
                wanted, isolation_level=self._level, request_timeout=ANSWER_S
            )
            return {(p.topic, p.partition): int(f.result().offset) for p, f in answers.items()}

        found = self.ask("look up offsets", offsets, ANSWER_S, self._admin)
        if any(offset < 0 for offset in found.values()):  # what librdkafka makes of a timeout
            raise SourceError(
                f"{self.name}: cannot look up offsets at {self.cluster.servers}: no answer within "
                f"{ANSWER_S:g} s"
            )
        return found

    def _read_next(
        self, positions: Mapping[Place, int], end: float, found: dict[Place, int | None]
    ) -> None:
        api = confluent_kafka()
        self._consumer.assign([api.TopicPartition(*place, at) for place, at in positions.items()])
        try:
            left = set(positions)
            while left and time.monotonic() < end:
                for message in self._consumer.consume(500, timeout=0.1):
                    place = (message.topic(), message.partition())
                    if place in left and message.error() is None:
                        kind, timestamp = message.timestamp()
                        if kind != api.TIMESTAMP_NOT_AVAILABLE:
                            found[place] = timestamp
                        left.discard(place)
                    elif place in left and message.error().name() == "_PARTITION_EOF":
                        found[place] = None
                        left.discard(place)
        finally:
            self._consumer.unassign()


def _retention(config: Mapping[str, str | None]) -> TopicRetention:
    if "delete" not in (config.get("cleanup.policy") or "delete"):
        return TopicRetention(None, by_size=False)
    ms, size = (int(config.get(f"retention.{unit}") or -1) for unit in ("ms", "bytes"))
    return TopicRetention(ms if ms >= 0 else None, by_size=size >= 0)
