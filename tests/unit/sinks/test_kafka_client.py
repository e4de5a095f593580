"""What clients of Kafka ask again, and what they tell at once."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from turnback.connectors.kafka.client import Cluster, KafkaClient
from turnback.core.errors import SinkError, TurnbackError


def client() -> KafkaClient:
    return KafkaClient(Cluster("broker:9092"), "Kafka")


class Answers:
    """A question that Kafka answers with these errors, one after the other, and then with 7."""

    def __init__(self, *codes: int) -> None:
        self.left = list(codes)

    def __call__(self) -> int:
        if self.left:
            raise KafkaException(KafkaError(self.left.pop(0)))
        return 7


def test_a_partition_that_moves_is_asked_for_again():
    moving = Answers(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    assert client().ask("look up offsets", moving, patience_s=60.0) == 7


def test_a_partition_that_goes_on_moving_is_told():
    moving = Answers(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 100)
    with pytest.raises(SinkError, match=r"Kafka: cannot look up offsets at broker:9092: .*eader"):
        client().ask("look up offsets", moving, patience_s=0.0)
    assert len(moving.left) == 99


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_what_will_not_pass_is_told_at_once(code):
    failing = Answers(code)
    with pytest.raises(TurnbackError, match="Kafka: cannot look up offsets at broker:9092"):
        client().ask("look up offsets", failing, patience_s=60.0)
    assert failing.left == []
