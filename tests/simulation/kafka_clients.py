"""The clients of confluent-kafka that sinks use, over a broker in memory.

Each request to the broker goes through a network, which decides what becomes of it. Requests that
fail for a reason that passes are repeated as the library does; records have sequence numbers, so
that the broker takes each of them once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException

from simulation.kafka_broker import Broker, Note, Place, Record, failure

T = TypeVar("T")
_BUSY = ("CONCURRENT_TRANSACTIONS", "UNSTABLE_OFFSET_COMMIT")
_PAUSE_S = 0.1
_DELIVERIES = 3
"""So often records are sent, before the library gives up."""


class Network(Protocol):
    """What is between clients and their broker."""

    def request(self, what: str, action: Callable[[], T], *, writes: bool) -> T: ...

    def sleep(self, seconds: float) -> None: ...

    def monotonic(self) -> float: ...

    def chance(self) -> bool:
        """Whether the library does now what it does in the background."""
        ...


@dataclass
class Message:
    """A record, or the end of a partition, as consumers get it."""

    place: Place
    at: int
    record: Record = (None, None)
    problem: KafkaError | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.record[0]

    def value(self) -> bytes | None:
        return self.record[1]

    def error(self) -> KafkaError | None:
        return self.problem


@dataclass
class Queued:
    """A record on its way."""

    place: Place
    sequence: int
    record: Record
    on_delivery: Callable[[Any, Any], None] | None
    tries: int = 0


class _Client:
    def __init__(self, broker: Broker, network: Network, settings: Mapping[str, Any]) -> None:
        self._broker, self._network = broker, network
        self._settings = settings

    def _ask(
        self, what: str, action: Callable[[], T], within_s: float, *, writes: bool = False
    ) -> T:
        """Ask the broker, again while it is busy with the end of a transaction."""
        end = self._network.monotonic() + within_s
        while True:
            try:
                return self._network.request(what, action, writes=writes)
            except KafkaException as error:
                if error.args[0].name() not in _BUSY:
                    raise
                if self._network.monotonic() >= end:
                    raise failure("_TIMED_OUT", f"{what}: {error.args[0].name()}") from error
            self._network.sleep(_PAUSE_S)

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        def metadata() -> dict[str, Any]:
            names = sorted(self._broker.topics) if topic is None else [topic]
            return {name: self._metadata(name) for name in names}

        return SimpleNamespace(topics=self._ask(f"metadata {topic}", metadata, timeout))

    def _metadata(self, name: str) -> Any:
        topic = self._broker.topics.get(name)
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if topic is None else None
        numbers = range(len(topic.partitions)) if topic is not None else ()
        return SimpleNamespace(error=error, partitions=dict.fromkeys(numbers))


class Producer(_Client):
    """A producer, with a transactional id or without."""

    def __init__(self, broker: Broker, network: Network, settings: Mapping[str, Any]) -> None:
        super().__init__(broker, network, settings)
        self._id: str | None = settings.get("transactional.id")
        self._state = "new"
        self._producer = -1
        self._epoch = 0
        self._queue: list[Queued] = []
        self._sequences: dict[Place, int] = {}
        self._added: set[Place] = set()
        self._takes_part = False
        """Whether the broker knows of the transaction."""
        self._problem: KafkaException | None = None
        """Why the transaction cannot be committed."""
        self._fatal: KafkaException | None = None

    def init_transactions(self, timeout: float) -> None:
        self._require("new")
        assert self._id is not None
        name = self._id
        found = self._write(f"init {name}", lambda: self._broker.init_transactions(name), timeout)
        self._producer, self._epoch = found
        self._state = "ready"

    def begin_transaction(self) -> None:
        self._require("ready")
        self._state = "in transaction"
        self._added.clear()
        self._takes_part = False
        self._problem = None

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:
        if self._id is not None:
            self._require("in transaction")
        partitions = len(self._broker.topic(topic).partitions)
        place = (topic, zlib.adler32(key or b"") % partitions)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + 1
        self._queue.append(Queued(place, sequence, (key, value), on_delivery))

    def poll(self, timeout: float = 0.0) -> int:
        if self._network.chance():
            self._send()
        return 0

    def flush(self, timeout: float) -> int:
        """Send what waits, and return how much of it Kafka has not taken."""
        end = self._network.monotonic() + timeout
        self._send()
        while self._queue and self._fatal is None and self._network.monotonic() < end:
            self._network.sleep(_PAUSE_S)
            self._send()
        if self._fatal is not None:
            raise self._fatal
        return len(self._queue)

    def send_offsets_to_transaction(
        self, positions: Sequence[Any], group_metadata: Any, timeout: float
    ) -> None:
        self._require("in transaction")
        if self._network.chance():
            self._send()
        broker, name, who = self._broker, self._id, (self._producer, self._epoch)
        assert name is not None
        group = group_metadata.group_id
        offsets: dict[Place, Note] = {
            (p.topic, p.partition): (p.offset, p.metadata or "") for p in positions
        }
        self._takes_part = True
        self._write(f"add group {group}", lambda: broker.add_group(name, *who, group), timeout)
        self._write(
            f"send offsets of {group} {[offset for offset, _ in offsets.values()]}",
            lambda: broker.send_offsets(name, *who, group, offsets),
            timeout,
        )

    def commit_transaction(self, timeout: float) -> None:
        self._require("in transaction")
        left = self.flush(timeout)
        if self._problem is not None:
            raise self._problem
        if left:
            raise failure("_TIMED_OUT", f"{left} message(s) remaining")
        self._state = "committing"
        self._end(commit=True, timeout=timeout)

    def abort_transaction(self, timeout: float) -> None:
        if self._fatal is not None:
            raise self._fatal
        self.purge()
        self._end(commit=False, timeout=timeout)

    def purge(self) -> None:
        self._queue.clear()

    def close(self, timeout: float) -> None:
        """End it; an open transaction is aborted, unless it may have been committed."""
        if self._state == "in transaction":
            self.abort_transaction(timeout)
        self._state = "closed"

    def _end(self, *, commit: bool, timeout: float) -> None:
        broker, name, who = self._broker, self._id, (self._producer, self._epoch)
        assert name is not None
        if self._takes_part:
            what = f"{'commit' if commit else 'abort'} {name} of {self._epoch}"
            self._write(what, lambda: broker.end(name, *who, commit=commit), timeout)
        self._state = "ready"

    def _send(self) -> None:
        """Send what waits, partition by partition; whatever fails is tried again later."""
        if self._producer < 0:
            self._producer = self._broker.new_producer()
        for place in sorted({queued.place for queued in self._queue}):
            batch = [queued for queued in self._queue if queued.place == place]
            try:
                self._send_batch(place, batch)
            except KafkaException:
                if self._fatal is not None:
                    return
                self._note_failure(batch)
            else:
                self._queue = [queued for queued in self._queue if queued not in batch]

    def _send_batch(self, place: Place, batch: Sequence[Queued]) -> None:
        broker, name, who = self._broker, self._id, (self._producer, self._epoch)
        if name is not None and place not in self._added:
            self._takes_part = True
            self._write(f"add {place}", lambda: broker.add_partition(name, *who, place), 60)
            self._added.add(place)
        records = [queued.record for queued in batch]
        self._write(
            f"produce {place} {[value for _, value in records]}",
            lambda: broker.produce(name, *who, place, batch[0].sequence, records),
            60,
        )

    def _note_failure(self, batch: Sequence[Queued]) -> None:
        """Give records up that were sent often enough; whether Kafka has them is not known."""
        for queued in batch:
            queued.tries += 1
        if batch[0].tries < _DELIVERIES:
            return
        self._queue = [queued for queued in self._queue if queued not in batch]
        self._problem = failure("_MSG_TIMED_OUT")
        for queued in batch:
            if queued.on_delivery is not None:
                message = Message(queued.place, -1, queued.record, self._problem.args[0])
                queued.on_delivery(self._problem.args[0], message)
        if self._id is None:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Become another producer: the broker would wait for records that never come."""
        self._producer = self._broker.new_producer()
        self._sequences.clear()
        for queued in self._queue:
            queued.sequence = self._sequences.get(queued.place, 0)
            self._sequences[queued.place] = queued.sequence + 1

    def _write(self, what: str, action: Callable[[], T], timeout: float) -> T:
        try:
            return self._ask(what, action, timeout, writes=True)
        except KafkaException as error:
            if error.args[0].name() == "_FENCED":
                self._fatal = error
            raise

    def _require(self, state: str) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._state != state:
            raise failure("_STATE", f"Operation not valid in state {self._state}")


