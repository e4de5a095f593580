"""Clients of Kafka: their settings, what their errors mean, and producers with transactions."""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from turnback.core.extras import require
from turnback.errors import ConfigurationError, SinkError, TurnbackError

_LOG = logging.getLogger(__name__)

START_S = 10.0
"""How long a cluster may take to answer when a job starts."""
PATIENCE_S = 30.0
"""How long to go on when a cluster is there, but not ready: it has just started, say."""
_LOOK_S = 0.1
_COMMIT_S = 60.0
_HIDDEN = "***"
_SECRET = re.compile(r"password|secret|jaas|token|oauth|\.pem$|\.key$", re.IGNORECASE)

Record = tuple[str, bytes | None, bytes | None]
"""Topic, key and value."""
T = TypeVar("T")

# librdkafka's codes by name, because the client may not be installed where this is imported.
MOVING = (
    "_WAIT_COORD",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "_NOENT",
)
"""Another broker takes over, or the first one a topic that was just made: soon it will answer.

`_NOENT` is what librdkafka says itself where no partition it was asked for has a leader.
"""
PASSING = (
    *MOVING,
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "_TRANSPORT",
    "CONCURRENT_TRANSACTIONS",
    "REQUEST_TIMED_OUT",
    "UNSTABLE_OFFSET_COMMIT",
)
FORBIDDEN = (
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)
_LOGIN = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL")
_AWAY = ("_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TRANSPORT")
NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")


def confluent_kafka() -> Any:
    """The client library, imported where it is first used."""
    return require("confluent_kafka", "kafka", "KafkaSink")


@dataclass(frozen=True)
class Cluster:
    """Where Kafka is, and how to log in."""

    servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def hide(self, text: object) -> str:
        """A text without the values of settings that are secret."""
        shown = str(text)
        for key, value in self.properties.items():
            if value and _SECRET.search(key):
                shown = shown.replace(value, _HIDDEN)
        return shown


class KafkaClient:
    """What producers and consumers have in common; `name` is what messages call the sink or source.

    `failure` is the error for what may pass, such as a cluster that does not answer.
    """

    def __init__(
        self, cluster: Cluster, name: str, failure: type[TurnbackError] = SinkError
    ) -> None:
        self.cluster = cluster
        self.name = name
        self._failure = failure
        self.refused: str | None = None
        """Kafka's code for refusing the login, once it has done so."""
        self._refusal = ""

    def settings(self, own: Mapping[str, Any], ignored: Iterable[str] = ()) -> dict[str, Any]:
        given = {k: v for k, v in self.cluster.properties.items() if k not in ignored}
        return {
            **given,
            "bootstrap.servers": self.cluster.servers,
            "error_cb": self._on_error,
            "logger": _LOG,
            **own,
        }

    def make(self, kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
        """Make a client; `ConfigurationError` if a setting cannot be used."""
        try:
            return kind(settings)
        except (confluent_kafka().KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self.name}: invalid Kafka setting: {self.cluster.hide(_text(error))}"
            ) from None

    def consumer(self, group: str, own: Mapping[str, Any]) -> Any:
        """Make a consumer that creates no topics and commits nothing by itself."""
        fixed = {"enable.auto.commit": False, "allow.auto.create.topics": False}
        settings = self.settings({"group.id": group, **fixed, **own}, of_producers(self.cluster))
        return self.make(confluent_kafka().Consumer, settings)

    def admin(self, own: Mapping[str, Any] | None = None) -> Any:
        """Make a client that looks things up."""
        api = require("confluent_kafka.admin", "kafka", "KafkaSink")
        return self.make(api.AdminClient, self.settings(own or {}, of_producers(self.cluster)))

    @contextmanager
    def failures(self, what: str) -> Iterator[None]:
        """Raise what a failure of Kafka means to the user."""
        try:
            yield
        except confluent_kafka().KafkaException as error:
            raise self.explain(error.args[0], what) from error

    def ask(self, what: str, question: Callable[[], T], patience_s: float, client: Any) -> T:
        """Ask Kafka something, again and again while what is asked for moves between brokers.

        A client remembers which broker leads a partition, for minutes, and goes on asking that one.
        So before each try but the first `client`, by which `question` asks, looks who leads now. A
        cluster that does not answer at all is not asked again.
        """
        with self.failures(what):
            return retry_while(question, patience_s, MOVING, look=look_again(client))

    def explain(self, error: Any, what: str) -> TurnbackError:
        """The error for what Kafka has answered; `what` could not be done."""
        code = error.name()
        text = self.cluster.hide(_text(error))
        start = f"{self.name}: cannot {what} at {self.cluster.servers}: "
        if self.refused is not None or code in _LOGIN:
            return ConfigurationError(
                f"{start}Kafka rejected the login: {self._refusal or text}. Check the properties "
                "security.protocol, sasl.* and ssl.*"
            )
        if code in FORBIDDEN:
            return ConfigurationError(f"{start}{text}. Request this permission in Kafka's ACLs")
        if code in NO_TOPIC:
            return ConfigurationError(f"{start}{text}. Create the topic first")
        if code == "INVALID_TRANSACTION_TIMEOUT":
            return ConfigurationError(
                f"{start}the transaction timeout is above the broker's maximum. Set the property "
                "transaction.timeout.ms to at most the broker's transaction.max.timeout.ms, "
                "which is 900000 by default"
            )
        if code == "MSG_SIZE_TOO_LARGE":
            return ConfigurationError(
                f"{start}{text}. Raise the property message.max.bytes, and the topic's "
                "max.message.bytes"
            )
        if code in _AWAY:
            text += ". Check that the address is correct and that this machine can reach it"
        return self._failure(f"{start}{text}")

    def _on_error(self, error: Any) -> None:
        if error.name() in _LOGIN:
            self.refused, self._refusal = error.name(), self.cluster.hide(_text(error))


