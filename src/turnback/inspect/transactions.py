"""Sink transactions that a dead job has left behind: what they are, and settling them by hand."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest
from turnback.core.clock import Clock, SystemClock
from turnback.core.errors import ConfigurationError, JobInUseError, JobNotFoundError, SinkError
from turnback.inspect.job import Job
from turnback.inspect.model import View
from turnback.inspect.prepared import TransactionRow, context, kind_of, left_behind, promised
from turnback.inspect.summary import judge
from turnback.job.directory import JobDirectory, JobInfo
from turnback.snapshot.find import resume_point
from turnback.spark.sinks import SinkRecord, recorded_sinks

if TYPE_CHECKING:
    from turnback.sinks.base import Committer, Sink


_IN_MEMORY = ("collect", "discard")
"""Sinks whose output ends in the memory of the driver: there is nothing to settle elsewhere."""
_AGAIN = "Nothing is lost: do it again, or start the job"
_DROPPED = "It is dropped for good; do it again, or start the job, to remove what is left of it"


class Action(StrEnum):
    """What can be done with promised transactions; what is left behind is always rolled back."""

    COMMIT = "commit"
    ABORT = "abort"


class Settled(View, frozen=True, kw_only=True):
    """What was done.

    Attributes:
        action: What was asked for.
        checkpoint: The checkpoint whose transactions were settled; None if none were promised.
        transactions: Number of them, by sink uid.
    """

    action: Action
    checkpoint: int | None
    transactions: dict[str, int]


def list_transactions(job: Job) -> list[TransactionRow]:
    """Return what is not settled yet, promised transactions first.

    Of a running job these are the ones it works on. What a sink has left behind can only be seen
    of file sinks; others know by themselves what to roll back.

    Raises:
        JobNotFoundError: The job was never started.
        CorruptFileError: A checkpoint or record is damaged.
        SinkError: A directory of files cannot be read.
    """
    info, records = _info(job), recorded_sinks(job.directory)
    manifest = _promising(CheckpointLog(job.directory.storage), job.directory)
    rows = list(promised(manifest, records)) if manifest else []
    known = {row.path for row in rows}
    left = left_behind(info.job, info.job_id, records)
    return rows + [row for row in left if row.path not in known]


def settle(
    job: Job,
    action: Action,
    sinks: Mapping[str, Sink] | None = None,
    *,
    force: bool = False,
    clock: Clock | None = None,
) -> Settled:
    """Settle what a dead job has left, as its next start would do, or drop it.

    1. refuse while somebody drives the job
    2. make sure that every sink can be asked, before anything is done
    3. take a fence, so that a driver which is only paused cannot commit any more
    4. commit: tell every sink, then record it. Abort: record it first, or a start in between
       would look for transactions that are gone
    The job goes on from the same checkpoint afterwards.

    Args:
        job: The job.
        action: What to do with promised transactions. To abort them is to lose their records:
            the job goes on after them.
        sinks: By uid, those that only the program can make. Built-in ones need not be given.
        force: Also if a driver elsewhere, or a supervisor, may still be there.
        clock: Where time comes from.

    Raises:
        JobInUseError: A driver runs the job, or may do so.
        JobNotFoundError: The job was never started.
        ConfigurationError: A sink is needed and was not given.
        FencedError: The job was started meanwhile; nothing was done.
        SinkError: Not all are settled; the message says what to do.
        CorruptFileError: A checkpoint or record is damaged.
    """
    action, clock = _action(action), clock or SystemClock()
    info = _info(job)
    _require_dead(job.directory, force, clock)
    log = CheckpointLog(job.directory.storage)
    manifest = _promising(log, job.directory)
    pending = dict(manifest.transactions) if manifest else {}
    usable = _usable_sinks(job, pending, recorded_sinks(job.directory), dict(sinks or {}))
    fence = _fence(log, info, clock)
    # The dead driver may have written another checkpoint until the fence was taken.
    manifest = _promising(log, job.directory)
    if dict(manifest.transactions if manifest else {}) != pending:
        raise ConfigurationError(
            f"job {job.name!r} has taken another checkpoint just now. Nothing was done; look again"
        )
    uri = job.directory.storage.uri
    committers = {
        uid: sink.committer(context(info.job, info.job_id, uid, fence.attempt, uri))
        for uid, sink in usable.items()
    }
    log.check_fence()
    if action is Action.COMMIT:
        _tell(job, committers, lambda uid, one: _commit(log, manifest, uid, one), _AGAIN)
        _record(log, manifest)
    else:
        _record(log, manifest)
        _tell(job, committers, lambda uid, one: _drop(one, pending.get(uid, ())), _DROPPED)
    return Settled(
        action=action,
        checkpoint=manifest.number if manifest else None,
        transactions={uid: len(found) for uid, found in pending.items()},
    )


def _action(action: Action) -> Action:
    try:
        return Action(action)
    except ValueError:
        raise ConfigurationError(
            f"{action!r} is none of {', '.join(a.value for a in Action)}"
        ) from None


def _info(job: Job) -> JobInfo:
    info = job.directory.info()
    if info is None:
        raise JobNotFoundError(f"job {job.name!r} was never started: it has no transactions")
    return info


def _promising(log: CheckpointLog, directory: JobDirectory) -> Manifest | None:
    """The checkpoint that the job goes on from, with the transactions that are left to commit."""
    point = resume_point(log, directory)
    manifest = point.manifest if point is not None else None
    if manifest is None or manifest.number <= log.committed():
        return None
    return msgspec.structs.replace(manifest, transactions=log.uncommitted(manifest))


def _require_dead(directory: JobDirectory, force: bool, clock: Clock) -> None:
    status = directory.status()
    found = judge(status, clock.now_ms())
    if not found.is_served or found.driver is None:
        return
    who = f"pid {found.driver.pid} on {found.driver.host}"
    if found.driver.alive:
        raise JobInUseError(
            f"job {directory.name!r} is {found.state} as {who}: it settles its transactions "
            "itself. Stop it first"
        )
    if not force:
        what = (
            f"its driver was {who}, and whether that still runs cannot be told from here"
            if found.driver.alive is None
            else "its supervisor is about to start it again"
        )
        raise JobInUseError(
            f"job {directory.name!r} is {found.state}: {what}. Stop it first, or force it if you "
            "know that it is dead: it will be fenced out"
        )


def _usable_sinks(
    job: Job,
    pending: Mapping[str, tuple[bytes, ...]],
    records: Mapping[str, SinkRecord],
    given: dict[str, Sink],
) -> dict[str, Sink]:
    """The sinks that are to be asked; all that have promised something are among them."""
    from turnback.sinks.rebuild import rebuilt

    found = dict(given)
    for uid, record in records.items():
        if uid in found:
            continue
        path = record.description.get("path")
        if path is not None and not Path(path).is_dir() and uid not in pending:
            continue  # it is somewhere else, or nothing was ever written
        sink = rebuilt(record.description)
        if sink is not None:
            found[uid] = sink
    missing = [
        uid
        for uid, transactions in pending.items()
        if uid not in found and not all(kind_of(t) in _IN_MEMORY for t in transactions)
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
    return found


def _fence(log: CheckpointLog, info: JobInfo, clock: Clock) -> Fence:
    """Take the right to append away from every driver before.

    No attempt is recorded for this fence, so the job goes on from what it would have before.
    """
    return log.fence(
        job=info.job,
        job_id=info.job_id,
        created_ms=clock.now_ms(),
        host=socket.gethostname(),
        pid=os.getpid(),
        nonce=uuid.uuid4().hex,
    )


def _tell(
    job: Job,
    committers: Mapping[str, Committer],
    what: Callable[[str, Committer], None],
    then: str,
) -> None:
    """Tell every sink, also when one before it failed."""
    failed: list[tuple[str, Exception]] = []
    for uid, committer in committers.items():
        try:
            with redirect_stdout(sys.stderr):  # what a sink prints is not the command's answer
                what(uid, committer)
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            failed.append((uid, error))
    if failed:
        told = "; ".join(
            str(error) if isinstance(error, SinkError) else f"sink {uid!r}: {error}"
            for uid, error in failed
        )
        raise SinkError(f"job {job.name!r}: {told}. {then}") from failed[0][1]


def _commit(log: CheckpointLog, manifest: Manifest | None, uid: str, committer: Committer) -> None:
    promised = manifest.transactions.get(uid, ()) if manifest is not None else ()
    committer.recover(promised)
    if manifest is not None and promised:
        log.record_commit(manifest.number, [uid])


def _drop(committer: Committer, transactions: tuple[bytes, ...]) -> None:
    committer.abort(transactions)
    committer.recover(())


def _record(log: CheckpointLog, manifest: Manifest | None) -> None:
    if manifest is not None:
        log.record_commit(manifest.number)
