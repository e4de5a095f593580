"""`KafkaSink`: records in topics of Kafka, with any of Kafka's delivery guarantees."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from turnback.config.option import nonempty_text
from turnback.connectors.kafka import client as kafka_client
from turnback.connectors.kafka.client import (
    FORBIDDEN,
    NO_TOPIC,
    Cluster,
    GroupOffsets,
    KafkaClient,
    Record,
    TransactionalProducer,
    confluent_kafka,
    look_again,
    producer_defaults,
    retry_while,
    send_all,
)
from turnback.connectors.kafka.records import (
    RECORDS,
    KafkaRecordSerializationSchema,
    RecordLimits,
    check_target,
    require_topics,
    staged_records,
)
from turnback.connectors.kafka.topics import KafkaTopics
from turnback.core.extras import require
from turnback.core.ids import path_segment
from turnback.errors import (
    ConfigurationError,
    NotFoundError,
    SinkError,
    StorageError,
    TurnbackError,
)
from turnback.job.directory import JobDirectory
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    attempt_of,
    is_known_attempt,
    promised_version,
    require_known_attempt,
    require_newest_attempt,
    require_promised,
    sink_label,
)
from turnback.sinks.elements import decode_elements
from turnback.sinks.staged_elements import StagedFiles, StagedTask, StagingWriter
from turnback.sinks.write_ahead import StagedOutput, WriteAheadSink
from turnback.state.files import storage_of
from turnback.storage.locations import canonical_directory
from turnback.values.columns import Batch

_LOG = logging.getLogger(__name__)
TOPIC = "_turnback_sinks"
"""Has one record for each name, the newest; all sinks of a cluster share it."""
_SETTINGS = {
    "cleanup.policy": "compact",
    # Only segments that are full are compacted: without these the topic would grow for a week.
    "segment.ms": "3600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
_AT_ONCE = 1000


class StoredOffset(NamedTuple):
    """A number that Kafka remembers, and a note beside it."""

    number: int
    note: str


class KafkaMemory(KafkaClient):
    """The compacted topic, which is created if it is not there and `create` says so."""

    def __init__(self, cluster: Cluster, name: str, *, create: bool) -> None:
        super().__init__(cluster, name)
        self._api = require("confluent_kafka.admin", "kafka", "KafkaSink")
        self._admin = self.admin()
        self._consumer = self._new_consumer("read_committed")
        with self.failures(f"find topic {TOPIC!r}"):
            there = self._is_there()
        if not there and create:
            there = self._create()
        self.usable = (
            there and len(self._metadata(TOPIC)[TOPIC].partitions) == 1 and self._allowed()
        )
        """Whether notes can be read from the topic and written to it."""
        if create and not self.usable:
            _LOG.warning(
                "%s: topic %r at %s cannot be %s, so Kafka remembers the owner of a "
                "transactional-id prefix only for offsets.retention.minutes. Create the topic "
                "with one partition and cleanup.policy=compact, and let this user read and "
                "write it",
                *(name, TOPIC, cluster.servers, "used" if there else "created"),
            )

    def topics(self) -> list[str]:
        """All topics that the user may see."""
        return sorted(self._metadata(None))

    def find(self, name: str, *, settled: bool) -> StoredOffset | None:
        """The newest note under a name.

        An open transaction of any sink hides what is behind it. That matters only if there is
        something under this name: then `settled` waits for it. It may be in a transaction that
        lasts until somebody makes a producer of the same transactional id, so a `SinkError` ends
        the wait.
        """
        until = time.monotonic() + kafka_client.PATIENCE_S
        levels = confluent_kafka().IsolationLevel
        key = name.encode()
        with self.failures(f"read topic {TOPIC!r}"):
            while True:
                end = self._end(levels.READ_UNCOMMITTED)
                stable = self._end(levels.READ_COMMITTED)
                notes = [v for k, v in self._read(self._consumer, 0, stable) if k == key and v]
                if not settled or not self._has_hidden(key, stable, end):
                    break
                if time.monotonic() > until:
                    raise SinkError(
                        f"{self.name}: an open transaction in topic {TOPIC!r} at "
                        f"{self.cluster.servers} hides the record of {name!r}. It ends when its "
                        "job is started again, or after its transaction.timeout.ms; try again "
                        "then"
                    )
                time.sleep(0.1)
        return (
            StoredOffset(*msgspec.json.decode(notes[-1], type=tuple[int, str])) if notes else None
        )

    def close(self) -> None:
        self._consumer.close()

    def _has_hidden(self, key: bytes, stable: int, end: int) -> bool:
        if stable >= end:
            return False
        with closing(self._new_consumer("read_uncommitted")) as consumer:
            return any(k == key for k, _ in self._read(consumer, stable, end))

    def _new_consumer(self, level: str) -> Any:
        own = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        return self.consumer("turnback.memory", {**own, "isolation.level": level})

    def _end(self, level: Any) -> int:
        place = confluent_kafka().TopicPartition(TOPIC, 0)
        wait_s = kafka_client.START_S
        wanted = {place: self._api.OffsetSpec.latest()}

        def offset() -> int:
            # One that has seen the broker before it was restarted would go on asking for the past.
            admin = self.admin()  # which has to live until it has answered
            asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=wait_s)
            return int(asked[place].result().offset)

        return retry_while(offset)

    def _read(
        self, consumer: Any, first: int, end: int
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Keys and values of the records that a consumer sees up to an offset."""
        if first >= end:
            return
        api = confluent_kafka()
        consumer.assign([api.TopicPartition(TOPIC, 0, first)])
        until = time.monotonic() + kafka_client.PATIENCE_S
        try:
            while time.monotonic() < until:
                for message in consumer.consume(1000, timeout=0.1):
                    if message.error() is None:
                        until = time.monotonic() + kafka_client.PATIENCE_S
                        yield message.key(), message.value()
                    elif message.error().name() != "_PARTITION_EOF":
                        raise api.KafkaException(message.error())
                    elif message.offset() >= end:
                        return
        finally:
            consumer.unassign()
        raise SinkError(
            f"{self.name}: cannot read topic {TOPIC!r} at {self.cluster.servers} to its end: no "
            f"response within {kafka_client.PATIENCE_S:g} s"
        )

    def _create(self) -> bool:
        new = self._api.NewTopic(TOPIC, 1, -1, config=_SETTINGS)
        try:
            self._admin.create_topics([new], request_timeout=kafka_client.START_S)[TOPIC].result()
        except confluent_kafka().KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                _LOG.info("%s: %s", self.name, self.cluster.hide(error.args[0].str()))
                return False

        def until_there() -> None:
            if not self._is_there():
                error = confluent_kafka().KafkaError
                raise confluent_kafka().KafkaException(error(error.LEADER_NOT_AVAILABLE))

        with self.failures(f"find topic {TOPIC!r}"):
            retry_while(until_there)
        return True

    def _is_there(self) -> bool:
        found = self._metadata(TOPIC)[TOPIC]
        if found.error is None:
            return True
        if found.error.name() in (*NO_TOPIC, *FORBIDDEN, "TOPIC_EXCEPTION"):
            return False
        raise confluent_kafka().KafkaException(found.error)

    def _metadata(self, topic: str | None) -> dict[str, Any]:
        try:
            listed = self._consumer.list_topics(topic, timeout=kafka_client.START_S)
        except confluent_kafka().KafkaException:
            self._consumer.poll(0)  # why: the callback for errors runs here
            raise
        return dict(listed.topics)

    def _allowed(self) -> bool:
        """Whether the user may read and write the topic; a broker that does not tell allows it."""
        topics = confluent_kafka().TopicCollection([TOPIC])
        wait_s = kafka_client.START_S

        def operations() -> Any:
            asked = self._admin.describe_topics(
                topics, include_authorized_operations=True, request_timeout=wait_s
            )
            return asked[TOPIC].result().authorized_operations

        try:
            found = retry_while(operations, look=look_again(self._admin))
        except confluent_kafka().KafkaException as error:
            if error.args[0].name() in FORBIDDEN:
                return False
            raise self.explain(error.args[0], f"look up the ACLs of topic {TOPIC!r}") from error
        names = {operation.name for operation in found or ()}
        return not names or {"READ", "WRITE"} <= names