@dataclass
class Reading:
    """Where a consumer is in a partition."""

    at: int
    told_end: int = -1


@dataclass
class GroupMembership:
    group_id: str


class Consumer(_Client):
    """A consumer of partitions that are assigned to it, which commits nothing."""

    def __init__(self, broker: Broker, network: Network, settings: Mapping[str, Any]) -> None:
        super().__init__(broker, network, settings)
        self._group: str = settings["group.id"]
        self._committed = settings.get("isolation.level", "read_committed") == "read_committed"
        self._assigned: dict[Place, Reading] = {}

    def committed(self, partitions: Sequence[Any], timeout: float) -> list[Any]:
        places = [(p.topic, p.partition) for p in partitions]

        def offsets() -> list[Note | None]:
            stable = self._committed
            return [self._broker.committed(self._group, place, stable=stable) for place in places]

        found = self._ask(f"offsets of {self._group}", offsets, timeout)
        return [
            SimpleNamespace(
                topic=topic,
                partition=number,
                offset=note[0] if note is not None else OFFSET_INVALID,
                metadata=note[1] if note is not None else None,
                error=None,
            )
            for (topic, number), note in zip(places, found, strict=True)
        ]

    def consumer_group_metadata(self) -> GroupMembership:
        return GroupMembership(self._group)

    def assign(self, partitions: Sequence[Any]) -> None:
        self._assigned = {(p.topic, p.partition): Reading(p.offset) for p in partitions}

    def unassign(self) -> None:
        self._assigned = {}

    def consume(self, number: int, timeout: float) -> list[Message]:
        try:
            found = self._network.request(
                f"fetch {sorted(self._assigned)}", lambda: self._fetch(number), writes=False
            )
        except KafkaException:
            found = []  # the library goes on fetching
        if not found:
            self._network.sleep(timeout)
        return found

    def _fetch(self, number: int) -> list[Message]:
        found: list[Message] = []
        for place, reading in self._assigned.items():
            partition = self._broker.partition(place)
            for offset, record in partition.read(reading.at, self._committed):
                if len(found) == number:
                    return found
                found.append(Message(place, offset, record))
                reading.at = offset + 1
            reading.at = partition.upto(self._committed)
            if reading.told_end < reading.at:
                end = KafkaError(KafkaError._PARTITION_EOF)
                found.append(Message(place, reading.at, problem=end))
                reading.told_end = reading.at
        return found

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        found = (place.topic, place.partition)
        return 0, self._ask("ends", lambda: self._broker.partition(found).end, timeout)

    def poll(self, timeout: float) -> None:
        """Call back; there is nothing to call back for."""

    def close(self) -> None:
        self._assigned = {}


