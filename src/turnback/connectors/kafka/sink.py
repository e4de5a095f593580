"""`KafkaSink`: records in topics of Kafka, with any of Kafka's delivery guarantees."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Self

from turnback.config.option import nonempty_text
from turnback.connectors.kafka.client import Cluster, confluent_kafka
from turnback.connectors.kafka.records import KafkaRecordSerializationSchema
from turnback.connectors.kafka.streaming import StreamingDelivery
from turnback.connectors.kafka.transactions import TransactionalDelivery
from turnback.core.errors import ConfigurationError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
)


class DeliveryGuarantee(Enum):
    """What holds for records when a job fails."""

    NONE = "none"
    """Records may be lost or come twice."""
    AT_LEAST_ONCE = "at-least-once"
    """Records may come twice."""
    EXACTLY_ONCE = "exactly-once"
    """Consumers that read committed records only see each record once."""


class KafkaSink(Sink):
    """Writes to topics of Kafka; made with `KafkaSink.builder()`.

    - `EXACTLY_ONCE`: tasks stage records in the job directory, and when their checkpoint is
      complete the driver writes them, each epoch in one transaction. Needs checkpoints, and
      consumers with `isolation.level=read_committed`.
    - `AT_LEAST_ONCE`: tasks write, and an epoch ends when Kafka has everything. What is replayed
      after a failure comes again.
    - `NONE`: tasks write and do not wait.
    """

    def __init__(
        self,
        cluster: Cluster,
        records: KafkaRecordSerializationSchema,
        guarantee: DeliveryGuarantee,
        prefix: str | None = None,
    ) -> None:
        self._cluster = cluster
        self.guarantee = guarantee
        self._topics = records.topics
        self._selects = records.selects
        self._prefix = prefix
        self._delivery: Sink
        if guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            assert prefix is not None
            self._delivery = TransactionalDelivery(
                cluster, records.topics, prefix, records, selects=records.selects
            )
        else:
            waits = guarantee is DeliveryGuarantee.AT_LEAST_ONCE
            self._delivery = StreamingDelivery(cluster, records, waits)

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        return KafkaSinkBuilder()

    @property
    def needs_checkpoints(self) -> bool:  # type: ignore[override]
        return self.guarantee is DeliveryGuarantee.EXACTLY_ONCE

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return self._delivery.writer(ctx)

    def check_claim(self, ctx: CommitterContext) -> None:
        self._delivery.check_claim(ctx)

    def claim(self, ctx: CommitterContext) -> None:
        self._delivery.claim(ctx)

    def committer(self, ctx: CommitterContext) -> Committer:
        return self._delivery.committer(ctx)

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return self._delivery.explain(transaction, ctx)

    def left_behind(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        return self._delivery.left_behind(ctx)

    def describe(self) -> dict[str, str]:
        """Describe the sink; of its properties only the names: a password may be among them."""
        described = {
            "kind": "kafka",
            "servers": self._cluster.servers,
            "topic": self._topics[0],
            "guarantee": self.guarantee.value,
        }
        if self._selects:
            described["topics"] = ",".join(self._topics)
        if self._prefix is not None:
            described["transactional_id_prefix"] = self._prefix
        if self._cluster.properties:
            described["properties"] = ",".join(sorted(self._cluster.properties))
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> Sink | None:
        """A sink that publishes what was staged; None if this one has no transactions.

        Raises:
            ConfigurationError: A property for the login is not in the environment.
        """
        if description.get("guarantee") != DeliveryGuarantee.EXACTLY_ONCE.value:
            return None
        for key in ("servers", "topic", "transactional_id_prefix"):
            if not description.get(key):
                raise ConfigurationError(f"the description of a Kafka sink has no {key}")
        topics = description.get("topics") or description["topic"]
        return TransactionalDelivery(
            Cluster(description["servers"], _properties_here(description.get("properties", ""))),
            topics.split(","),
            description["transactional_id_prefix"],
            selects="topics" in description,
        )

    def __repr__(self) -> str:
        topics = ", ".join(self._topics)
        return f"KafkaSink({self._cluster.servers!r}, {topics!r}, {self.guarantee.name})"


_VARIABLE = "TURNBACK_KAFKA_"


def _properties_here(names: str) -> dict[str, str]:
    """The properties of a sink whose program is not here, from the environment.

    `sasl.password` is in TURNBACK_KAFKA_SASL_PASSWORD. Only what is for the login is needed.
    """
    variables = {n: _VARIABLE + n.upper().replace(".", "_") for n in names.split(",") if n}
    login = ("security.", "sasl.", "ssl.", "enable.ssl.")
    missing = [v for n, v in variables.items() if n.startswith(login) and v not in os.environ]
    if missing:
        raise ConfigurationError(
            "the sink logs in to Kafka with properties that are kept nowhere. Set the environment "
            f"variables {', '.join(missing)}, or give the program as well"
        )
    return {n: os.environ[v] for n, v in variables.items() if v in os.environ}


_OWN = {
    "bootstrap.servers": "set_bootstrap_servers",
    "transactional.id": "set_transactional_id_prefix",
    "enable.idempotence": "set_delivery_guarantee",
    "key.serializer": "set_record_serializer",
    "value.serializer": "set_record_serializer",
}


class KafkaSinkBuilder:
    """Builds a `KafkaSink`: servers and serializer are needed, and for exactly-once a prefix."""

    def __init__(self) -> None:
        self._servers: str | None = None
        self._records: KafkaRecordSerializationSchema | None = None
        self._guarantee = DeliveryGuarantee.NONE
        self._prefix: str | None = None
        self._properties: dict[str, str] = {}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> Self:
        """Set where the cluster is: "host:port", several with commas between them."""
        self._servers = nonempty_text("KafkaSink: bootstrap servers", bootstrap_servers)
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> Self:
        """Set what becomes of elements."""
        if not isinstance(record_serializer, KafkaRecordSerializationSchema):
            raise ConfigurationError(
                "KafkaSink: set_record_serializer takes a KafkaRecordSerializationSchema, not "
                f"{record_serializer!r:.80}; its builder has to be built"
            )
        self._records = record_serializer
        return self

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> Self:
        """Set what holds for records when the job fails; by default `NONE`, as in Flink."""
        if not isinstance(delivery_guarantee, DeliveryGuarantee):
            raise ConfigurationError(
                f"KafkaSink: set_delivery_guarantee takes a DeliveryGuarantee, not "
                f"{delivery_guarantee!r:.80}"
            )
        self._guarantee = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> Self:
        """Set the name of the sink's transactions, of which no other sink of any job has any."""
        what = "KafkaSink: transactional-id prefix"
        self._prefix = nonempty_text(what, transactional_id_prefix)
        return self

    def set_property(self, key: str, value: str) -> Self:
        """Set a property of the client, librdkafka, such as "security.protocol"."""
        key = nonempty_text("KafkaSink: the key of a property", key)
        if key in _OWN:
            raise ConfigurationError(f"KafkaSink: do not set {key!r}; call {_OWN[key]}")
        if key == "sasl.jaas.config":
            raise ConfigurationError(
                "KafkaSink: sasl.jaas.config is of Java's client; set sasl.mechanism, "
                "sasl.username and sasl.password"
            )
        if not isinstance(value, str | int | float | bool):
            raise ConfigurationError(f"KafkaSink: the property {key!r} has to be a string")
        self._properties[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def build(self) -> KafkaSink:
        """Build the sink, without connecting to Kafka.

        Raises:
            ConfigurationError: Something is missing, or confluent-kafka is not installed.
        """
        if self._servers is None:
            raise ConfigurationError("KafkaSink: call set_bootstrap_servers(...)")
        if self._records is None:
            raise ConfigurationError("KafkaSink: call set_record_serializer(...)")
        confluent_kafka()
        exactly_once = self._guarantee is DeliveryGuarantee.EXACTLY_ONCE
        if exactly_once and self._prefix is None:
            raise ConfigurationError(
                "KafkaSink: exactly-once needs set_transactional_id_prefix(...), a name that no "
                "other sink has; it must stay the same when the job is started again"
            )
        cluster = Cluster(self._servers, dict(self._properties))
        return KafkaSink(
            cluster, self._records, self._guarantee, self._prefix if exactly_once else None
        )