class GroupOffsetStore(KafkaClient):
    """A number and a note that Kafka keeps under a name.

    The name is that of a consumer group; the note is at partition 0 of the compacted topic, if that
    can be used, and of one topic of the sink, where older versions of Turnback look for it.
    """

    def __init__(self, memory: KafkaMemory, group: str, topic: str) -> None:
        super().__init__(memory.cluster, memory.name)
        self.group = group
        self._memory = memory
        self._places = [TOPIC, topic] if memory.usable else [topic]
        self._consumer = self._new_consumer("read_committed")

    def get(self, *, settled: bool = True) -> list[StoredOffset]:
        """What is remembered; the newest last.

        With `settled` it waits until no transaction is open that may change it. A producer of the
        same transactional id ends such a transaction; until there is one, it may last.
        """
        with self.failures("read its progress"):
            found = self._of_group(self._places, settled)
        if not found and self._memory.usable:
            kept = self._memory.find(self.group, settled=settled)
            found = [kept] if kept is not None else []
        return sorted(found)

    def get_anywhere(self, *, settled: bool = True) -> list[StoredOffset]:
        """As `get`; if there is nothing, also what was noted beside topics of other sinks."""
        found = self.get(settled=settled)
        if found:
            return found
        with self.failures("read its owner"):
            topics = self._memory.topics()
            for first in range(0, len(topics), _AT_ONCE):
                found += self._of_group(topics[first : first + _AT_ONCE], settled)
        return sorted(found)

    def _of_group(self, topics: Sequence[str], settled: bool) -> list[StoredOffset]:
        api = confluent_kafka()
        wanted = [api.TopicPartition(topic, 0) for topic in topics]
        consumer = self._consumer if settled else self._new_consumer("read_uncommitted")

        def read() -> Any:
            found = consumer.committed(wanted, timeout=kafka_client.START_S)
            for place in found:
                if place.error is not None:
                    raise api.KafkaException(place.error)
            return found

        try:
            found = retry_while(read, look=look_again(consumer))
        finally:
            if not settled:
                consumer.close()
        return [StoredOffset(p.offset, p.metadata or "") for p in found if p.offset >= 0]

    def _new_consumer(self, level: str) -> Any:
        return self.consumer(self.group, {"isolation.level": level})

    def offsets(self, value: StoredOffset) -> GroupOffsets:
        """What a transaction commits so that it is remembered."""
        partition = confluent_kafka().TopicPartition
        offsets = [partition(topic, 0, value.number, value.note) for topic in self._places]
        return GroupOffsets(offsets, self._consumer.consumer_group_metadata())

    def records(self, value: StoredOffset) -> list[Record]:
        """What a transaction writes so that it is remembered for good."""
        if not self._memory.usable:
            return []
        return [(TOPIC, self.group.encode(), msgspec.json.encode((value.number, value.note)))]

    def close(self) -> None:
        self._consumer.close()


