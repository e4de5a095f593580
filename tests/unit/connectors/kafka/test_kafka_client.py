"""What clients of Kafka ask again, and what they tell at once."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from turnback.connectors.kafka.client import Cluster, KafkaClient
from turnback.errors import SinkError, TurnbackError


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


class Looking:
    """What is asked, and remembers for minutes who leads a partition unless it looks again."""

    def __init__(self, *, silent: bool = False) -> None:
        self.looked = 0
        self._silent = silent

    def list_topics(self, timeout: float) -> None:
        assert timeout > 0
        self.looked += 1
        if self._silent:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def offset(self) -> int:
        if self.looked < 2:
            raise KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH))
        return 7


@pytest.mark.parametrize("silent", [False, True])
def test_who_leads_a_partition_is_looked_up_before_it_is_asked_for_again(silent):
    looking = Looking(silent=silent)
    assert client().ask("look up offsets", looking.offset, 60.0, looking) == 7
    assert looking.looked == 2


def test_a_partition_that_moves_is_asked_for_again():
    moving = Answers(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    assert client().ask("look up offsets", moving, patience_s=60.0, client=Looking()) == 7


def test_a_partition_that_goes_on_moving_is_told():
    moving = Answers(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 100)
    with pytest.raises(SinkError, match=r"Kafka: cannot look up offsets at broker:9092: .*eader"):
        client().ask("look up offsets", moving, patience_s=0.0, client=Looking())
    assert len(moving.left) == 99


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_what_will_not_pass_is_told_at_once(code):
    failing = Answers(code)
    with pytest.raises(TurnbackError, match="Kafka: cannot look up offsets at broker:9092"):
        client().ask("look up offsets", failing, patience_s=60.0, client=Looking())
    assert failing.left == []
