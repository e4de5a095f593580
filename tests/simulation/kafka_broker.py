"""A Kafka broker in memory: what clients may rely on, and no more.

It knows topics, transactions with their fencing, and offsets of consumer groups. A transaction ends
in two steps, as in Kafka: the decision is durable at once, and each partition and each group hears
of it later, in any order. `tests/systems/kafka/test_simulated_kafka.py` compares it with a real
broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import KafkaError, KafkaException

Place = tuple[str, int]
"""A topic, and the number of a partition."""
Note = tuple[int, str]
"""An offset of a consumer group, and the text beside it."""
Record = tuple[bytes | None, bytes | None]
"""Key and value."""
_LARGEST = "1048588"


def failure(code: str, text: str | None = None) -> KafkaException:
    """What the client library raises for a code of Kafka."""
    return KafkaException(KafkaError(getattr(KafkaError, code), text))


class State(Enum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Entry:
    """What is at an offset; a marker that ends a transaction has no record.

    Attributes:
        visible: Whether readers of committed records see it; None until that is known.
    """

    record: Record | None
    producer: int
    visible: bool | None


@dataclass
class Partition:
    """A log. Offsets whose entry is None were compacted away."""

    entries: list[Entry | None] = field(default_factory=list)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By producer: its epoch, and where its open transaction begins."""
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many records each producer has written, by its epoch."""

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def stable(self) -> int:
        """Where the first open transaction begins; readers of committed records stop there."""
        return min((first for _, first in self.open.values()), default=self.end)

    def upto(self, committed: bool) -> int:
        return self.stable if committed else self.end

    def read(self, first: int, committed: bool) -> Iterator[tuple[int, Record]]:
        for offset in range(first, self.upto(committed)):
            entry = self.entries[offset]
            if entry is None or entry.record is None:
                continue
            if entry.visible or not committed:
                yield offset, entry.record

    def append(self, producer: int, epoch: int, sequence: int, records: Iterable[Record]) -> None:
        """Append records; those that it has from an earlier try are not written again."""
        known = self.sequences.get((producer, epoch), 0)
        if sequence > known:
            raise failure("OUT_OF_ORDER_SEQUENCE_NUMBER")
        visible = None if producer in self.open else True
        for number, record in enumerate(records, sequence):
            if number >= known:
                self.entries.append(Entry(record, producer, visible))
                self.sequences[producer, epoch] = number + 1

    def end_transaction(self, producer: int, commit: bool) -> None:
        _, first = self.open.pop(producer, (0, self.end))
        for entry in self.entries[first:]:
            if entry is not None and entry.producer == producer:
                entry.visible = commit
        self.entries.append(Entry(None, producer, False))

    def compact(self) -> None:
        """Keep the newest record of each key, as far as no transaction is open."""
        newest: set[bytes | None] = set()
        for offset in reversed(range(self.stable)):
            entry = self.entries[offset]
            if entry is None or entry.record is None:
                continue
            if not entry.visible or entry.record[0] in newest:
                self.entries[offset] = None
            newest |= {entry.record[0]} if entry.visible else set()


@dataclass
class Topic:
    partitions: list[Partition]
    config: dict[str, str]


@dataclass
class Transaction:
    """What the coordinator knows of a transactional id.

    Attributes:
        places: The partitions that take part.
        groups: The consumer groups that do.
        unaware: Those of both that have not heard of the end yet.
    """

    producer: int
    epoch: int = -1
    state: State = State.EMPTY
    places: set[Place] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    unaware: list[Place | str] = field(default_factory=list)

    def require(self, producer: int, epoch: int) -> None:
        if (producer, epoch) != (self.producer, self.epoch):
            raise failure("_FENCED")
        if self.state in (State.COMMITTING, State.ABORTING):
            raise failure("CONCURRENT_TRANSACTIONS")

    def begin(self) -> None:
        if self.state is not State.ONGOING:
            self.state = State.ONGOING
            self.places.clear()
            self.groups.clear()

    def decide(self, state: State) -> None:
        self.state = state
        self.unaware = [*sorted(self.places), *sorted(self.groups)]


@dataclass
class Group:
    """A consumer group: its offsets, and those that transactions are about to commit."""

    offsets: dict[Place, Note] = field(default_factory=dict)
    pending: dict[int, dict[Place, Note]] = field(default_factory=dict)
    """By producer."""

    def is_pending(self, place: Place) -> bool:
        return any(place in notes for notes in self.pending.values())


class Broker:
    """The broker, with its coordinators of transactions and groups."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.transactions: dict[str, Transaction] = {}
        self.groups: dict[str, Group] = {}
        self._producers = 0

    # -- topics

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        if name in self.topics:
            raise failure("TOPIC_ALREADY_EXISTS", f"Topic '{name}' already exists.")
        settings = {"cleanup.policy": "delete", "max.message.bytes": _LARGEST, **config}
        self.topics[name] = Topic([Partition() for _ in range(partitions)], settings)

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise failure("UNKNOWN_TOPIC_OR_PART")
        return self.topics[name]

    def partition(self, place: Place) -> Partition:
        return self.topic(place[0]).partitions[place[1]]

    # -- producers

    def new_producer(self) -> int:
        """An id for a producer without transactions."""
        self._producers += 1
        return self._producers

    def init_transactions(self, transactional_id: str) -> tuple[int, int]:
        """Fence whoever had the transactional id before, and abort what is open."""
        if transactional_id not in self.transactions:
            self.transactions[transactional_id] = Transaction(self.new_producer())
        transaction = self.transactions[transactional_id]
        if transaction.state is State.ONGOING:
            self.expire(transaction)
        if transaction.unaware:
            raise failure("CONCURRENT_TRANSACTIONS")
        transaction.epoch += 1
        transaction.state = State.EMPTY
        return transaction.producer, transaction.epoch

    def add_partition(self, transactional_id: str, producer: int, epoch: int, to: Place) -> None:
        transaction = self.transactions[transactional_id]
        transaction.require(producer, epoch)
        self.partition(to)
        transaction.begin()
        transaction.places.add(to)

    def produce(
        self,
        transactional_id: str | None,
        producer: int,
        epoch: int,
        place: Place,
        sequence: int,
        records: Iterable[Record],
    ) -> None:
        partition = self.partition(place)
        if transactional_id is not None and partition.open.get(producer, (-1, 0))[0] != epoch:
            transaction = self.transactions[transactional_id]
            transaction.require(producer, epoch)
            if transaction.state is not State.ONGOING or place not in transaction.places:
                raise failure("INVALID_TXN_STATE")
            partition.open[producer] = (epoch, partition.end)
        partition.append(producer, epoch, sequence, records)

    def add_group(self, transactional_id: str, producer: int, epoch: int, group: str) -> None:
        transaction = self.transactions[transactional_id]
        transaction.require(producer, epoch)
        transaction.begin()
        transaction.groups.add(group)

    def send_offsets(
        self,
        transactional_id: str,
        producer: int,
        epoch: int,
        name: str,
        offsets: Mapping[Place, Note],
    ) -> None:
        transaction = self.transactions[transactional_id]
        transaction.require(producer, epoch)
        if transaction.state is not State.ONGOING or name not in transaction.groups:
            raise failure("INVALID_TXN_STATE")
        for place in offsets:
            self.partition(place)
        group = self.groups.setdefault(name, Group())
        group.pending.setdefault(producer, {}).update(offsets)

    def end(self, transactional_id: str, producer: int, epoch: int, *, commit: bool) -> None:
        """Decide a transaction; asked again for what it has decided, it agrees."""
        transaction = self.transactions[transactional_id]
        transaction.require(producer, epoch)
        if transaction.state is State.ONGOING:
            transaction.decide(State.COMMITTING if commit else State.ABORTING)
        elif transaction.state is not (State.COMMITTED if commit else State.ABORTED):
            raise failure("INVALID_TXN_STATE")

    def expire(self, transaction: Transaction) -> None:
        """Abort an open transaction, as after its timeout; its producer is fenced."""
        transaction.epoch += 1
        transaction.decide(State.ABORTING)

    def unfinished(self) -> list[Transaction]:
        """Those that were decided while partitions or groups have not heard of it."""
        return [transaction for transaction in self.transactions.values() if transaction.unaware]

    def inform(self, transaction: Transaction, number: int) -> None:
        """Let a partition or a group know how a transaction has ended."""
        target = transaction.unaware.pop(number)
        commit = transaction.state is State.COMMITTING
        if isinstance(target, str):
            group = self.groups.setdefault(target, Group())
            notes = group.pending.pop(transaction.producer, {})
            group.offsets.update(notes if commit else {})
        else:
            self.partition(target).end_transaction(transaction.producer, commit)
        if not transaction.unaware:
            transaction.state = State.COMMITTED if commit else State.ABORTED

    def finish(self) -> None:
        """Let everybody know."""
        for transaction in self.unfinished():
            while transaction.unaware:
                self.inform(transaction, 0)

    # -- readers

    def committed(self, name: str, place: Place, *, stable: bool) -> Note | None:
        """The offset of a group; with `stable`, not while a transaction may change it."""
        group = self.groups.get(name, Group())
        if stable and group.is_pending(place):
            raise failure("UNSTABLE_OFFSET_COMMIT")
        return group.offsets.get(place)

    def forget(self, name: str) -> None:
        """Forget the offsets of a group, as after `offsets.retention.minutes`."""
        group = self.groups[name]
        for place in list(group.offsets):
            if not group.is_pending(place):
                del group.offsets[place]

    def rows(self, topic: str) -> list[Record]:
        """What readers of committed records see, partition by partition."""
        partitions = self.topic(topic).partitions
        return [record for p in partitions for _, record in p.read(0, committed=True)]
