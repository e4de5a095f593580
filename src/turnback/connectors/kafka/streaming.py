"""Output to Kafka from tasks, at once: at least once, or without any guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from turnback.connectors.kafka.client import (
    Cluster,
    KafkaClient,
    confluent_kafka,
    producer_defaults,
    send_all,
)
from turnback.connectors.kafka.records import (
    KafkaRecordSerializationSchema,
    check_target,
    require_topics,
)
from turnback.core.errors import SinkError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
    name_sink,
)
from turnback.values.columns import Batch

_FLUSH_S = 120.0


class StreamingDelivery(Sink):
    """Writes from tasks, at once; what a task has written cannot be taken back.

    Args:
        waits: Whether an epoch ends only when Kafka has all its records.
    """

    def __init__(
        self, cluster: Cluster, records: KafkaRecordSerializationSchema, waits: bool
    ) -> None:
        self.cluster = cluster
        self.records = records
        self._waits = waits

    def check_claim(self, ctx: CommitterContext) -> None:
        check_target(self.cluster, self.records, ctx)

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return _StreamingWriter(self, ctx, self._waits)

    def committer(self, ctx: CommitterContext) -> Committer:
        return _NothingToCommit()


class _StreamingWriter(SinkWriter):
    def __init__(self, sink: StreamingDelivery, ctx: WriterContext, waits: bool) -> None:
        self._sink = sink
        self._waits = waits
        self._client = KafkaClient(sink.cluster, name_sink(ctx.job, ctx.uid))
        self._problem: tuple[Any, str] | None = None

    def write(self, batch: Batch) -> None:
        self._check()
        records = list(self._sink.records.serialize(batch))
        topics = {topic for topic, _, _ in records}
        if self._sink.records.selects:
            unnamed = topics - {*self._sink.records.topics}
            require_topics(self._sink.cluster, unnamed, self._client.name)
        with self._client.failures(_writing(*sorted(topics))):
            send_all(self._producer(), records, self._on_delivery)

    def prepare(self) -> bytes | None:
        if self._waits:
            left = self._producer().flush(_FLUSH_S)
            self._check()
            if left:
                raise SinkError(
                    f"{self._client.name}: Kafka has not taken {left} records within "
                    f"{_FLUSH_S:g} s; the epoch is tried again"
                )
        return None

    def abort(self) -> None:
        """Nothing can be taken back."""

    def _producer(self) -> Any:
        properties = tuple(sorted(self._sink.cluster.properties.items()))
        return _process_producer(self._sink.cluster.servers, properties)

    def _check(self) -> None:
        if self._waits and self._problem is not None:
            error, topic = self._problem
            raise self._client.explain(error, _writing(topic))

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None and self._problem is None:
            self._problem = error, message.topic()


def _writing(*topics: str) -> str:
    return f"write to topic {', '.join(map(repr, topics))}"


@lru_cache(maxsize=4)
def _process_producer(servers: str, properties: tuple[tuple[str, str], ...]) -> Any:
    """One producer for all tasks of a process, one after the other."""
    client = KafkaClient(Cluster(servers, dict(properties)), "KafkaSink")
    settings = {**producer_defaults(), **client.settings({})}
    del settings["transaction.timeout.ms"]
    return client.make(confluent_kafka().Producer, settings)


class _NothingToCommit:
    def commit(self, transactions: Sequence[bytes]) -> None:
        """Nothing to do: there are no transactions."""

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Nothing to do."""

    def recover(self, pending: Sequence[bytes]) -> None:
        """Nothing to do."""

    def discard_others(self, known: Sequence[bytes]) -> None:
        """Nothing to do."""
