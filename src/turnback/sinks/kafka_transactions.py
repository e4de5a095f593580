"""Exactly-once output to Kafka: one transaction for each epoch, with how far the sink has come."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec

from turnback.core.errors import ConfigurationError, NotFoundError, SinkError, TurnbackError
from turnback.core.ids import path_segment
from turnback.job.directory import JobDirectory
from turnback.sinks.base import (
    CommitterContext,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    name_sink,
)
from turnback.sinks.elements import decode_elements
from turnback.sinks.kafka_client import (
    Cluster,
    KafkaClient,
    KafkaRegister,
    Record,
    TransactionalProducer,
    confluent_kafka,
)
from turnback.sinks.kafka_records import (
    RECORDS,
    KafkaRecordSerializationSchema,
    check_target,
    require_topics,
    staged_records,
)
from turnback.sinks.kafka_topics import KafkaTopics
from turnback.sinks.staged_elements import StagedFiles, StagedTask, StagingWriter
from turnback.sinks.write_ahead import StagedOutput, WriteAheadSink
from turnback.state.files import storage_of
from turnback.types.columns import Batch

_LOG = logging.getLogger(__name__)
_TRIES = 4


class PrefixOwner(msgspec.Struct, frozen=True):
    """The job that a transactional-id prefix belongs to, and which of its sinks uses it."""

    job: str
    directory: str
    uid: str


class TransactionalDelivery(WriteAheadSink):
    """Writes each epoch in one transaction, together with how far the sink has come.

    Tasks make records of elements and stage these, so that publishing needs nothing of the program.

    How far it is, is the offset of the consumer group `turnback.<prefix>.<job id>.<uid>`; the owner
    of the prefix is the note of the group `turnback.<prefix>`. Nobody consumes with these groups.

    Two processes cannot write at the same time: each makes a producer of the same transactional id
    before it looks how far the sink is, and with that fences the other.

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
        self._cluster, self._topics, self._records = cluster, tuple(topics), records
        self.prefix = prefix
        self._selects = selects
        self._producer: TransactionalProducer | None = None
        self._owner: KafkaRegister | None = None
        self._registers: dict[str, KafkaRegister] = {}
        self._forgotten: set[str] = set()
        self._open: dict[str, bool] = {}
        self._silent: TurnbackError | None = None

    def writer(self, ctx: WriterContext) -> SinkWriter:
        assert self._records is not None, "this sink only settles"
        return _RecordWriter(self._cluster, self._records, ctx)

    def check_claim(self, ctx: CommitterContext) -> None:
        assert self._records is not None, "this sink only settles"
        check_target(self._cluster, self._records, ctx)
        with closing(self._owner_register(ctx)) as register:
            self._check_owner(register, ctx)

    def claim(self, ctx: CommitterContext) -> None:
        """Record the job as the owner of the prefix.

        With an attempt of the job comes which of its sinks it is, so that a second one with the
        same prefix is found; a sink that was renamed comes with a later attempt.
        """
        if ctx.job_directory is None:
            return
        with closing(self._owner_register(ctx)) as register:
            owner = self._check_owner(register, ctx)
            if ctx.attempt or owner is None or owner.directory != ctx.job_directory:
                note = msgspec.json.encode(
                    PrefixOwner(ctx.job, ctx.job_directory, ctx.uid)
                ).decode()
                register.put(ctx.attempt, note)

    def open(self, ctx: CommitterContext) -> None:
        self.close()
        self._owner = self._owner_register(ctx)
        self._producer = self._new_producer(ctx)

    def published(self, ctx: CommitterContext) -> int:
        if self._producer is None:
            # Only then is it settled what became of an older producer's transaction.
            self._producer = self._new_producer(ctx)
        found = self._register(ctx).get()
        return 0 if found is None else found.number

    def publish(self, ctx: CommitterContext, output: StagedOutput) -> None:
        """Write an epoch, or find out that it was written.

        After any failure it is unknown whether the transaction was committed:

        1. make a new producer, which settles what the old one left open
        2. look how far the sink is
        3. write again what is not there
        """
        register = self._register(ctx)
        if register.group in self._forgotten and output.attempt < ctx.attempt:
            raise self._forgotten_error(ctx, register, output)
        failures = KafkaClient(self._cluster, name_sink(ctx.job, ctx.uid))
        for tries_left in reversed(range(_TRIES)):
            try:
                if self._producer is None and self.published(ctx) >= output.version:
                    return
                assert self._producer is not None
                records = self._records_of(output)
                self._producer.write(records, register, output.version)
                return
            except confluent_kafka().KafkaException as error:
                self._drop_producer()
                explained = failures.explain(error.args[0], f"publish epoch {output.epoch}")
                if not tries_left or isinstance(explained, ConfigurationError):
                    raise explained from error
                _LOG.warning("%s; trying again", explained)
            except BaseException:
                self._drop_producer()  # its transaction is open
                raise

    def close(self) -> None:
        self._drop_producer()
        for register in (self._owner, *self._registers.values()):
            if register is not None:
                register.close()
        self._owner = None
        self._registers.clear()

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        """Describe what a task has staged, with its topics and whose readers wait just now."""
        info, change = super().explain(transaction, ctx), msgspec.structs.replace
        try:
            topics = self._topics_of(transaction, ctx)
            info = change(info, what=f"{info.what}, for {name_topics(topics)}")
            held_up = self._held_up(topics, name_sink(ctx.job, ctx.uid))
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
        files, task = StagedFiles(ctx), StagedTask.decode(transaction, name_sink(ctx.job, ctx.uid))
        batches = (b for part in task.parts for b in decode_elements(files.read(part), RECORDS))
        return sorted({t for batch in batches for t in batch.arrow.column(0).unique().to_pylist()})

    def _records_of(self, output: StagedOutput) -> Iterator[Record]:
        if output.type != RECORDS:
            raise SinkError(
                f"epoch {output.epoch} was staged as {output.type}, not as records of Kafka; start "
                "the job once with the version of Turnback that has staged it"
            )
        for batch in output.batches():
            yield from staged_records(batch, self._topics[0])

    def _new_producer(self, ctx: CommitterContext) -> TransactionalProducer:
        """Make a producer, unless another job or a newer attempt has the transactional id."""
        assert self._owner is not None, "open comes first"
        self._check_owner(self._owner, ctx)
        return TransactionalProducer(self._cluster, self.prefix, name_sink(ctx.job, ctx.uid))

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _register(self, ctx: CommitterContext) -> KafkaRegister:
        """The register of how far the sink is; made when the sink writes for the first time."""
        group = f"turnback.{self.prefix}.{ctx.job_id}.{ctx.uid}"
        register = self._registers.get(group)
        if register is None:
            name = name_sink(ctx.job, ctx.uid)
            register = KafkaRegister(self._cluster, group, self._topics[0], name)
            self._registers[group] = register
            if register.get() is None:
                self._begin(ctx, register)
        return register

    def _begin(self, ctx: CommitterContext, register: KafkaRegister) -> None:
        """Tell a sink that has never written from one that Kafka has forgotten."""
        if ctx.storage is None:
            return
        storage = storage_of(ctx.storage)
        path = f"{JobDirectory.sink_path(ctx.uid)}/kafka-{path_segment(ctx.job_id)}"
        try:
            storage.get(path)
        except NotFoundError:
            register.put(0)
            storage.put(path, register.group.encode())
        else:
            self._forgotten.add(register.group)

    def _owner_register(self, ctx: CommitterContext) -> KafkaRegister:
        group, name = f"turnback.{self.prefix}", name_sink(ctx.job, ctx.uid)
        return KafkaRegister(self._cluster, group, self._topics[0], name)

    def _check_owner(self, register: KafkaRegister, ctx: CommitterContext) -> PrefixOwner | None:
        """Refuse a prefix that somebody else has; return who has it now, if anybody does."""
        found = register.get() if ctx.job_directory is not None else None
        if found is None:
            return None
        name, owner = name_sink(ctx.job, ctx.uid), _owner(found.note)
        if owner is None or owner.directory != ctx.job_directory:
            if ctx.take_over:
                return owner
            who = "somebody else" if owner is None else f"job {owner.job!r} in {owner.directory}"
            raise ConfigurationError(
                f"{name}: the transactional-id prefix {self.prefix!r} belongs to {who}, and two "
                "jobs that share it would abort each other's transactions. Give this sink another "
                "prefix; or stop the other job and take its output over for good, with "
                "take_over_sinks=True (turnback run --take-over-sinks)"
            )
        if ctx.attempt and owner.uid != ctx.uid and found.number == ctx.attempt:
            raise ConfigurationError(
                f"{name}: sink {owner.uid!r} of this job has the transactional-id prefix "
                f"{self.prefix!r} too; give each sink one of its own"
            )
        if 0 < ctx.attempt < found.number:
            raise SinkError(
                f"{name}: attempt {found.number} of the job publishes now, and this is attempt "
                f"{ctx.attempt}"
            )
        return owner

    def _forgotten_error(
        self, ctx: CommitterContext, register: KafkaRegister, output: StagedOutput
    ) -> ConfigurationError:
        return ConfigurationError(
            f"{name_sink(ctx.job, ctx.uid)}: Kafka has forgotten how far this sink is, as it does "
            "after offsets.retention.minutes, so whether epoch "
            f"{output.epoch} of attempt {output.attempt} was published is not known. Look into "
            f"topic {self._topics[0]!r}. If it was: `turnback transactions abort {ctx.job}`. "
            f"If not, set the offset of partition 0 of group {register.group!r} to 0 with "
            "kafka-consumer-groups --reset-offsets, and start again"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_producer": None, "_owner": None, "_registers": {}}


def _owner(note: str) -> PrefixOwner | None:
    try:
        return msgspec.json.decode(note, type=PrefixOwner)
    except msgspec.MsgspecError:
        return None


class _RecordWriter(SinkWriter):
    """Makes records of elements, in the task, and stages them.

    What cannot become a record, or goes to a topic that is not there, fails here: nothing is
    promised that could not be kept.
    """

    def __init__(
        self, cluster: Cluster, records: KafkaRecordSerializationSchema, ctx: WriterContext
    ) -> None:
        self._cluster, self._records = cluster, records
        self._name = name_sink(ctx.job, ctx.uid)
        self._staging = StagingWriter(replace(ctx, type=RECORDS))

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        records = self._records.staged(batch)
        if self._records.selects:
            chosen = {*records.arrow.column(0).unique().to_pylist()} - {*self._records.topics}
            require_topics(self._cluster, chosen, self._name)
        self._staging.write(records)

    def prepare(self) -> bytes | None:
        return self._staging.prepare()

    def abort(self) -> None:
        self._staging.abort()


def name_topics(topics: Sequence[str]) -> str:
    """Topics as messages name them."""
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(map(repr, topics))}"
