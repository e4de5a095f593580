"""Defects of the Kafka sink to plant, see `plants`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any
from unittest import mock

from turnback.connectors.kafka import sink as kafka_transactions
from turnback.connectors.kafka.client import TransactionalProducer
from turnback.connectors.kafka.sink import GroupOffsetStore, TransactionalDelivery


def _no_fencing() -> Any:
    """Each producer has a transactional id of its own, so that an older attempt goes on."""

    def unfenced(cluster: Any, transactional_id: str, *args: Any, **named: Any) -> Any:
        own = f"{transactional_id}-{secrets.token_hex(4)}"
        return TransactionalProducer(cluster, own, *args, **named)

    return mock.patch.object(kafka_transactions, "TransactionalProducer", unfenced)


def _progress_of_a_lost_line_counts() -> Any:
    """Whoever takes over takes the noted version for its own, whichever driver has written it."""
    return mock.patch.object(TransactionalDelivery, "_is_foreign", lambda *args: False)


def _writes_again_without_looking() -> Any:
    """A commit whose outcome is unknown counts as aborted."""
    write_once = TransactionalDelivery._write_once

    def hasty(self: Any, what: str, is_written: Any, content: Any) -> None:
        write_once(self, what, lambda: False, content)

    return mock.patch.object(TransactionalDelivery, "_write_once", hasty)


def _unknown_commits_count_as_done() -> Any:
    commit = TransactionalProducer._write

    def careless(self: Any, records: Any, groups: Any) -> None:
        try:
            commit(self, records, groups)
        except kafka_transactions.confluent_kafka().KafkaException as error:
            if error.args[0].name() != "_TIMED_OUT":
                raise

    return mock.patch.object(TransactionalProducer, "_write", careless)


def _nothing_outlives_the_retention() -> Any:
    """Notes are in the offsets only, which Kafka forgets."""
    return mock.patch.object(GroupOffsetStore, "records", lambda self, value: [])


KAFKA_PLANTS: dict[str, Callable[[], Any]] = {
    "kafka-no-fencing": _no_fencing,
    "kafka-lost-line-counts": _progress_of_a_lost_line_counts,
    "kafka-writes-without-looking": _writes_again_without_looking,
    "kafka-unknown-is-done": _unknown_commits_count_as_done,
    "kafka-offsets-only": _nothing_outlives_the_retention,
}
