"""Exactly-once output to Kafka: one transaction for each epoch, with how far the sink has come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import msgspec

from turnback.connectors.kafka.client import (
    Cluster,
    KafkaClient,
    Record,
    TransactionalProducer,
    confluent_kafka,
)
from turnback.connectors.kafka.records import (
    RECORDS,
    KafkaRecordSerializationSchema,
    RecordLimits,
    check_target,
    require_topics,
    staged_records,
)
from turnback.connectors.kafka.sink_memory import KafkaMemory, KafkaRegister, Remembered
from turnback.connectors.kafka.topics import KafkaTopics
from turnback.core.errors import (
    ConfigurationError,
    NotFoundError,
    SinkError,
    StorageError,
    TurnbackError,
)
from turnback.core.ids import path_segment
from turnback.job.directory import JobDirectory
from turnback.sinks.base import (
    CommitterContext,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    attempt_of,
    name_sink,
    promised_version,
    require_known_attempt,
    require_newest_attempt,
    require_promised,
)
from turnback.sinks.elements import decode_elements
from turnback.sinks.staged_elements import StagedFiles, StagedTask, StagingWriter
from turnback.sinks.write_ahead import StagedOutput, WriteAheadSink
from turnback.state.files import storage_of
from turnback.storage.locations import canonical_directory
from turnback.values.columns import Batch

_LOG = logging.getLogger(__name__)
_TRIES = 4


class PrefixOwner(msgspec.Struct, frozen=True):
    """The job that a transactional-id prefix belongs to, and which of its sinks uses it.

    The number beside it is the job's newest attempt; 0 until one has begun since it is the owner.

    Attributes:
        job_id: Identity of the job's lineage; older versions of Turnback did not note it.
        nonce: Which driver has that attempt, likewise.
    """

    job: str
    directory: str
    uid: str
    job_id: str = ""
    nonce: str = ""


class KafkaProgress(msgspec.Struct, frozen=True):
    """Who has published up to the version beside it.

    Attributes:
        directory_id: The job directory; copies of it have the same job id.
        nonce: Which driver had the attempt that staged the epoch.
    """

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
        if ctx.job_directory is None:
            return
        name = name_sink(ctx.job, ctx.uid)
        with (
            closing(KafkaMemory(self._cluster, name, create=False)) as memory,
            closing(self._owner_register(memory)) as register,
        ):
            _, owner = self._look_up_owner(register, ctx, settled=False)
            with ExitStack() as opened:
                for progress, former in self._former(owner, memory, ctx, opened):
                    self._require_promised(progress, former)

    def claim(self, ctx: CommitterContext) -> None:
        """Record the job as the owner of the prefix.

        With an attempt of the job comes which of its sinks it is, so that a second one with the
        same prefix is found; a sink that was renamed comes with a later attempt.
        """
        if ctx.job_directory is None:
            return
        name = name_sink(ctx.job, ctx.uid)
        with (
            closing(KafkaMemory(self._cluster, name, create=True)) as memory,
            closing(self._owner_register(memory)) as owner,
            closing(self._progress_register(memory, ctx)) as progress,
        ):
            is_mine, before = self._look_up_owner(owner, ctx, settled=False)
            if is_mine and not ctx.attempt:
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
                        notes.append((register, Remembered(0, nothing)))
                _write(producer, (), notes)

    def _former(
        self,
        before: PrefixOwner,
        memory: KafkaMemory,
        ctx: CommitterContext,
        opened: ExitStack,
    ) -> list[tuple[KafkaRegister, CommitterContext]]:
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

    def _require_promised(self, progress: KafkaRegister, ctx: CommitterContext) -> None:
        """Refuse what a sink has published that was called otherwise, and nobody knows of."""
        found = self._found(progress, ctx)
        if found is not None and found.number:
            place = f"Kafka, in the consumer group {progress.group!r},"
            nonce = _decode(found.note, KafkaProgress("")).nonce
            require_known_attempt(ctx, attempt_of(found.number), nonce, place)
            require_promised(ctx, found.number, place)

    def _is_foreign(self, progress: KafkaRegister, ctx: CommitterContext) -> bool:
        """Whether what is noted as this job's progress is that of a copy, or was restored away.

        Such notes of older versions of Turnback cannot be told from this job's own.
        """
        found = self._found(progress, ctx) if ctx.job_id else None
        if found is None:
            return False
        note = _decode(found.note, KafkaProgress(""))
        if found.number and not note.directory_id:
            return True
        is_known = _knows(ctx, attempt_of(found.number), note.nonce)
        return not is_known or promised_version(ctx, found.number) < found.number

    def open(self, ctx: CommitterContext) -> None:
        self._claimant = ctx
        self._registers = {}  # of this attempt: one before may still publish
        self._memory = KafkaMemory(self._cluster, name_sink(ctx.job, ctx.uid), create=False)
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
        content: Callable[[], tuple[Iterable[Record], Sequence[tuple[KafkaRegister, Remembered]]]],
    ) -> None:
        """Write a transaction, or find out that it was written.

        After any failure it is unknown whether the transaction was committed:

        1. make a new producer, which settles what the old one left open
        2. look whose the prefix is, and whether it is written
        3. write it again if it is not there
        """
        assert self._claimant is not None, "open comes first"
        failures = KafkaClient(self._cluster, name_sink(self._claimant.job, self._claimant.uid))
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
                _LOG.warning("%s; trying again", explained)
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
        files = StagedFiles(ctx)
        task = StagedTask.decode(transaction, name_sink(ctx.job, ctx.uid))
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

    def _new_producer(self) -> TransactionalProducer:
        assert self._owner is not None, "open comes first"
        assert self._claimant is not None, "open comes first"
        return self._fencing_producer(self._owner, self._claimant)

    def _fencing_producer(
        self, register: KafkaRegister, ctx: CommitterContext
    ) -> TransactionalProducer:
        """Make a producer, unless another job or a newer attempt has the transactional id.

        It is looked up before, because making one fences whoever has it now, and afterwards,
        because only then nobody else can change it without fencing this one.
        """
        self._check_owner(register, ctx, settled=False)
        name = name_sink(ctx.job, ctx.uid)
        producer = TransactionalProducer(
            self._cluster, self.prefix, name, one_by_one=self._one_by_one
        )
        try:
            self._check_owner(register, ctx, settled=True)
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
    ) -> list[tuple[KafkaRegister, Remembered]]:
        """What Kafka has to remember with the records of an epoch."""
        known = ctx.attempts.nonce_of(output.attempt) if ctx.attempts is not None else None
        progress = _encode(KafkaProgress(ctx.directory_id, known or ""))
        notes = [(self._register(ctx), Remembered(output.version, progress))]
        claimant = self._claimant
        if self._owner is not None and claimant is not None and claimant.job_directory is not None:
            notes.append((self._owner, self._note_of(claimant)))
        return notes

    def _note_of(self, ctx: CommitterContext) -> Remembered:
        assert ctx.job_directory is not None
        directory = canonical_directory(ctx.job_directory)
        owner = PrefixOwner(ctx.job, directory, ctx.uid, ctx.job_id, ctx.nonce)
        return Remembered(ctx.attempt, _encode(owner))

    def _progress_register(self, memory: KafkaMemory, ctx: CommitterContext) -> KafkaRegister:
        group = f"turnback.{self.prefix}.{ctx.job_id}.{ctx.uid}"
        return KafkaRegister(memory, group, self._topics[0])

    def _found(self, register: KafkaRegister, ctx: CommitterContext) -> Remembered | None:
        """How far this very job is; what a copy of it has published does not count."""
        mine = ("", ctx.directory_id)  # older versions of Turnback did not note the directory
        found = [
            r for r in register.get() if _decode(r.note, KafkaProgress("")).directory_id in mine
        ]
        return found[-1] if found else None

    def _register(self, ctx: CommitterContext) -> KafkaRegister:
        """The register of how far the sink is."""
        assert self._memory is not None, "open comes first"
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

    def _mark(self, ctx: CommitterContext, register: KafkaRegister) -> None:
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
            nothing = Remembered(0, _encode(KafkaProgress(ctx.directory_id)))
            self._write_once(
                "record that nothing is published yet",
                lambda: self._found(register, ctx) is not None,
                lambda: ((), [(register, nothing)]),
            )
        storage.put(path, mark.encode())

    def _owner_register(self, memory: KafkaMemory) -> KafkaRegister:
        return KafkaRegister(memory, f"turnback.{self.prefix}", self._topics[0])

    def _check_owner(
        self, register: KafkaRegister, ctx: CommitterContext, *, settled: bool
    ) -> bool:
        """Whether the prefix is this job's since before; refuses one that somebody else has."""
        return self._look_up_owner(register, ctx, settled=settled)[0]

    def _look_up_owner(
        self, register: KafkaRegister, ctx: CommitterContext, *, settled: bool
    ) -> tuple[bool, PrefixOwner]:
        """As `_check_owner`; with it, who had the prefix last.

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

    def _is_mine(self, found: Sequence[Remembered], ctx: CommitterContext) -> bool:
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
        return owner.job_id != ctx.job_id or _knows(ctx, newest.number, owner.nonce)

    def _refuse_other(self, ctx: CommitterContext, owner: PrefixOwner) -> None:
        """Refuse the prefix of another job, unless it may be taken over and loses nothing."""
        name = name_sink(ctx.job, ctx.uid)
        known = owner is not _UNKNOWN
        who = f"job {owner.job!r} in {owner.directory}" if known else "somebody else"
        if not ctx.take_over:
            raise ConfigurationError(
                f"{name}: the transactional-id prefix {self.prefix!r} belongs to {who}, and two "
                "jobs that share it would abort each other's transactions. Give this sink another "
                "prefix; or stop the other job and take its output over for good, with "
                "take_over_sinks=True (turnback run --take-over-sinks)"
            )
        if not known or ctx.other_jobs is None:
            return
        try:
            promised = ctx.other_jobs.promised_by(owner.directory)
        except StorageError as error:
            raise ConfigurationError(
                f"{name}: the transactional-id prefix {self.prefix!r} cannot be taken over from "
                f"{who}: whether that job has promised output cannot be read: {error}. Give this "
                "sink another prefix, or make that directory readable"
            ) from error
        if promised:
            raise ConfigurationError(
                f"{name}: the transactional-id prefix {self.prefix!r} cannot be taken over from "
                f"{who} yet: {promised} transactions of that job are promised and not committed, "
                f"and would be lost. Stop it, then run `turnback transactions commit {owner.job}`, "
                "or abort if they are not wanted"
            )

    def _refuse_own(self, ctx: CommitterContext, owner: PrefixOwner, attempt: int) -> None:
        """Refuse a second sink of the job, and attempts that were replaced."""
        name = name_sink(ctx.job, ctx.uid)
        if ctx.attempt and owner.uid != ctx.uid and attempt == ctx.attempt:
            raise ConfigurationError(
                f"{name}: sink {owner.uid!r} of this job has the transactional-id prefix "
                f"{self.prefix!r} too; give each sink one of its own"
            )
        job_id = owner.job_id or ctx.job_id
        place = f"the transactional-id prefix {self.prefix!r}"
        require_newest_attempt(ctx, job_id, attempt, owner.nonce, place)
        if job_id == ctx.job_id and 0 < ctx.attempt < attempt:
            raise SinkError(
                f"{name}: attempt {attempt} of the job publishes now, and this is attempt "
                f"{ctx.attempt}"
            )

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
        nothing = dict.fromkeys(("_claimant", "_producer", "_memory", "_owner"))
        return {**self.__dict__, **nothing, "_registers": {}}

    def __repr__(self) -> str:
        return f"KafkaSink({self._cluster.servers!r}, {', '.join(self._topics)!r}, {self.prefix!r})"


_UNKNOWN = PrefixOwner("", "", "")
N = TypeVar("N", bound=msgspec.Struct)


def _newest(found: Sequence[Remembered]) -> PrefixOwner:
    return _decode(found[-1].note, _UNKNOWN) if found else _UNKNOWN


def _encode(note: msgspec.Struct) -> str:
    return msgspec.json.encode(note).decode()


def _decode(note: str, otherwise: N) -> N:
    """What a note says; something else if it says nothing."""
    try:
        return msgspec.json.decode(note, type=type(otherwise))
    except msgspec.MsgspecError:
        return otherwise


def _knows(ctx: CommitterContext, attempt: int, nonce: str) -> bool:
    """Whether the job directory knows of an attempt, whatever the user allows."""
    try:
        require_known_attempt(replace(ctx, take_over=False), attempt, nonce, "")
    except ConfigurationError:
        return False
    return True


def _write(
    producer: TransactionalProducer,
    records: Iterable[Record],
    notes: Sequence[tuple[KafkaRegister, Remembered]],
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
        self._name = name_sink(ctx.job, ctx.uid)
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
