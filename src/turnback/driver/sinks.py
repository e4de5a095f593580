"""The sinks of a job on the driver: claiming targets, committing, and what is recorded of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import msgspec

from turnback.checkpoint.commits import EpochCommitter
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence
from turnback.errors import CorruptFileError, TurnbackError
from turnback.job.directory import JobDirectory
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator, Plan
from turnback.sinks.base import ClosingCommitter, CommitterContext, Sink
from turnback.sinks.write_ahead import accept_published
from turnback.snapshot.find import resume_point
from turnback.state.files import StorageRef, storage_of
from turnback.storage.envelope import decode_document, encode_document
from turnback.values.typeinfo import TypeInfo

_LOG = logging.getLogger(__name__)
FORMAT = 1
_KIND = "sink"
_FILE = "sink.json"


def _sink_operators(plan: Plan) -> list[Operator]:
    return [op for op in plan.operators() if op.kind is NodeKind.SINK]


class _OtherJobs:
    """What the logs of other jobs say, read with the credentials of this one."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def promised_by(self, directory: str) -> int:
        storage = storage_of(StorageRef(directory, self._options))
        log = CheckpointLog(storage)
        # What the job resumes from, which need not be its newest checkpoint: a job that was turned
        # back has given up what that had promised.
        point = resume_point(log, JobDirectory(storage, directory))
        if point is None or point.manifest is None:
            return 0
        return sum(map(len, log.uncommitted(point.manifest).values()))


class _PromisedOutput:
    """What the log of the job says, if its sinks commit nothing without a checkpoint."""

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory

    def newest_epoch(self, attempt: int) -> int | None:
        started = self._directory.attempt(attempt)
        if started is None:
            # An attempt is recorded before it writes anything; those of old ones are dropped.
            return 0 if attempt > max(self._directory.attempts(), default=0) else None
        if started.commits_every_epoch is not False:
            return None
        return CheckpointLog(self._directory.storage).newest_epoch(attempt)


def committer_context(
    directory: JobDirectory,
    job_id: str,
    uid: str,
    *,
    options: Mapping[str, str],
    fence: Fence | None = None,
    type: TypeInfo | None = None,
    take_over: bool = False,
    known: Collection[str] = (),
) -> CommitterContext:
    """What the committer of a sink is told; without a fence no attempt has begun.

    `known` are the uids of all sinks that the job directory knows.
    """
    uri = directory.storage.uri
    return CommitterContext(
        job=directory.name,
        job_id=job_id,
        uid=uid,
        attempt=fence.attempt if fence is not None else 0,
        type=type,
        job_directory=uri,
        take_over=take_over,
        storage=StorageRef(uri, dict(options)),
        nonce=fence.nonce if fence is not None else "",
        attempts=CheckpointLog(directory.storage),
        other_jobs=_OtherJobs(options),
        promised=_PromisedOutput(directory),
        other_uids=tuple(sorted(set(known) - {uid})),
    )


def acquire_targets(
    plan: Plan,
    directory: JobDirectory,
    job_id: str,
    fence: Fence | None = None,
    *,
    options: Mapping[str, str],
    take_over: bool = False,
) -> dict[str, CommitterContext]:
    """Make the targets of all sinks this job's; return the context of each committer, by uid.

    A job that is yet to be created has no id, one that is yet to start no fence. With `take_over`
    targets that belong to other jobs become this job's, else they are refused.
    """
    sinks = _sink_operators(plan)
    known = {*recorded_sinks(directory), *(op.uid for op in sinks)}
    contexts = {
        op.uid: committer_context(
            directory,
            job_id,
            op.uid,
            options=options,
            fence=fence,
            type=op.input_type,
            take_over=take_over,
            known=known,
        )
        for op in sinks
    }
    # All of them first: a job that is refused must not own any target.
    for op in sinks:
        op.function.check_target(contexts[op.uid])
    for op in sinks:
        op.function.acquire_target(contexts[op.uid])
    if take_over:
        newest = CheckpointLog(directory.storage).newest()
        # Also what sinks have staged that were renamed: it is published under their old uids.
        for uid in known if contexts else ():
            ctx = replace(next(iter(contexts.values())), uid=uid)
            accept_published(ctx, newest.attempt if newest is not None else 0)
    return contexts


