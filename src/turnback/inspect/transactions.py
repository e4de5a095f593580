"""Sink transactions that a dead job has left behind: what they are, and settling them by hand."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.clock import SystemClock
from turnback.core.errors import (
    ConfigurationError,
    JobInUseError,
    JobNotFoundError,
    SinkError,
    TurnbackError,
)
from turnback.inspect.job import Job
from turnback.inspect.model import View
from turnback.inspect.summary import liveness_of
from turnback.job.directory import JobDirectory, JobInfo
from turnback.sinks.base import Committer, CommitterContext, Sink, handle_kind
from turnback.sinks.files import sink_from_description
from turnback.sinks.memory import inline_output
from turnback.sinks.staging import KIND, PublishRecord, StagedFile, left_files
from turnback.snapshot.find import resume_point
from turnback.spark.sinks import SinkRecord, recorded_sinks

_IN_MEMORY = ("collect", "discard")
"""Sinks whose output ends in the memory of the driver: there is nothing to settle elsewhere."""
_AGAIN = "Nothing is lost: do it again, or start the job"
_DROPPED = "It is dropped for good; do it again, or start the job, to remove what is left of it"


class TransactionState(StrEnum):
    """What becomes of a transaction when the job is started again."""

    PROMISED = "promised"
    """It is committed: the checkpoint that the job goes on from holds it."""
    LEFT_BEHIND = "left behind"
    """It is rolled back: no checkpoint holds it, and its records will be written anew."""


class TransactionRow(View, frozen=True, kw_only=True):
    """A transaction of a sink; `kind` is what sort of sink it is, `what` is for people."""

    sink: str
    kind: str
    state: TransactionState
    what: str
    epoch: int | None = None
    rows: int | None = None
    bytes: int | None = None
    path: str | None = None
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

    Of a running job these are the ones it works on. What a sink has left behind can only be seen
    of file sinks; others know by themselves what to roll back.
    """
    info, records = _info(job), recorded_sinks(job.directory)
    manifest = _manifest_to_commit(CheckpointLog(job.directory.storage), job.directory)
    rows = list(_promised_rows(manifest, records)) if manifest else []
    known = {row.path for row in rows}
    left = _left_behind_rows(info, records)
    return rows + [row for row in left if row.path not in known]


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
    # No attempt is recorded for this fence, so the job goes on from what it would have before.
    fence = log.fence(
        job=info.job,
        job_id=info.job_id,
        created_ms=SystemClock().now_ms(),
        host=socket.gethostname(),
        pid=os.getpid(),
        nonce=uuid.uuid4().hex,
    )
    # The dead driver may have written another checkpoint until the fence was taken.
    manifest = _manifest_to_commit(log, job.directory)
    if (dict(manifest.transactions) if manifest else {}) != pending:
        raise ConfigurationError(
            f"job {job.name!r} has taken another checkpoint just now. Nothing was done; try again"
        )
    uri = job.directory.storage.uri
    committers = {
        uid: sink.committer(
            CommitterContext(info.job, info.job_id, uid, fence.attempt, job_directory=uri)
        )
        for uid, sink in usable.items()
    }
    log.check_fence()

    def commit(uid: str, committer: Committer) -> None:
        committer.recover(pending.get(uid, ()))
        if manifest is not None and pending.get(uid):
            log.record_commit(manifest.number, [uid])

    def drop(uid: str, committer: Committer) -> None:
        committer.abort(pending.get(uid, ()))
        committer.recover(())

    if action is Action.COMMIT:
        _settle_each(job, committers, commit, _AGAIN)
    if manifest is not None:
        log.record_commit(manifest.number)
    if action is Action.ABORT:
        _settle_each(job, committers, drop, _DROPPED)
    return Settled(
        action=action,
        checkpoint=manifest.number if manifest else None,
        transactions={uid: len(prepared) for uid, prepared in pending.items()},
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
            f"job {job.name!r} is {alive.state} as {who}: it settles its transactions itself. "
            "Stop it first"
        )
    if not force:
        what = "its supervisor is about to start it again"
        if alive.driver.alive is None:
            what = f"its driver was {who}, and whether that still runs cannot be told from here"
        raise JobInUseError(
            f"job {job.name!r} is {alive.state}: {what}. Stop it first, or force it if you know "
            "that it is dead: it will be fenced out"
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
        path = record.description.get("path")
        if path is not None and not Path(path).is_dir() and uid not in pending:
            continue  # it is somewhere else, or nothing was ever written
        sink = sink_from_description(record.description)
        if sink is not None:
            usable[uid] = sink
    missing = [
        uid
        for uid, transactions in pending.items()
        if uid not in usable and not all(handle_kind(t) in _IN_MEMORY for t in transactions)
    ]
    if missing:
        raise ConfigurationError(
            f"job {job.name!r} has prepared transactions of the sinks "
            f"{', '.join(map(repr, missing))}, which only its program can settle. Give the program "
            "as well; nothing was done"
        )
    for uid in pending:
        path = records[uid].description.get("path") if uid in records else None
        if uid not in given and path is not None and not Path(path).is_dir():
            raise ConfigurationError(
                f"sink {uid!r} of job {job.name!r} writes to {path}, which is not on this machine. "
                "Go where it is mounted; nothing was done"
            )
    return usable


def _settle_each(
    job: Job,
    committers: Mapping[str, Committer],
    action: Callable[[str, Committer], None],
    advice: str,
) -> None:
    """Settle what every sink has, also when one before it failed."""
    failed: list[tuple[str, Exception]] = []
    for uid, committer in committers.items():
        try:
            with redirect_stdout(sys.stderr):  # what a sink prints is not the command's answer
                action(uid, committer)
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            failed.append((uid, error))
    if failed:
        reasons = "; ".join(
            str(error) if isinstance(error, SinkError) else f"sink {uid!r}: {error}"
            for uid, error in failed
        )
        raise SinkError(f"job {job.name!r}: {reasons}. {advice}") from failed[0][1]


# -- what they are, as far as can be told without the program


def _promised_rows(
    manifest: Manifest, records: Mapping[str, SinkRecord]
) -> Iterator[TransactionRow]:
    for uid, transactions in manifest.transactions.items():
        context = CommitterContext(manifest.job, manifest.job_id, uid, 0)
        for transaction in transactions:
            try:
                yield _promised_row(context, transaction, records.get(uid))
            except SinkError as error:
                yield TransactionRow(
                    sink=uid,
                    kind="unknown",
                    state=TransactionState.PROMISED,
                    what="cannot be read",
                    bytes=len(transaction),
                    problem=str(error),
                )


def _promised_row(
    context: CommitterContext, transaction: bytes, record: SinkRecord | None
) -> TransactionRow:
    kind = handle_kind(transaction)
    if kind is None:
        raise SinkError(f"sink {context.uid!r}: a prepared transaction cannot be read")
    description = record.description if record is not None else {}
    row = TransactionRow(
        sink=context.uid,
        kind=kind,
        state=TransactionState.PROMISED,
        what=f"transaction of a {description.get('kind') or kind} sink",
        bytes=len(transaction),
    )
    if kind in ("collect", "discard", "print"):
        epoch = inline_output(kind, transaction, f"sink {context.uid!r}").epoch
        return msgspec.structs.replace(row, epoch=epoch)
    if kind != KIND:
        return row
    root, file = description.get("path"), StagedFile.decode(transaction, context)
    return msgspec.structs.replace(
        row,
        what=file.final,
        epoch=file.epoch,
        rows=file.rows,
        bytes=file.length,
        path=None if root is None else str(Path(root) / file.staged),
        problem=_file_problem(root, file),
    )


def _file_problem(root: str | None, file: StagedFile) -> str | None:
    if root is None:
        return "where it is staged is not recorded"
    staged, final = Path(root) / file.staged, Path(root) / file.final
    try:
        if staged.is_file():
            return None
        if final.is_file():
            return "published already, only the record of it is missing"
        if PublishRecord(Path(root), 0).covers(file):
            return "published already and taken away by its reader, only the record is missing"
    except OSError as error:
        return f"{staged} cannot be read: {error.strerror or error}"
    except TurnbackError as error:
        return str(error)
    return f"neither {staged} nor {final} is on this machine"


def _left_behind_rows(info: JobInfo, records: Mapping[str, SinkRecord]) -> Iterator[TransactionRow]:
    """Find the files that sinks of a job have staged and not published."""
    for uid, record in records.items():
        root = record.description.get("path")
        if record.description.get("kind") != KIND or root is None:
            continue
        try:
            for file in left_files(Path(root), CommitterContext(info.job, info.job_id, uid, 0)):
                yield TransactionRow(
                    sink=uid,
                    kind=KIND,
                    state=TransactionState.LEFT_BEHIND,
                    what=f"{file.path.name} of attempt {file.attempt}",
                    epoch=file.epoch,
                    bytes=file.length,
                    path=str(file.path),
                )
        except OSError as error:
            raise SinkError(
                f"sink {uid!r} of job {info.job!r}: what it has staged in {root} cannot be listed: "
                f"{error.strerror or error}"
            ) from error