class AdminClient(_Client):
    """Looks at topics and makes them; answers are there when they are asked for."""

    def create_topics(self, topics: Sequence[Any], request_timeout: float) -> dict[str, Any]:
        def create(new: Any) -> Callable[[], None]:
            config = dict(new.config or {})
            return lambda: self._broker.create_topic(new.topic, new.num_partitions, config)

        return {new.topic: self._answer(f"create {new.topic}", create(new), True) for new in topics}

    def describe_topics(
        self, topics: Any, include_authorized_operations: bool = False, request_timeout: float = 0
    ) -> dict[str, Any]:
        def describe(name: str) -> Callable[[], Any]:
            def found() -> Any:
                self._broker.topic(name)
                return SimpleNamespace(authorized_operations=(), topic_id=name)

            return found

        names = topics.topic_names
        return {name: self._answer(f"describe {name}", describe(name)) for name in names}

    def describe_configs(
        self, resources: Sequence[Any], request_timeout: float = 0
    ) -> dict[Any, Any]:
        def config(name: str) -> Callable[[], Any]:
            def found() -> Any:
                settings = self._broker.topic(name).config
                return {key: SimpleNamespace(value=value) for key, value in settings.items()}

            return found

        return {r: self._answer(f"configuration of {r.name}", config(r.name)) for r in resources}

    def list_offsets(
        self, wanted: Mapping[Any, Any], isolation_level: Any, request_timeout: float
    ) -> dict[Any, Any]:
        committed = isolation_level == IsolationLevel.READ_COMMITTED

        def end(place: Place) -> Callable[[], Any]:
            def found() -> Any:
                if place[0] not in self._broker.topics:
                    raise failure("_NOENT")
                return SimpleNamespace(offset=self._broker.partition(place).upto(committed))

            return found

        return {p: self._answer("ends", end((p.topic, p.partition))) for p in wanted}

    def _answer(self, what: str, action: Callable[[], Any], writes: bool = False) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            answer.set_result(self._network.request(what, action, writes=writes))
        except KafkaException as error:
            answer.set_exception(error)
        return answer