class JobSinks:
    """Commits and rolls back what the tasks of a job have prepared."""

    def __init__(
        self, plan: Plan, fence: Fence, directory: JobDirectory, options: Mapping[str, str]
    ) -> None:
        self._fence = fence
        self._attempt = fence.attempt
        self._directory = directory
        self._options = options
        self._sinks = {op.uid: op.function for op in _sink_operators(plan)}
        contexts = acquire_targets(plan, directory, fence.job_id, fence, options=options)
        self.committers: dict[str, EpochCommitter] = {}
        try:
            for uid, sink in self._sinks.items():
                self.committers[uid] = sink.committer(contexts[uid])
        except BaseException:
            self.close()
            raise

    def record(self) -> None:
        record_sinks(self._directory, self._attempt, self._sinks)

    def roll_back_dropped(self, rebuild: Callable[[Mapping[str, str]], Sink | None]) -> None:
        """Roll back what sinks have left that the program has no more, if others wait for it.

        To be called after all others have recovered. What fails is tried with the next start.
        """
        for uid, record in recorded_sinks(self._directory).items():
            if uid in self._sinks or record.is_settled:
                continue
            try:
                sink = rebuild(record.description)
                if sink is None or not sink.holds_locks:
                    continue
                self._recover_dropped(uid, sink)
            except TurnbackError as e:
                _LOG.warning(
                    "job %r: transactions prepared by sink %r, which is no longer in the "
                    "program, may still hold locks and cannot be rolled back: %s. Run `turnback "
                    "transactions abort %s` where that is possible",
                    *(self._directory.name, uid, e, self._directory.name),
                )
            else:
                settled = msgspec.structs.replace(record, is_settled=True)
                _put_record(self._directory, settled)

    def _recover_dropped(self, uid: str, sink: Sink) -> None:
        job_id = self._fence.job_id
        ctx = committer_context(
            self._directory, job_id, uid, options=self._options, fence=self._fence
        )
        committer = sink.committer(ctx)
        try:
            committer.recover(())
        finally:
            if isinstance(committer, ClosingCommitter):
                committer.close()

    def roll_back(self, prepared: Mapping[str, tuple[bytes, ...]]) -> None:
        """Leave nothing of an epoch that was refused; the next attempt would find it as well."""
        for uid, transactions in prepared.items():
            try:
                self.committers[uid].abort(transactions)
            except TurnbackError as e:
                _LOG.warning("sink %r cannot roll back: %s", uid, e)

    def close(self) -> None:
        """Let go of all targets, at the end of the attempt."""
        for uid, committer in self.committers.items():
            if isinstance(committer, ClosingCommitter):
                try:
                    committer.close()
                except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
                    _LOG.warning("cannot close sink %r: %s", uid, error)


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sink as the newest attempt that has recovered its sinks has recorded it."""

    uid: str
    attempt: int
    description: dict[str, str]
    """See `Sink.describe`."""
    is_settled: bool = False
    """Whether the program has the sink no more, and nothing that it prepared is left."""


def record_sinks(directory: JobDirectory, attempt: int, sinks: Mapping[str, Sink]) -> None:
    """Record the sinks of an attempt, so that transactions can be settled without the program.

    To be called when all sinks have recovered: until then, transactions of earlier attempts have
    to be settled by what those attempts have recorded.
    """
    for uid, sink in sinks.items():
        record = SinkRecord(uid=uid, attempt=attempt, description=sink.describe())
        _put_record(directory, record)


def _put_record(directory: JobDirectory, record: SinkRecord) -> None:
    data = encode_document(_KIND, FORMAT, record)
    directory.storage.put(_path(directory, record.uid), data)


def recorded_sinks(directory: JobDirectory) -> dict[str, SinkRecord]:
    """Return the records of all sinks that a job has or had, by uid."""
    records: dict[str, SinkRecord] = {}
    for path in directory.storage.list("sinks"):
        if not path.endswith(f"/{_FILE}"):
            continue
        name = f"{directory.storage.uri}/{path}"
        data = directory.storage.get(path)
        record = decode_document(_KIND, FORMAT, data, name, SinkRecord)
        if path != _path(directory, record.uid):
            raise CorruptFileError(
                f"{name} belongs to sink {record.uid!r}: it was copied or renamed"
            )
        records[record.uid] = record
    return records


def _path(directory: JobDirectory, uid: str) -> str:
    return f"{directory.sink_path(uid)}/{_FILE}"
