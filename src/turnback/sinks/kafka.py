"""`KafkaSink`: records in a Kafka topic, with any of Kafka's delivery guarantees."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Self

from turnback.core.errors import ConfigurationError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
)
from turnback.sinks.kafka_client import Cluster, confluent_kafka
from turnback.sinks.kafka_records import KafkaRecordSerializationSchema
from turnback.sinks.kafka_streaming import StreamingDelivery
from turnback.sinks.kafka_transactions import TransactionalDelivery


class DeliveryGuarantee(Enum):
    """What holds for records when a job fails."""

    NONE = "none"
    """Records may be lost or come twice."""
    AT_LEAST_ONCE = "at-least-once"
    """Records may come twice."""
    EXACTLY_ONCE = "exactly-once"
    """Consumers that read committed records only see each record once."""


class KafkaSink(Sink):
    """Writes to a topic of Kafka; made with `KafkaSink.builder()`.

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
        self._cluster, self._topic, self.guarantee = cluster, records.topic, guarantee
        self._prefix = prefix
        self._delivery: Sink
        if guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            assert prefix is not None
            self._delivery = TransactionalDelivery(cluster, records, prefix)
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
        """Describe the sink, without its properties: a password may be among them."""
        described = {
            "kind": "kafka",
            "servers": self._cluster.servers,
            "topic": self._topic,
            "guarantee": self.guarantee.value,
        }
        if self._prefix is not None:
            described["transactional_id_prefix"] = self._prefix
        return described

    def __repr__(self) -> str:
        return f"KafkaSink({self._cluster.servers!r}, {self._topic!r}, {self.guarantee.name})"


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


def nonempty_text(what: str, value: Any) -> str:
    """Return a text that is not empty, or say what is wrong with it."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{what} is a text that is not empty, not {value!r:.80}")
    return value
