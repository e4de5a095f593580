"""The real `KafkaSink`, over a broker whose network, restarts and memory are the world's."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar
from unittest import mock

import confluent_kafka
from confluent_kafka import admin

from simulation.kafka_broker import Broker, State, failure
from simulation.kafka_clients import AdminClient, Consumer, Producer
from simulation.threads import SimThread
from simulation.world import World
from turnback.connectors import JsonRowSerializationSchema
from turnback.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema
from turnback.connectors.kafka import client as kafka_client
from turnback.connectors.kafka import records as kafka_records
from turnback.connectors.kafka import sink as kafka_memory
from turnback.connectors.kafka import sink as kafka_streaming
from turnback.connectors.kafka import topics as kafka_topics
from turnback.connectors.kafka.client import Cluster
from turnback.connectors.kafka.sink import KafkaSink
from turnback.sinks.base import Committer, CommitterContext, Sink

T = TypeVar("T")
KINDS = {
    "kafka": DeliveryGuarantee.EXACTLY_ONCE,
    "kafka-streaming": DeliveryGuarantee.AT_LEAST_ONCE,
}
_PARTITIONS = 2


class Kafka:
    """The broker of the world that is being played, and the way there."""

    world: ClassVar[World]
    broker: ClassVar[Broker]
    away_until: ClassVar[int]
    """Until this step nobody reaches the broker."""
    sinks: ClassVar[dict[tuple[str, str], Sink]]
    """The sinks of each process: they keep producers and consumers."""
    producers: ClassVar[dict[str, Producer]]
    """The producer of each process that streams."""

    @classmethod
    def begin(cls, world: World) -> None:
        cls.world = world
        cls.broker = Broker()
        cls.away_until = 0
        cls.sinks = {}
        cls.producers = {}
        for kind in KINDS:
            cls.broker.create_topic(kind, _PARTITIONS, {})

    @classmethod
    def process(cls) -> str:
        here = cls.world.here()
        assert here is not None
        return here.process.name


class WorldNetwork:
    """Requests are steps of the world; now and then somebody hears how a transaction has ended."""

    def __init__(self, world: World) -> None:
        self._world = world

    def request(self, what: str, action: Callable[[], T], *, writes: bool) -> T:
        world = self._world
        self._spread_news()
        if Kafka.away_until > world.steps and not world.healthy:
            self.sleep(1.0)
            raise failure("_TIMED_OUT", f"{what}: the broker is away")
        return world.call(
            f"kafka: {what}", action, lambda text: failure("_TIMED_OUT", text), writes=writes
        )

    def sleep(self, seconds: float) -> None:
        self._world.clock.sleep(seconds)

    def monotonic(self) -> float:
        return self._world.clock.monotonic()

    def chance(self) -> bool:
        return self._world.rng.random() < 0.5

    def _spread_news(self) -> None:
        broker, rng = Kafka.broker, self._world.rng
        if self._world.healthy:
            broker.finish()
        for transaction in broker.unfinished():
            if rng.random() < 0.5:
                broker.inform(transaction, rng.randrange(len(transaction.unaware)))


class SimulatedKafka(KafkaSink):
    """A sink of which each process has its own, as if it had run the program itself."""

    def __init__(self, kind: str) -> None:
        records = (
            KafkaRecordSerializationSchema.builder()
            .set_topic(kind)
            .set_key_field("key")
            .set_value_serialization_schema(JsonRowSerializationSchema())
            .build()
        )
        guarantee = KINDS[kind]
        prefix = kind if guarantee is DeliveryGuarantee.EXACTLY_ONCE else None
        super().__init__(Cluster("kafka:9092"), records, guarantee, prefix)

    def committer(self, ctx: CommitterContext) -> Committer:
        mine = (Kafka.process(), self._topics[0])
        if mine not in Kafka.sinks:
            Kafka.sinks[mine] = copy.deepcopy(self._delivery)
        return Kafka.sinks[mine].committer(ctx)


def draw(seed: int) -> tuple[str, ...]:
    """The sinks to Kafka that a seed has; apart from all else that it decides."""
    rng = random.Random(f"kafka {seed}")
    return tuple(kind for kind in KINDS if rng.random() < 0.2)


def rows(kind: str) -> list[tuple[Any, ...]]:
    """What readers of committed records see, when everybody has heard of all transactions."""
    Kafka.broker.finish()
    found = [json.loads(value or b"") for _, value in Kafka.broker.rows(kind)]
    return [(row["key"], row["n"]) for row in found]


def left_open(kind: str) -> bool:
    """Whether readers wait for a transaction to end."""
    return any(p.stable < p.end for p in Kafka.broker.topic(kind).partitions)


def disturb(world: World) -> None:
    """Do something to the broker."""
    broker, rng = Kafka.broker, world.rng
    what = rng.choice(("restart", "expire", "forget", "compact"))
    if what == "restart":
        world.tell("== the broker restarts")
        Kafka.away_until = world.steps + rng.choice((5, 30, 100))
    elif what == "expire":
        for name, transaction in broker.transactions.items():
            if transaction.state is State.ONGOING:
                world.tell(f"== the transaction of {name} has lasted too long")
                broker.expire(transaction)
    elif what == "forget":
        world.tell("== the broker forgets offsets")
        for group in sorted(broker.groups):
            if rng.random() < 0.7:
                broker.forget(group)
    elif kafka_memory.TOPIC in broker.topics:
        world.tell("== the broker compacts its memory of sinks")
        for partition in broker.topic(kafka_memory.TOPIC).partitions:
            partition.compact()


@contextmanager
def simulated_kafka(world: World) -> Iterator[None]:
    """An empty broker, whose clients are steps of the world."""
    Kafka.begin(world)
    network = WorldNetwork(world)
    time = SimpleNamespace(monotonic=world.clock.monotonic, sleep=world.clock.sleep)

    class SimFuture(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            if not self.done() and not world.wait_until(self.done, timeout):
                raise TimeoutError
            return super().result(0)

    def of_process(servers: str, properties: object) -> Producer:
        process = Kafka.process()
        if process not in Kafka.producers:
            Kafka.producers[process] = Producer(Kafka.broker, network, {})
        return Kafka.producers[process]

    def client(kind: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda settings: kind(Kafka.broker, network, settings)

    def thread(target: Callable[[], None], name: str, daemon: bool) -> SimThread:
        return SimThread(world, target, name, daemon)

    kafka_records._FOUND.clear()
    kafka_records._LIMITS.clear()
    with ExitStack() as patches:
        for owner, name, value in (
            (confluent_kafka, "Producer", client(Producer)),
            (confluent_kafka, "Consumer", client(Consumer)),
            (admin, "AdminClient", client(AdminClient)),
            (kafka_client, "time", time),
            (kafka_memory, "time", time),
            (kafka_topics, "time", time),
            (kafka_client, "Thread", thread),
            (kafka_client, "Future", SimFuture),
            (kafka_streaming, "_process_producer", of_process),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        yield
