"""Topics of Kafka: whether they are there, and whose readers wait for an open transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from turnback.connectors.kafka import client as kafka_client
from turnback.connectors.kafka.client import (
    FORBIDDEN,
    NO_TOPIC,
    Cluster,
    KafkaClient,
    confluent_kafka,
)
from turnback.core.extras import require
from turnback.errors import SinkError, TurnbackError

_SLICE_S = 1.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class TopicLimits(NamedTuple):
    """What a topic refuses: records with more bytes around them than these, or without a key.

    The bytes are None where they are not known.
    """

    bytes: int | None
    needs_key: bool


def topic_ids(admin: Any, topics: Iterable[str], timeout_s: float) -> dict[str, str]:
    """Kafka's ids of topics, by name; without those that are not there.

    A topic that is deleted and created again gets another id. Brokers before 2.8 have none.
    """
    names = list(topics)
    if not names:
        return {}
    wanted = confluent_kafka().TopicCollection(names)
    found: dict[str, str] = {}
    for name, answer in admin.describe_topics(wanted, request_timeout=timeout_s).items():
        try:
            text = str(answer.result().topic_id)
        except confluent_kafka().KafkaException as error:
            if error.args[0].name() not in NO_TOPIC:
                raise
        else:
            found |= {name: text} if text != _NO_ID else {}
    return found


class KafkaTopics(KafkaClient):
    """Looks at topics, and creates none; see `KafkaClient` for the arguments."""

    def __init__(
        self, cluster: Cluster, name: str, failure: type[TurnbackError] = SinkError
    ) -> None:
        super().__init__(cluster, name, failure)
        self._answered = False
        self._consumer = self.consumer("turnback.check", {})

    def all(self) -> dict[str, list[int]]:
        """The partitions of all topics that the user may see."""
        with self.failures("list topics"):
            found = self._metadata(None).topics
        return {name: sorted(topic.partitions) for name, topic in found.items()}

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic; `ConfigurationError` if there is no such topic."""
        with self.failures(f"find topic {topic!r}"):
            found = self._metadata(topic).topics[topic]
            if found.error is not None:
                raise confluent_kafka().KafkaException(found.error)
        return sorted(found.partitions)

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that a partition still has, and the one after its last."""
        place = confluent_kafka().TopicPartition(topic, partition)
        wait_s = kafka_client.START_S
        low, high = self.ask(
            f"read topic {topic!r}",
            lambda: self._consumer.get_watermark_offsets(place, timeout=wait_s),
            wait_s,
            self._consumer,
        )
        return int(low), int(high)

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's ids of topics, by name; without those that are not there or have none."""
        admin = self.admin()
        names = list(topics)
        wait_s = kafka_client.START_S
        return self.ask("look up topics", lambda: topic_ids(admin, names, wait_s), wait_s, admin)

    def limits(self, topic: str) -> TopicLimits:
        """What a topic refuses; nothing is known if the user may not look up its configuration."""
        api = require("confluent_kafka.admin", "kafka", "KafkaSink")
        admin = self.admin()
        wanted = api.ConfigResource(api.ConfigResource.Type.TOPIC, topic)
        wait_s = kafka_client.START_S

        def configuration() -> dict[str, Any]:
            (answer,) = admin.describe_configs([wanted], request_timeout=wait_s).values()
            try:
                return dict(answer.result())
            except confluent_kafka().KafkaException as error:
                if error.args[0].name() in FORBIDDEN:
                    return {}
                raise

        found = self.ask(f"look up the limits of topic {topic!r}", configuration, wait_s, admin)
        if not found:
            return TopicLimits(None, needs_key=False)
        policy = found["cleanup.policy"].value or ""
        return TopicLimits(int(found["max.message.bytes"].value), needs_key="compact" in policy)

    def held_up(self, topic: str) -> bool:
        """Whether a transaction is open in a topic, so that readers of committed records wait.

        Kafka shows such readers what comes before the first open transaction of a partition.
        """
        api = require("confluent_kafka.admin", "kafka", "KafkaSink")
        levels = confluent_kafka().IsolationLevel
        place = confluent_kafka().TopicPartition
        ends = {place(topic, n): api.OffsetSpec.latest() for n in self.partitions(topic)}
        admin = self.admin()

        wait_s = kafka_client.START_S

        def offsets(level: Any) -> dict[int, int]:
            found = admin.list_offsets(ends, isolation_level=level, request_timeout=wait_s)
            return {p.partition: future.result().offset for p, future in found.items()}

        def both() -> tuple[dict[int, int], dict[int, int]]:
            # In this order: what is written in between makes nobody wait.
            end = offsets(levels.READ_UNCOMMITTED)
            return end, offsets(levels.READ_COMMITTED)

        end, stable = self.ask("look for open transactions", both, wait_s, admin)
        return any(stable[number] < end[number] for number in end)

    @property
    def silent(self) -> bool:
        """Whether no server has answered or refused a password: it may be for the encryption."""
        return not self._answered and self.refused in (None, "_SSL")

    def close(self) -> None:
        self._consumer.close()

    def _metadata(self, topic: str | None) -> Any:
        """Ask until Kafka answers, refuses the login, or has had long enough."""
        end = time.monotonic() + kafka_client.START_S
        while True:
            left = end - time.monotonic()
            try:
                found = self._consumer.list_topics(topic, timeout=max(0.1, min(_SLICE_S, left)))
            except confluent_kafka().KafkaException:
                self._consumer.poll(0)  # why: the callback for errors runs here
                if self.refused is not None or time.monotonic() >= end:
                    raise
            else:
                self._answered = True
                return found
