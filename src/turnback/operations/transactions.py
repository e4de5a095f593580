"""Sink transactions that a dead job has left behind: what they are, and settling them by hand."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from enum import StrEnum

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest
from turnback.connectors.registry import (
    IN_MEMORY,
    explain_handle,
    sink_from_description,
    staged_orphans,
)
from turnback.core.clock import SystemClock
from turnback.driver.restore_plan import abandoned_output
from turnback.driver.sinks import SinkRecord, committer_context, recorded_sinks
from turnback.errors import (
    ConfigurationError,
    JobInUseError,
    JobNotFoundError,
    SinkError,
    TurnbackError,
)
from turnback.job.directory import JobDirectory, JobInfo
from turnback.job.liveness import liveness_of
from turnback.sinks.base import (
    ClosingCommitter,
    Committer,
    CommitterContext,
    Sink,
    TransactionInfo,
    handle_kind,
    target_version,
)
from turnback.snapshot.find import resume_point
from turnback.views.job import Job
from turnback.views.model import View

_AGAIN = "Nothing is lost: run the command again, or start the job"
_DROPPED = (
    "The output is permanently dropped; to remove its remains, run the command again, or start "
    "the job"
)


class TransactionState(StrEnum):
    """What becomes of a transaction when the job is started again."""

    PROMISED = "in doubt"
    """It is committed: the checkpoint that the job goes on from holds it."""
    LEFT_BEHIND = "orphaned"
    """It is rolled back: no checkpoint holds it, and its records will be written anew."""


class TransactionRow(View, frozen=True, kw_only=True):
    """A transaction of a sink; `kind` is what sort of sink it is, `what` is for people.

    `waiting` tells who is held up until it is settled.
    """

    sink: str
    kind: str
    state: TransactionState
    what: str
    epoch: int | None = None
    rows: int | None = None
    bytes: int | None = None
    path: str | None = None
    waiting: str | None = None
    problem: str | None = None


class Action(StrEnum):
    """What can be done with promised transactions; what is left behind is always rolled back."""

    COMMIT = "commit"
    ABORT = "abort"


class Settled(View, frozen=True, kw_only=True):
    """How many transactions were settled, by sink uid; `checkpoint` had promised them, if any."""

    action: Action
    checkpoint: int | None
    transactions: dict[str, int]


def list_transactions(job: Job) -> list[TransactionRow]:
    """Return what is not settled yet, promised transactions first.

    Of a running job these are the ones it works on. What a sink of the program's own has left
    behind cannot be seen without the program; it knows by itself what to roll back.
    """
    listing = _Listing(job)
    manifest = _manifest_to_commit(CheckpointLog(job.directory.storage), job.directory)
    promised = list(listing.promised(manifest)) if manifest else []
    return promised + list(listing.list_orphans())


def settle(
    job: Job, action: Action, sinks: Mapping[str, Sink] | None = None, *, force: bool = False
) -> Settled:
    """Settle what a dead job has left, as its next start would do, or drop it.

    1. refuse while a driver runs the job
    2. make sure that every sink can be reached, before anything is done
    3. take a fence, so that a driver which is only paused cannot commit any more
    4. commit: let every sink commit, then record it. Abort: record it first, or a start in between
       would look for transactions that are gone
    The job goes on from the same checkpoint afterwards.

    To abort promised transactions is to lose their records: the job goes on after them. `sinks`
    are those that only the program can make, by uid. With `force` it is also done if a driver
    elsewhere, or a supervisor, may still be there.

    Raises:
        JobInUseError: A driver runs the job, or may do so.
        ConfigurationError: A sink is needed and was not given.
        FencedError: The job was started meanwhile; nothing was done.
        SinkError: Not all are settled; the message says what to do.
    """
    info = _info(job)
    _require_dead(job, force)
    log = CheckpointLog(job.directory.storage)
    manifest = _manifest_to_commit(log, job.directory)
    pending = dict(manifest.transactions) if manifest else {}
    usable = _usable_sinks(job, pending, recorded_sinks(job.directory), dict(sinks or {}))
    # The job goes on from what it would have before, whether or not an attempt is recorded.
    fence = log.fence(
        job=info.job,
        job_id=info.job_id,
        created_ms=SystemClock().now_ms(),
        host=socket.gethostname(),
        pid=os.getpid(),
        nonce=uuid.uuid4().hex,
    )
    if _info(job).job_id != info.job_id:
        raise ConfigurationError(
            f"job {job.name!r} has just been started fresh. Nothing was done; try again"
        )
    # The dead driver may have written another checkpoint until the fence was taken.
    manifest = _manifest_to_commit(log, job.directory)
    if (dict(manifest.transactions) if manifest else {}) != pending:
        raise ConfigurationError(
            f"job {job.name!r} has just taken another checkpoint. Nothing was done; try again"
        )
    log.check_fence()

    def settle_each(action: Callable[[str, Committer], None], advice: str) -> None:
        _settle_each(job, info, fence, usable, action, advice)

    def commit(uid: str, committer: Committer) -> None:
        committer.commit(pending.get(uid, ()))
        if manifest is not None and pending.get(uid):
            version = target_version(committer)
            log.record_commit(manifest.number, [uid], {uid: version} if version else {})

    def drop(uid: str, committer: Committer) -> None:
        committer.abort(pending.get(uid, ()))
        committer.recover(())

    def roll_back_leftovers(uid: str, committer: Committer) -> None:
        committer.recover(())

    if action is Action.COMMIT:
        settle_each(commit, _AGAIN)
    _record_abandoned(job, log, manifest)
    log.check_fence()  # a start that came meanwhile may not have read that
    if manifest is not None:
        log.record_commit(manifest.number)
    if action is Action.COMMIT:
        settle_each(roll_back_leftovers, _AGAIN)
    else:
        settle_each(drop, _DROPPED)
    return Settled(
        action=action,
        checkpoint=manifest.number if manifest else None,
        transactions={uid: len(prepared) for uid, prepared in pending.items()},
    )


def _record_abandoned(job: Job, log: CheckpointLog, manifest: Manifest | None) -> None:
    """Record which other checkpoints have promised what is about to be rolled back.

    Whoever aborts knows that the job goes on without it from `manifest`. A start from another one,
    to write it again, would go on without it as well.
    """
    abandoned = abandoned_output(log, manifest)
    if not abandoned:
        return
    point = resume_point(log, job.directory)
    resumed = point.manifest if point is not None else None
    job.directory.record_attempt(
        log.own_fence.attempt,
        checkpoint=resumed.number if resumed is not None else None,
        snapshot=point.snapshot if point is not None else None,
        abandoned=abandoned,
        goes_on=point.goes_on if point is not None else False,
    )


def _info(job: Job) -> JobInfo:
    info = job.directory.info()
    if info is None:
        raise JobNotFoundError(f"job {job.name!r} was never started: it has no transactions")
    return info


def _manifest_to_commit(log: CheckpointLog, directory: JobDirectory) -> Manifest | None:
    """Return the checkpoint the job goes on from, with the transactions left to commit."""
    point = resume_point(log, directory)
    manifest = point.manifest if point is not None else None
    if manifest is None or manifest.number <= log.committed():
        return None
    return msgspec.structs.replace(manifest, transactions=log.uncommitted(manifest))


def _require_dead(job: Job, force: bool) -> None:
    alive = liveness_of(job.directory.status(), SystemClock().now_ms())
    if not alive.takes_requests or alive.driver is None:
        return
    who = f"pid {alive.driver.pid} on {alive.driver.host}"
    if alive.driver.alive:
        raise JobInUseError(
            f"job {job.name!r} is {alive.state} as {who}: it resolves its transactions itself. "
            "Stop it first"
        )
    if not force:
        what = "its supervisor is about to restart it"
        if alive.driver.alive is None:
            what = (
                f"its driver was {who}, and it is unknown from here whether that is still running"
            )
        raise JobInUseError(
            f"job {job.name!r} is {alive.state}: {what}. Stop it first, or use --force if you "
            "are sure that it is dead: it will be fenced out"
        )


def _usable_sinks(
    job: Job,
    pending: Mapping[str, tuple[bytes, ...]],
    records: Mapping[str, SinkRecord],
    given: dict[str, Sink],
) -> dict[str, Sink]:
    """Return the sinks that take part; all that have promised something are among them."""
    usable = dict(given)
    for uid, record in records.items():
        if uid in usable:
            continue
        sink = sink_from_description(record.description)
        if sink is None:
            continue
        reason = sink.unusable_here()
        if reason is None:
            usable[uid] = sink
        elif uid in pending:
            raise ConfigurationError(f"sink {uid!r} of job {job.name!r} {reason}; nothing was done")
    missing = [
        uid
        for uid, transactions in pending.items()
        if uid not in usable and not all(handle_kind(t) in IN_MEMORY for t in transactions)
    ]
    if missing:
        raise ConfigurationError(
            f"job {job.name!r} has prepared transactions of the sinks "
            f"{', '.join(map(repr, missing))}, which only its program can resolve. Specify the "
            "program with --script; nothing was done"
        )
    return usable


def _settle_each(
    job: Job,
    info: JobInfo,
    fence: Fence,
    sinks: Mapping[str, Sink],
    action: Callable[[str, Committer], None],
    advice: str,
) -> None:
    """Settle what every sink has, also when one before it failed."""
    failed: list[tuple[str, Exception]] = []
    for uid, sink in sinks.items():
        try:
            with redirect_stdout(sys.stderr):  # what a sink prints is not the command's answer
                committer = sink.committer(
                    committer_context(
                        job.directory, info.job_id, uid, options=job.options, fence=fence
                    )
                )
                try:
                    action(uid, committer)
                finally:
                    if isinstance(committer, ClosingCommitter):
                        committer.close()
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            failed.append((uid, error))
    if failed:
        reasons = "; ".join(
            str(error) if isinstance(error, SinkError) else f"sink {uid!r}: {error}"
            for uid, error in failed
        )
        raise SinkError(f"job {job.name!r}: {reasons}. {advice}") from failed[0][1]


class _Listing:
    """What the transactions of a job are, as far as can be told without the program."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._info = _info(job)
        self._records = recorded_sinks(job.directory)
        self._attempt = max(job.directory.attempts(), default=0)
        self._problems: dict[str, str] = {}
        self._sinks = {uid: self._rebuilt(uid) for uid in self._records}
        self._promised: set[tuple[str, str]] = set()

    def promised(self, manifest: Manifest) -> Iterator[TransactionRow]:
        for uid, transactions in manifest.transactions.items():
            for transaction in transactions:
                try:
                    found = self._explain(uid, transaction)
                except SinkError as error:
                    unread = TransactionInfo(
                        what="cannot be read", bytes=len(transaction), problem=str(error)
                    )
                    yield _row(uid, "unknown", TransactionState.PROMISED, unread)
                    continue
                if found.id is not None:
                    self._promised.add((uid, found.id))
                kind = handle_kind(transaction) or "unknown"
                yield _row(uid, kind, TransactionState.PROMISED, found)

    def list_orphans(self) -> Iterator[TransactionRow]:
        """What no checkpoint holds; to be called after `promised`."""
        for uid, sink in self._sinks.items():
            kind = self._records[uid].description.get("kind", "unknown")
            try:
                context = self._context(uid)
                problem = self._problems.get(uid)
                found = list(sink.list_orphans(context) if sink else staged_orphans(context))
            except TurnbackError as error:
                found = []
                problem = str(error)
            if problem is not None:
                found += [TransactionInfo(what="cannot be listed", problem=problem)]
            for info in found:
                if (uid, info.id) not in self._promised:
                    yield _row(uid, kind, TransactionState.LEFT_BEHIND, info)

    def _explain(self, uid: str, transaction: bytes) -> TransactionInfo:
        sink = self._sinks.get(uid)
        record = self._records.get(uid)
        if sink is not None:
            return sink.explain(transaction, self._context(uid))
        description = record.description if record is not None else {}
        return explain_handle(transaction, self._context(uid), description)

    def _rebuilt(self, uid: str) -> Sink | None:
        try:
            return sink_from_description(self._records[uid].description)
        except ConfigurationError as error:
            self._problems[uid] = str(error)
            return None

    def _context(self, uid: str) -> CommitterContext:
        job = self._job
        ctx = committer_context(job.directory, self._info.job_id, uid, options=job.options)
        return replace(ctx, attempt=self._attempt)


def _row(uid: str, kind: str, state: TransactionState, info: TransactionInfo) -> TransactionRow:
    fields = msgspec.structs.asdict(info)
    del fields["id"]
    return TransactionRow(sink=uid, kind=kind, state=state, **fields)
