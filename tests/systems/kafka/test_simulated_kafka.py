"""The broker of the simulation answers as a real one does: the same steps, the same answers.

Steps are what sinks do: producers of one transactional id that fence each other, records and
offsets in one transaction, readers of committed records, and looks at topics.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import admin as real_admin
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec

from services.kafka import KafkaBroker
from simulation import kafka_clients
from simulation.kafka_broker import Broker

_WAIT_S = 10.0
_UNSTABLE_S = 0.3
_SETTLE_S = 15.0
_WALKS = 12
_STEPS = 14
Answer = Any


class DirectNetwork:
    """Nothing fails; whoever waits lets everybody hear of transactions that have ended."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._now = 0.0

    def request(self, what: str, action: Callable[[], Any], *, writes: bool) -> Any:
        return action()

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self._broker.finish()

    def monotonic(self) -> float:
        return self._now

    def chance(self) -> bool:
        return False


class Side:
    """A broker, real or simulated, and what sinks ask of it."""

    def __init__(self, make: Callable[[str, dict[str, Any]], Any]) -> None:
        self._make = make
        self.topic = f"topic-{uuid.uuid4().hex[:8]}"
        self.group = f"group-{self.topic}"
        self.admin = make("AdminClient", {})
        self.create(self.topic)

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, 1, -1)], request_timeout=_WAIT_S)[topic].result()

    def producer(self, name: str = "mine", timeout_ms: int = 60_000) -> Any:
        own = {
            "transactional.id": f"{name}-{self.topic}",
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 1,
            "log_level": 0,
        }
        return self._make("Producer", own)

    def consumer(self, level: str) -> Any:
        own = {
            "group.id": self.group,
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
            "fetch.wait.max.ms": 10,
        }
        return self._make("Consumer", own)

    def begun(self, name: str = "mine", **more: Any) -> Any:
        """A producer in a transaction."""
        producer = self.producer(name, **more)
        producer.init_transactions(_WAIT_S)
        producer.begin_transaction()
        return producer

    def write(self, producer: Any, value: str) -> None:
        producer.produce(self.topic, value.encode(), b"key")
        assert producer.flush(_WAIT_S) == 0

    def note(self, producer: Any, number: int) -> None:
        place = TopicPartition(self.topic, 0, number, f"note {number}")
        group = self.consumer("read_committed").consumer_group_metadata()
        producer.send_offsets_to_transaction([place], group, _WAIT_S)

    def ends(self) -> list[int]:
        """The end of the topic, and where readers of committed records stop."""
        place = TopicPartition(self.topic, 0)
        wanted = {place: OffsetSpec.latest()}
        levels = (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        return [
            self.admin.list_offsets(wanted, isolation_level=level, request_timeout=_WAIT_S)[place]
            .result()
            .offset
            for level in levels
        ]

    def read(self, level: str = "read_committed", first: int = 0) -> list[Any]:
        """Offsets and values of what a reader sees, and the offset at which it ends."""
        consumer = self.consumer(level)
        consumer.assign([TopicPartition(self.topic, 0, first)])
        found: list[Any] = []
        try:
            for _ in range(200):
                for message in consumer.consume(10, timeout=0.1):
                    if message.error() is not None:
                        return [*found, (message.error().name(), message.offset())]
                    found.append((message.offset(), message.key(), message.value()))
        finally:
            consumer.close()
        raise AssertionError(f"no end within time: {found}")

    def committed(self, level: str = "read_committed") -> Answer:
        consumer = self.consumer(level)
        place = TopicPartition(self.topic, 0)
        try:
            (found,) = consumer.committed([place], timeout=_UNSTABLE_S)
        except KafkaException as error:
            return error.args[0].name()
        finally:
            consumer.close()
        return found.offset, found.metadata or "", found.error

    def settle(self) -> None:
        """Wait until everybody has heard of the transactions that have ended."""
        end = time.monotonic() + _SETTLE_S
        while time.monotonic() < end:
            if len(set(self.ends())) == 1 and self.committed() != "_TIMED_OUT":
                return
            self.pause()
        raise AssertionError(f"a transaction stays open: {self.ends()}, {self.committed()}")

    def pause(self) -> None:
        time.sleep(0.05)


class SimulatedSide(Side):
    def __init__(self) -> None:
        self.broker = Broker()
        self.network = DirectNetwork(self.broker)
        super().__init__(
            lambda kind, own: getattr(kafka_clients, kind)(self.broker, self.network, own)
        )

    def pause(self) -> None:
        self.broker.finish()


def real_side(kafka: KafkaBroker) -> Side:
    def make(kind: str, own: dict[str, Any]) -> Any:
        owner = real_admin if kind == "AdminClient" else confluent_kafka
        return getattr(owner, kind)({"bootstrap.servers": kafka.servers, **own})

    return Side(make)


def tried(action: Callable[..., object], *args: Any, **named: Any) -> str:
    """How a step ends."""
    try:
        action(*args, **named)
    except KafkaException as error:
        return str(error.args[0].name())
    return "done"


def records_and_offsets_together(side: Side) -> Iterator[Answer]:
    yield side.committed()
    producer = side.begun()
    side.write(producer, "a")
    side.note(producer, 7)
    yield side.ends(), side.read(), side.read("read_uncommitted")
    yield side.committed(), side.committed("read_uncommitted")
    yield tried(producer.commit_transaction, _WAIT_S)
    side.settle()
    yield side.ends(), side.read(), side.read(first=1), side.committed()
    producer.begin_transaction()
    yield tried(producer.commit_transaction, _WAIT_S)  # of nothing
    yield side.ends()
    producer.begin_transaction()
    side.note(producer, 8)
    yield tried(producer.commit_transaction, _WAIT_S)  # of an offset alone
    side.settle()
    yield side.ends(), side.committed()


def a_newer_producer_fences(side: Side) -> Iterator[Answer]:
    older = side.begun()
    side.write(older, "a")
    side.note(older, 1)
    newer = side.producer()
    yield tried(newer.init_transactions, _WAIT_S)
    side.settle()
    yield side.ends(), side.read(), side.read("read_uncommitted"), side.committed()
    yield tried(side.note, older, 2), tried(older.commit_transaction, _WAIT_S)
    yield tried(older.close, 1.0)
    newer.begin_transaction()
    side.write(newer, "b")
    yield tried(newer.commit_transaction, _WAIT_S)
    side.settle()
    yield side.ends(), side.read(), side.committed()


def a_commit_comes_too_late(side: Side) -> Iterator[Answer]:
    older = side.begun()
    side.write(older, "a")
    side.begun()
    yield tried(older.commit_transaction, _WAIT_S)
    side.settle()
    yield side.read()


def a_transaction_lasts_too_long(side: Side) -> Iterator[Answer]:
    producer = side.begun(timeout_ms=1000)
    side.write(producer, "a")
    side.note(producer, 1)
    if isinstance(side, SimulatedSide):
        (transaction,) = side.broker.transactions.values()
        side.broker.expire(transaction)
    side.settle()
    yield side.ends(), side.read(), side.committed()
    yield tried(producer.commit_transaction, _WAIT_S)
    yield side.read(), side.committed()
    newer = side.begun()
    side.write(newer, "b")
    yield tried(newer.commit_transaction, _WAIT_S)
    side.settle()
    yield side.ends(), side.read()


def a_producer_is_closed(side: Side) -> Iterator[Answer]:
    """An open transaction is aborted, as far as it was sent."""
    producer = side.begun()
    side.write(producer, "a")
    side.note(producer, 1)
    producer.produce(side.topic, b"b", b"key")
    producer.purge()
    yield tried(producer.close, 1.0)
    side.settle()
    yield side.ends(), side.read(), side.read("read_uncommitted"), side.committed()


def ids_have_nothing_to_do_with_each_other(side: Side) -> Iterator[Answer]:
    mine = side.begun()
    side.write(mine, "a")
    other = side.begun("other")
    side.write(other, "b")
    side.note(other, 3)
    yield tried(other.commit_transaction, _WAIT_S)
    while side.committed() == "_TIMED_OUT":
        side.pause()
    yield side.committed()
    yield side.read(), side.read("read_uncommitted", first=1)[0]
    yield tried(mine.commit_transaction, _WAIT_S)
    side.settle()
    yield side.read(), side.ends()


def steps_out_of_order(side: Side) -> Iterator[Answer]:
    producer = side.begun()
    yield tried(producer.init_transactions, _WAIT_S), tried(producer.begin_transaction)
    yield tried(producer.commit_transaction, _WAIT_S)
    yield tried(side.note, producer, 1)


def looks_at_topics(side: Side) -> Iterator[Answer]:
    yield tried(side.create, side.topic)
    found = side.consumer("read_committed").list_topics(side.topic, timeout=_WAIT_S).topics
    yield sorted(found[side.topic].partitions), found[side.topic].error
    missing = side.consumer("read_committed").list_topics("missing", timeout=_WAIT_S).topics
    yield dict(missing["missing"].partitions), missing["missing"].error.name()
    for topic in (side.topic, "missing"):
        described = side.admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=_WAIT_S
        )
        yield tried(described[topic].result)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (answer,) = side.admin.describe_configs([resource], request_timeout=_WAIT_S).values()
        yield tried(answer.result)
        if topic == side.topic:
            config = answer.result()
            yield [config[key].value for key in ("cleanup.policy", "max.message.bytes")]
        place = TopicPartition(topic, 0)
        (answer,) = side.admin.list_offsets(
            {place: OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_WAIT_S,
        ).values()
        yield tried(answer.result)


SCENARIOS = (
    records_and_offsets_together,
    a_newer_producer_fences,
    a_commit_comes_too_late,
    a_transaction_lasts_too_long,
    a_producer_is_closed,
    ids_have_nothing_to_do_with_each_other,
    steps_out_of_order,
    looks_at_topics,
)


def walk(side: Side, seed: int) -> Iterator[Answer]:
    """Producers of two ids do what sinks do, in an order that a seed decides."""
    rng = random.Random(seed)
    running: list[tuple[str, Any]] = []
    for number in range(_STEPS):
        if not running or rng.random() < 0.25:
            name = rng.choice(("mine", "mine", "other"))
            running.append((name, side.begun(name)))
            yield number, name, "begins"
            continue
        chosen = rng.choice(running)
        name, producer = chosen
        step = rng.choice(("write", "note", "commit", "commit", "close"))
        if step == "write":
            answer = tried(side.write, producer, str(number))
        elif step == "note":
            answer = tried(side.note, producer, number)
        elif step == "commit":
            answer = tried(producer.commit_transaction, _WAIT_S)
            if answer == "done":
                producer.begin_transaction()
        else:
            answer = tried(producer.close, 1.0)
        yield number, name, step, answer
        if answer != "done" or step == "close":
            running.remove(chosen)
    for name in ("mine", "other"):
        side.begun(name).abort_transaction(_WAIT_S)
    side.settle()
    yield side.ends(), side.read(), side.committed()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_simulated_broker_answers_as_a_real_one(
    kafka: KafkaBroker, scenario: Callable[[Side], Iterator[Answer]]
) -> None:
    real = real_side(kafka)
    settle_coordinator(real)
    assert list(scenario(SimulatedSide())) == list(scenario(real))


@pytest.mark.parametrize("seed", range(_WALKS))
def test_the_simulated_broker_goes_along(kafka: KafkaBroker, seed: int) -> None:
    real = real_side(kafka)
    settle_coordinator(real)
    assert list(walk(SimulatedSide(), seed)) == list(walk(real, seed))


def settle_coordinator(side: Side) -> None:
    """Wait until the broker has found out that it coordinates the group."""
    end = time.monotonic() + 30
    while isinstance(side.committed(), str) and time.monotonic() < end:
        time.sleep(0.1)