_TRIES = 4


class PrefixOwner(msgspec.Struct, frozen=True):
    """The job that a transactional-id prefix belongs to, and which of its sinks uses it.

    The number beside it is the job's newest attempt; 0 until one has begun since it is the owner.
    Older versions of Turnback noted neither job id nor nonce.
    """

    job: str
    directory: str
    uid: str
    job_id: str = ""
    nonce: str = ""


class KafkaProgress(msgspec.Struct, frozen=True):
    """The job directory that has published up to the version beside it, and its driver then."""

    directory_id: str
    nonce: str = ""


class TransactionalDelivery(WriteAheadSink):
    """Writes each epoch in one transaction, together with how far the sink has come.

    Tasks make records of elements and stage these, so that publishing needs nothing of the program.

    How far it is, is the offset of the consumer group `turnback.<prefix>.<job id>.<uid>`; the owner
    of the prefix is the note of the group `turnback.<prefix>`. Nobody consumes with these groups.
    See `kafka_memory` for what happens when Kafka forgets them.

    Two processes cannot write at the same time: each makes a producer of the same transactional id
    before it looks how far the sink is and whose the prefix is, and with that fences the other.
    Whoever takes the prefix over writes that in a transaction of the same id as well, so that what
    a producer has seen holds for as long as it can commit anything.

    Args:
        cluster: Where Kafka is.
        topics: Where records go; the first keeps how far the sink is.
        prefix: The transactional id.
        records: What becomes of elements; None to settle only what was staged.
        selects: Whether records name their topics themselves.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str],
        prefix: str,
        records: KafkaRecordSerializationSchema | None = None,
        *,
        selects: bool = False,
    ) -> None:
        self._cluster = cluster
        self._topics = tuple(topics)
        self._records = records
        self.prefix = prefix
        self._selects = selects
        self._claimant: CommitterContext | None = None
        self._producer: TransactionalProducer | None = None
        self._one_by_one = False
        self._memory: KafkaMemory | None = None
        self._owner: GroupOffsetStore | None = None
        self._registers: dict[str, GroupOffsetStore] = {}
        self._forgotten: set[str] = set()
        self._open: dict[str, bool] = {}
        self._silent: TurnbackError | None = None

    def writer(self, ctx: WriterContext) -> SinkWriter:
        assert self._records is not None, "this sink only resolves transactions"
        return _RecordWriter(self._cluster, self._records, ctx)

    def check_target(self, ctx: CommitterContext) -> None:
        assert self._records is not None, "this sink only resolves transactions"
        check_target(self._cluster, self._records, ctx)
        if ctx.job_directory is None:
            return
        name = sink_label(ctx.job, ctx.uid)
        with (
            closing(KafkaMemory(self._cluster, name, create=False)) as memory,
            closing(self._owner_register(memory)) as register,
        ):
            _, owner = self._look_up_owner(register, ctx, settled=False)
            with ExitStack() as opened:
                for progress, former in self._former(owner, memory, ctx, opened):
                    self._require_promised(progress, former)

    def acquire_target(self, ctx: CommitterContext) -> None:
        """Record the job as the owner of the prefix.

        With an attempt of the job comes which of its sinks it is, so that a second one with the
        same prefix is found; a sink that was renamed comes with a later attempt.
        """
        if ctx.job_directory is None:
            return
        name = sink_label(ctx.job, ctx.uid)
        with (
            closing(KafkaMemory(self._cluster, name, create=True)) as memory,
            closing(self._owner_register(memory)) as owner,
            closing(self._progress_register(memory, ctx)) as progress,
        ):
            is_mine, before = self._look_up_owner(owner, ctx, settled=False)
            # Without an id the directory has had no job, so the one that is noted was deleted.
            was_deleted = not ctx.job_id and before.job_id != ""
            if is_mine and not ctx.attempt and not was_deleted:
                return
            failures = KafkaClient(self._cluster, name)
            with (
                ExitStack() as opened,
                closing(self._fencing_producer(owner, ctx)) as producer,
                failures.failures(f"claim the transactional-id prefix {self.prefix!r}"),
            ):
                notes = [(owner, self._note_of(ctx))]
                known = [(progress, ctx), *self._former(before, memory, ctx, opened)]
                for register, of_sink in known if ctx.take_over else ():
                    if self._is_foreign(register, of_sink):
                        nothing = _encode(KafkaProgress(ctx.directory_id))
                        notes.append((register, StoredOffset(0, nothing)))
                _write(producer, (), notes)

    def _former(
        self,
        before: PrefixOwner,
        memory: KafkaMemory,
        ctx: CommitterContext,
        opened: ExitStack,
    ) -> list[tuple[GroupOffsetStore, CommitterContext]]:
        """The sink of this job that had the prefix before, if it was called otherwise.

        It is asked for before an attempt has begun, which is noted in its place.
        """
        if ctx.job_directory is None or ctx.attempt or not ctx.job_id:
            return []
        here = canonical_directory(ctx.job_directory)
        if before is _UNKNOWN or canonical_directory(before.directory) != here:
            return []
        former = replace(ctx, uid=before.uid, job_id=before.job_id or ctx.job_id)
        if (former.uid, former.job_id) == (ctx.uid, ctx.job_id):
            return []
        return [(opened.enter_context(closing(self._progress_register(memory, former))), former)]

    def _require_promised(self, progress: GroupOffsetStore, ctx: CommitterContext) -> None:
        """Refuse what a sink has published that was called otherwise, and nobody knows of."""
        found = self._found(progress, ctx)
        if found is not None and found.number:
            place = f"Kafka, in the consumer group {progress.group!r},"
            nonce = _decode(found.note, KafkaProgress("")).nonce
            require_known_attempt(ctx, attempt_of(found.number), nonce, place)
            require_promised(ctx, found.number, place)

    def _is_foreign(self, progress: GroupOffsetStore, ctx: CommitterContext) -> bool:
        """Whether what is noted as this job's progress is that of a copy, or was restored away.

        Such notes of older versions of Turnback cannot be told from this job's own.
        """
        found = self._found(progress, ctx) if ctx.job_id else None
        if found is None:
            return False
        note = _decode(found.note, KafkaProgress(""))
        if found.number and not note.directory_id:
            return True
        is_known = is_known_attempt(ctx, attempt_of(found.number), note.nonce)
        return not is_known or promised_version(ctx, found.number) < found.number

    def open(self, ctx: CommitterContext) -> None:
        self._claimant = ctx
        self._registers = {}  # of this attempt: one before may still publish
        self._memory = KafkaMemory(self._cluster, sink_label(ctx.job, ctx.uid), create=False)
        self._owner = self._owner_register(self._memory)
        self._producer = self._new_producer()

    def published(self, ctx: CommitterContext) -> int:
        if self._producer is None:
            # Only then is it settled what became of an older producer's transaction.
            self._producer = self._new_producer()
        found = self._found(self._register(ctx), ctx)
        if found is None:
            return 0
        nonce = _decode(found.note, KafkaProgress("")).nonce
        place = f"Kafka, in the consumer group {self._register(ctx).group!r},"
        require_known_attempt(ctx, attempt_of(found.number), nonce, place)
        return found.number

    def publish(self, ctx: CommitterContext, output: StagedOutput) -> None:
        register = self._register(ctx)
        if register.group in self._forgotten and output.attempt < ctx.attempt:
            raise self._forgotten_error(ctx, register, output)
        self._write_once(
            f"publish epoch {output.epoch}",
            lambda: self.published(ctx) >= output.version,
            lambda: (self._records_of(output), self._notes(ctx, output)),
        )

    def _write_once(
        self,
        what: str,
        is_written: Callable[[], bool],
        content: Callable[
            [], tuple[Iterable[Record], Sequence[tuple[GroupOffsetStore, StoredOffset]]]
        ],
    ) -> None:
        """Write a transaction, or find out that it was written.

        After any failure it is unknown whether the transaction was committed:

        1. make a new producer, which settles what the old one left open
        2. look whose the prefix is, and whether it is written
        3. write it again if it is not there
        """
        assert self._claimant is not None, "call open first"
        failures = KafkaClient(self._cluster, sink_label(self._claimant.job, self._claimant.uid))
        for tries_left in reversed(range(_TRIES)):
            try:
                if self._producer is None:
                    self._producer = self._new_producer()
                    if is_written():
                        return
                _write(self._producer, *content())
                return
            except confluent_kafka().KafkaException as error:
                self._drop_producer()
                explained = failures.explain(error.args[0], what)
                # Each record fits, as tasks have seen: several together may not.
                gathered = error.args[0].name() == "MSG_SIZE_TOO_LARGE" and not self._one_by_one
                if not tries_left or (isinstance(explained, ConfigurationError) and not gathered):
                    raise explained from error
                self._one_by_one = self._one_by_one or gathered
                _LOG.warning("%s; retrying", explained)
            except BaseException:
                self._drop_producer()  # its transaction is open
                raise

    def close(self) -> None:
        self._drop_producer()
        for opened in (self._owner, *self._registers.values(), self._memory):
            if opened is not None:
                opened.close()
        self._owner = None
        self._memory = None
        self._registers.clear()
        self._forgotten.clear()

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        """Describe what a task has staged, with its topics and whose readers wait just now."""
        info = super().explain(transaction, ctx)
        change = msgspec.structs.replace
        try:
            topics = self._topics_of(transaction, ctx)
            info = change(info, what=f"{info.what}, for {name_topics(topics)}")
            held_up = self._held_up(topics, sink_label(ctx.job, ctx.uid))
        except TurnbackError as error:  # the list shows it nevertheless
            return change(info, problem=info.problem or str(error))
        if not held_up:
            return info
        return change(info, waiting=f"read_committed readers of {name_topics(held_up)}")

    def _held_up(self, topics: Sequence[str], name: str) -> list[str]:
        """Those topics in which a transaction is open; Kafka is asked once for each."""
        if self._silent is not None:
            raise self._silent
        try:
            with closing(KafkaTopics(self._cluster, name)) as found:
                for topic in topics:
                    if topic not in self._open:
                        self._open[topic] = found.held_up(topic)
        except TurnbackError as error:
            self._silent = error
            raise
        return [topic for topic in topics if self._open[topic]]

    def _topics_of(self, transaction: bytes, ctx: CommitterContext) -> list[str]:
        """The topics of staged records, read from the records if they name them."""
        if not self._selects:
            return list(self._topics)
        files = StagedFiles(ctx)
        task = StagedTask.decode(transaction, sink_label(ctx.job, ctx.uid))
        batches = (b for part in task.parts for b in decode_elements(files.read(part), RECORDS))
        return sorted({t for batch in batches for t in batch.arrow.column(0).unique().to_pylist()})

    def _records_of(self, output: StagedOutput) -> Iterator[Record]:
        if output.type != RECORDS:
            raise SinkError(
                f"epoch {output.epoch} was staged as {output.type}, not as Kafka records; start "
                "the job once with the version of Turnback that staged it"
            )
        for batch in output.batches():
            yield from staged_records(batch, self._topics[0])

    def _new_producer(self) -> TransactionalProducer:
        assert self._owner is not None, "call open first"
        assert self._claimant is not None, "call open first"
        return self._fencing_producer(self._owner, self._claimant)

    def _fencing_producer(
        self, register: GroupOffsetStore, ctx: CommitterContext
    ) -> TransactionalProducer:
        """Make a producer, unless another job or a newer attempt has the transactional id.

        It is looked up before, because making one fences whoever has it now, and afterwards,
        because only then nobody else can change it without fencing this one.
        """
        self._look_up_owner(register, ctx, settled=False)
        name = sink_label(ctx.job, ctx.uid)
        producer = TransactionalProducer(
            self._cluster, self.prefix, name, one_by_one=self._one_by_one
        )
        try:
            self._look_up_owner(register, ctx, settled=True)
        except BaseException:
            producer.close()
            raise
        return producer

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _notes(
        self, ctx: CommitterContext, output: StagedOutput
    ) -> list[tuple[GroupOffsetStore, StoredOffset]]:
        known = ctx.attempts.nonce_of(output.attempt) if ctx.attempts is not None else None
        progress = _encode(KafkaProgress(ctx.directory_id, known or ""))
        notes = [(self._register(ctx), StoredOffset(output.version, progress))]
        claimant = self._claimant
        if self._owner is not None and claimant is not None and claimant.job_directory is not None:
            notes.append((self._owner, self._note_of(claimant)))
        return notes

    def _note_of(self, ctx: CommitterContext) -> StoredOffset:
        assert ctx.job_directory is not None
        directory = canonical_directory(ctx.job_directory)
        owner = PrefixOwner(ctx.job, directory, ctx.uid, ctx.job_id, ctx.nonce)
        return StoredOffset(ctx.attempt, _encode(owner))

    def _progress_register(self, memory: KafkaMemory, ctx: CommitterContext) -> GroupOffsetStore:
        group = f"turnback.{self.prefix}.{ctx.job_id}.{ctx.uid}"
        return GroupOffsetStore(memory, group, self._topics[0])

    def _found(self, register: GroupOffsetStore, ctx: CommitterContext) -> StoredOffset | None:
        """How far this very job is; what a copy of it has published does not count."""
        mine = ("", ctx.directory_id)  # older versions of Turnback did not note the directory
        found = [
            r for r in register.get() if _decode(r.note, KafkaProgress("")).directory_id in mine
        ]
        return found[-1] if found else None

    def _register(self, ctx: CommitterContext) -> GroupOffsetStore:
        assert self._memory is not None, "call open first"
        key = f"{ctx.directory_id}.{ctx.job_id}.{ctx.uid}"
        register = self._registers.get(key)
        if register is None:
            register = self._progress_register(self._memory, ctx)
            try:
                self._mark(ctx, register)
            except BaseException:
                register.close()
                raise
            self._registers[key] = register
        return register

    def _mark(self, ctx: CommitterContext, register: GroupOffsetStore) -> None:
        """Tell a sink that has never written from one that Kafka has forgotten.

        The mark in the job directory says that Kafka has been told something. It is made when Kafka
        has, also if that was by a process that died before it made the mark.
        """
        if ctx.storage is None:
            return
        storage = storage_of(ctx.storage)
        path = f"{JobDirectory.sink_path(ctx.uid)}/kafka-{path_segment(ctx.job_id)}"
        mark = f"{register.group} {ctx.directory_id}"
        try:
            found = storage.get(path).decode()
        except NotFoundError:
            found = ""
        is_known = self._found(register, ctx) is not None
        # Earlier versions of Turnback did not note the directory, of which there may be a copy.
        if found in (mark, register.group):
            if not is_known:
                self._forgotten.add(register.group)
            return
        if not is_known:
            nothing = StoredOffset(0, _encode(KafkaProgress(ctx.directory_id)))
            self._write_once(
                "record that nothing is published yet",
                lambda: self._found(register, ctx) is not None,
                lambda: ((), [(register, nothing)]),
            )
        storage.put(path, mark.encode())

    def _owner_register(self, memory: KafkaMemory) -> GroupOffsetStore:
        return GroupOffsetStore(memory, f"turnback.{self.prefix}", self._topics[0])

    def _look_up_owner(
        self, register: GroupOffsetStore, ctx: CommitterContext, *, settled: bool
    ) -> tuple[bool, PrefixOwner]:
        """Whether the prefix is this job's since before, and who had it last; refuses all others.

        What is not settled may be about to change: a transaction shows a moment after its commit.
        So nothing is refused for it, unless it stays.
        """
        if ctx.job_directory is None:
            return True, _UNKNOWN
        found = register.get_anywhere(settled=settled)
        try:
            return self._is_mine(found, ctx), _newest(found)
        except TurnbackError as refusal:
            if settled:
                raise
            try:
                found = register.get_anywhere(settled=True)
            except SinkError:
                raise refusal from None
        return self._is_mine(found, ctx), _newest(found)

    def _is_mine(self, found: Sequence[StoredOffset], ctx: CommitterContext) -> bool:
        assert ctx.job_directory is not None
        here = canonical_directory(ctx.job_directory)
        for remembered in found:
            owner = _decode(remembered.note, _UNKNOWN)
            if owner is _UNKNOWN or canonical_directory(owner.directory) != here:
                self._refuse_other(ctx, owner)
                return False
        if not found:
            return False
        newest = found[-1]
        owner = _decode(newest.note, _UNKNOWN)
        self._refuse_own(ctx, owner, newest.number)
        return owner.job_id != ctx.job_id or is_known_attempt(ctx, newest.number, owner.nonce)

    def _refuse_other(self, ctx: CommitterContext, owner: PrefixOwner) -> None:
        """Refuse the prefix of another job, unless it may be taken over and loses nothing."""
        name = sink_label(ctx.job, ctx.uid)
        known = owner is not _UNKNOWN
        who = f"job {owner.job!r} in {owner.directory}" if known else "somebody else"
        if not ctx.take_over:
            raise ConfigurationError(
                f"{name}: the transactional-id prefix {self.prefix!r} belongs to {who}, and two "
                "jobs that share it would abort each other's transactions. Give this sink "
                "another prefix; or stop the other job and take its output over permanently "
                "with take_over_sinks=True (turnback run --take-over-sinks)"
            )
        if not known or ctx.other_jobs is None:
            return
        try:
            promised = ctx.other_jobs.promised_by(owner.directory)
        except StorageError as error:
            raise ConfigurationError(
                f"{name}: the transactional-id prefix {self.prefix!r} cannot be taken over from "
                f"{who}, because it is unknown whether that job has in-doubt output: {error}. "
                "Give this sink another prefix, or make that directory readable"
            ) from error
        if promised:
            raise ConfigurationError(
                f"{name}: the transactional-id prefix {self.prefix!r} cannot be taken over from "
                f"{who} yet: {promised} in-doubt transactions of that job are not committed and "
                f"would be lost. Stop it, then run `turnback transactions commit {owner.job}`, "
                "or abort to discard them"
            )

    def _refuse_own(self, ctx: CommitterContext, owner: PrefixOwner, attempt: int) -> None:
        """Refuse a second sink of the job, and attempts that were replaced."""
        name = sink_label(ctx.job, ctx.uid)
        if ctx.attempt and owner.uid != ctx.uid and attempt == ctx.attempt:
            raise ConfigurationError(
                f"{name}: sink {owner.uid!r} of this job also has the transactional-id prefix "
                f"{self.prefix!r}; give each sink its own prefix"
            )
        job_id = owner.job_id or ctx.job_id
        place = f"the transactional-id prefix {self.prefix!r}"
        require_newest_attempt(ctx, job_id, attempt, owner.nonce, place)
        if job_id == ctx.job_id and 0 < ctx.attempt < attempt:
            raise SinkError(
                f"{name}: attempt {attempt} of the job now publishes, not this attempt "
                f"{ctx.attempt}"
            )

    def _forgotten_error(
        self, ctx: CommitterContext, register: GroupOffsetStore, output: StagedOutput
    ) -> ConfigurationError:
        return ConfigurationError(
            f"{sink_label(ctx.job, ctx.uid)}: Kafka no longer has the progress of this sink, "
            "which expires after offsets.retention.minutes, so it is unknown whether epoch "
            f"{output.epoch} of attempt {output.attempt} was published. Check topic "
            f"{self._topics[0]!r}. If it was published, run `turnback transactions abort "
            f"{ctx.job}`. If not, set the offset of partition 0 of group {register.group!r} to 0 "
            "with kafka-consumer-groups --reset-offsets, and start again"
        )

    def __getstate__(self) -> dict[str, Any]:
        nothing = dict.fromkeys(("_claimant", "_producer", "_memory", "_owner"))
        return {**self.__dict__, **nothing, "_registers": {}}

    def __repr__(self) -> str:
        return f"KafkaSink({self._cluster.servers!r}, {', '.join(self._topics)!r}, {self.prefix!r})"


_UNKNOWN = PrefixOwner("", "", "")
N = TypeVar("N", bound=msgspec.Struct)


def _newest(found: Sequence[StoredOffset]) -> PrefixOwner:
    return _decode(found[-1].note, _UNKNOWN) if found else _UNKNOWN


def _encode(note: msgspec.Struct) -> str:
    return msgspec.json.encode(note).decode()


def _decode(note: str, otherwise: N) -> N:
    """What a note says; something else if it says nothing."""
    try:
        return msgspec.json.decode(note, type=type(otherwise))
    except msgspec.MsgspecError:
        return otherwise


def _write(
    producer: TransactionalProducer,
    records: Iterable[Record],
    notes: Sequence[tuple[GroupOffsetStore, StoredOffset]],
) -> None:
    """Write records, and what Kafka has to remember with them, in one transaction."""
    remembered = [record for register, value in notes for record in register.records(value)]
    groups = [register.offsets(value) for register, value in notes]
    producer.write(chain(records, remembered), groups)


class _RecordWriter(SinkWriter):
    """Makes records of elements, in the task, and stages them.

    What cannot become a record, goes to a topic that is not there, or is refused by its topic,
    fails here: nothing is promised that could not be kept.
    """

    def __init__(
        self, cluster: Cluster, records: KafkaRecordSerializationSchema, ctx: WriterContext
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._name = sink_label(ctx.job, ctx.uid)
        attempt = (ctx.job_id, ctx.attempt)
        self._limits = RecordLimits(cluster, records.topics[0], self._name, attempt)
        self._staging = StagingWriter(replace(ctx, type=RECORDS))

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        records = self._records.staged(batch)
        if self._records.selects:
            chosen = {*records.arrow.column(0).unique().to_pylist()} - {*self._records.topics}
            require_topics(self._cluster, chosen, self._name)
        self._limits.check(records)
        self._staging.write(records)

    def prepare(self) -> bytes | None:
        return self._staging.prepare()

    def abort(self) -> None:
        self._staging.abort()


def name_topics(topics: Sequence[str]) -> str:
    """Topics as messages name them."""
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(map(repr, topics))}"


_FLUSH_S = 120.0


class StreamingDelivery(Sink):
    """Writes from tasks, at once; what a task has written cannot be taken back.

    If it `waits`, an epoch ends only when Kafka has all its records.
    """

    def __init__(
        self, cluster: Cluster, records: KafkaRecordSerializationSchema, waits: bool
    ) -> None:
        self.cluster = cluster
        self.records = records
        self._waits = waits

    def check_target(self, ctx: CommitterContext) -> None:
        check_target(self.cluster, self.records, ctx)

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return _StreamingWriter(self, ctx, self._waits)

    def committer(self, ctx: CommitterContext) -> Committer:
        return _NothingToCommit()


class _StreamingWriter(SinkWriter):
    def __init__(self, sink: StreamingDelivery, ctx: WriterContext, waits: bool) -> None:
        self._sink = sink
        self._waits = waits
        self._client = KafkaClient(sink.cluster, sink_label(ctx.job, ctx.uid))
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
                    f"{self._client.name}: Kafka has not accepted {left} records within "
                    f"{_FLUSH_S:g} s; the epoch will be retried"
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

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        """Nothing to do."""


class DeliveryGuarantee(Enum):
    """What holds for records when a job fails."""

    NONE = "none"
    """Records may be lost or come twice."""
    AT_LEAST_ONCE = "at-least-once"
    """Records may come twice."""
    EXACTLY_ONCE = "exactly-once"
    """Consumers that read committed records only see each record once."""


class KafkaSink(Sink):
    """Writes to Kafka topics; created with `KafkaSink.builder()`.

    - `EXACTLY_ONCE`: tasks stage records in the job directory, and when their checkpoint is
      complete the driver writes them, each epoch in one transaction. Needs checkpoints, and
      consumers with `isolation.level=read_committed`.
    - `AT_LEAST_ONCE`: tasks write, and an epoch ends when Kafka has acknowledged everything.
      Records replayed after a failure appear again.
    - `NONE`: tasks write and do not wait.
    """

    def __init__(
        self,
        cluster: Cluster,
        records: KafkaRecordSerializationSchema,
        guarantee: DeliveryGuarantee,
        prefix: str | None = None,
    ) -> None:
        self._cluster = cluster
        self.guarantee = guarantee
        self._topics = records.topics
        self._selects = records.selects
        self._prefix = prefix
        self._delivery: Sink
        if guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            assert prefix is not None
            self._delivery = TransactionalDelivery(
                cluster, records.topics, prefix, records, selects=records.selects
            )
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

    def check_target(self, ctx: CommitterContext) -> None:
        self._delivery.check_target(ctx)

    def acquire_target(self, ctx: CommitterContext) -> None:
        self._delivery.acquire_target(ctx)

    def committer(self, ctx: CommitterContext) -> Committer:
        return self._delivery.committer(ctx)

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return self._delivery.explain(transaction, ctx)

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        return self._delivery.list_orphans(ctx)

    def describe(self) -> dict[str, str]:
        """Describe the sink, with only the names of its properties, which may contain passwords."""
        described = {
            "kind": "kafka",
            "servers": self._cluster.servers,
            "topic": self._topics[0],
            "guarantee": self.guarantee.value,
        }
        if self._selects:
            described["topics"] = ",".join(self._topics)
        if self._prefix is not None:
            described["transactional_id_prefix"] = self._prefix
        if self._cluster.properties:
            described["properties"] = ",".join(sorted(self._cluster.properties))
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> Sink | None:
        """A sink that publishes what was staged; None if this one has no transactions.

        Raises:
            ConfigurationError: A property for the login is not in the environment.
        """
        if description.get("guarantee") != DeliveryGuarantee.EXACTLY_ONCE.value:
            return None
        for key in ("servers", "topic", "transactional_id_prefix"):
            if not description.get(key):
                raise ConfigurationError(f"the description of a Kafka sink has no {key}")
        topics = description.get("topics") or description["topic"]
        return TransactionalDelivery(
            Cluster(description["servers"], _properties_here(description.get("properties", ""))),
            topics.split(","),
            description["transactional_id_prefix"],
            selects="topics" in description,
        )

    def __repr__(self) -> str:
        topics = ", ".join(self._topics)
        return f"KafkaSink({self._cluster.servers!r}, {topics!r}, {self.guarantee.name})"


_VARIABLE = "TURNBACK_KAFKA_"


def _properties_here(names: str) -> dict[str, str]:
    """The properties of a sink whose program is not here, from the environment.

    `sasl.password` is in TURNBACK_KAFKA_SASL_PASSWORD. Only what is for the login is needed.
    """
    variables = {n: _VARIABLE + n.upper().replace(".", "_") for n in names.split(",") if n}
    login = ("security.", "sasl.", "ssl.", "enable.ssl.")
    missing = [v for n, v in variables.items() if n.startswith(login) and v not in os.environ]
    if missing:
        raise ConfigurationError(
            "the sink logs in to Kafka with properties that are not stored. Set the environment "
            f"variables {', '.join(missing)}, or specify the program too"
        )
    return {n: os.environ[v] for n, v in variables.items() if v in os.environ}


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
                f"{record_serializer!r:.80}; call build() on its builder"
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
                "KafkaSink: sasl.jaas.config is a setting of the Java client; set "
                "sasl.mechanism, sasl.username and sasl.password"
            )
        if not isinstance(value, str | int | float | bool):
            raise ConfigurationError(f"KafkaSink: the property {key!r} must be a string")
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
                "KafkaSink: exactly-once needs set_transactional_id_prefix(...) with a name "
                "that is unique to this sink and stays the same when the job is started again"
            )
        cluster = Cluster(self._servers, dict(self._properties))
        return KafkaSink(
            cluster, self._records, self._guarantee, self._prefix if exactly_once else None
        )