class GroupOffsets(NamedTuple):
    """Offsets of a consumer group, as a transaction commits them."""

    offsets: Sequence[Any]
    membership: Any


class TransactionalProducer(KafkaClient):
    """Writes transactions under one id; whoever made the last producer of an id fences the others.

    When it is made, what an earlier producer left is settled: a transaction that was about to be
    committed is, any other is aborted. With `one_by_one` each record goes by itself: Kafka measures
    what comes together against the limit for one record, and the limit of a topic may be below what
    producers gather.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, name: str, *, one_by_one: bool = False
    ) -> None:
        super().__init__(cluster, name)
        own: dict[str, Any] = {"transactional.id": transactional_id}
        if one_by_one:
            own["batch.size"] = 1
        self._producer = self.make(
            confluent_kafka().Producer, {**producer_defaults(), **self.settings(own)}
        )
        self._problem: Any = None
        self._sending: Thread | None = None
        with self.failures("begin transactions"):
            retry_while(lambda: self._producer.init_transactions(START_S))

    def write(self, records: Iterable[Record], groups: Sequence[GroupOffsets]) -> None:
        """Write records and commit offsets of consumer groups, in one transaction.

        Raises:
            KafkaException: It may or may not have been committed. Make a new producer, then look
                what the groups have.
        """
        self._problem = None
        try:
            self._write(records, groups)
        except SystemError as error:
            # The client has failed without saying why, as it may when it was fenced meanwhile.
            kinds = confluent_kafka().KafkaError
            raise confluent_kafka().KafkaException(kinds(kinds._FAIL, str(error))) from error

    def _write(self, records: Iterable[Record], groups: Sequence[GroupOffsets]) -> None:
        self._producer.begin_transaction()
        try:
            send_all(self._producer, records, self._on_delivery)
            for group in groups:
                self._send_offsets(group)
            self._producer.commit_transaction(_COMMIT_S)
        except confluent_kafka().KafkaException as error:
            # "A record could not be delivered" or "erroneous state" does not say why; the report
            # of the record does, which may not have been looked at yet.
            self._producer.poll(0)
            raise confluent_kafka().KafkaException(self._problem or error.args[0]) from error

    def _send_offsets(self, group: GroupOffsets) -> None:
        """Commit the offsets of a group with the transaction.

        librdkafka does not keep to the time limit of this call while the broker that coordinates
        the group is away (its issue 5456), and then waits for ever, also when the broker is back.
        So it is called in a thread, which is left alone if it does not return in time: the next
        producer with this id fences this one.
        """
        answer: Future[None] = Future()

        def send() -> None:
            try:
                offsets = list(group.offsets)
                self._producer.send_offsets_to_transaction(offsets, group.membership, START_S)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                answer.set_exception(error)
            else:
                answer.set_result(None)

        self._sending = Thread(target=send, name="turnback-kafka-offsets", daemon=True)
        self._sending.start()
        try:
            answer.result(2 * START_S)
        except FutureTimeoutError:
            kinds = confluent_kafka().KafkaError
            silent = kinds(kinds._TIMED_OUT, "the coordinator of a consumer group does not respond")
            raise confluent_kafka().KafkaException(silent) from None

    def close(self) -> None:
        """Give it up; what cannot be aborted now is by the next one, or after the timeout."""
        if self._sending is not None and self._sending.is_alive():
            return  # closing it would wait for that call
        # Of a producer that was fenced, its close may fail without saying why: a SystemError.
        ended = suppress(confluent_kafka().KafkaException, SystemError)
        with warnings.catch_warnings(), ended:
            warnings.simplefilter("ignore", RuntimeWarning)
            self._producer.purge()
            self._producer.close(1.0)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None and self._problem is None and error.name() != "_PURGE_QUEUE":
            self._problem = error


def producer_defaults() -> dict[str, Any]:
    """Settings of producers, which properties of the user override."""
    return {
        "enable.idempotence": True,
        "delivery.report.only.error": True,
        "linger.ms": 20,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 200_000,
        "transaction.timeout.ms": 300_000,
        # As Java's producers do, so that a key has one partition, whoever writes it.
        "partitioner": "murmur2_random",
    }


def send_all(
    producer: Any,
    records: Iterable[Record],
    on_delivery: Callable[[Any, Any], None] | None = None,
) -> None:
    """Hand records to a producer, which sends them while this goes on."""
    produce = producer.produce
    poll = producer.poll
    for number, (topic, key, value) in enumerate(records):
        while True:
            try:
                produce(topic, value, key, on_delivery=on_delivery)
                break
            except BufferError:
                poll(0.1)
        if number % 1000 == 0:
            poll(0)


def look_again(client: Any) -> Callable[[float], None]:
    """What has a client ask anew which broker leads which partition, within so many seconds."""

    def look(timeout_s: float) -> None:
        # A cluster that does not tell now may tell the next time, and the question fails as well.
        with suppress(confluent_kafka().KafkaException):
            client.list_topics(timeout=timeout_s)

    return look


def retry_while(
    call: Callable[[], T],
    for_s: float = PATIENCE_S,
    passing: Collection[str] = PASSING,
    look: Callable[[float], None] | None = None,
) -> T:
    """Call again while Kafka says that it is not ready yet, as after a restart of a broker.

    Between two calls it looks around with `look`, in the time that is left.
    """
    end = time.monotonic() + for_s
    pause = 0.05
    while True:
        try:
            return call()
        except confluent_kafka().KafkaException as error:
            if error.args[0].name() not in passing or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 1.0)
        if look is not None:
            look(max(_LOOK_S, end - time.monotonic()))


def of_producers(cluster: Cluster) -> set[str]:
    """Properties that consumers do not take."""
    shared = ("security.", "sasl.", "ssl.", "client.", "socket.", "broker.", "metadata.")
    return {key for key in cluster.properties if not key.startswith((*shared, "enable.ssl."))}


def _text(error: Any) -> str:
    """What an error says, without Kafka's wrapping of it."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return str(inner.str()) if hasattr(inner, "str") else str(inner)
