"""What the prepared transactions of a job are, as far as can be told without its program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import SinkError, TurnbackError
from turnback.inspect.model import View
from turnback.spark.sinks import SinkRecord

if TYPE_CHECKING:
    from turnback.sinks.base import CommitterContext
    from turnback.sinks.staging import StagedFile


class TransactionState(StrEnum):
    """What becomes of a transaction when the job is started again."""

    PROMISED = "promised"
    """It is committed: the checkpoint that the job goes on from holds it."""
    LEFT_BEHIND = "left behind"
    """It is rolled back: no checkpoint holds it, and its records will be written anew."""


class TransactionRow(View, frozen=True, kw_only=True):
    """A transaction of a sink.

    Attributes:
        sink: Uid of the sink.
        kind: What sort of sink it is.
        state: What becomes of it when the job is started again.
        what: What it is, for people.
        epoch: The epoch it belongs to, if that is known.
        rows: Number of elements in it, if that is known.
        bytes: Its size.
        path: Its file, if it is one.
        problem: What is wrong with it.
    """

    sink: str
    kind: str
    state: TransactionState
    what: str
    epoch: int | None = None
    rows: int | None = None
    bytes: int | None = None
    path: str | None = None
    problem: str | None = None


def promised(manifest: Manifest, records: Mapping[str, SinkRecord]) -> Iterator[TransactionRow]:
    """Tell what the transactions in a checkpoint are."""
    for uid, transactions in manifest.transactions.items():
        record = records.get(uid)
        for transaction in transactions:
            try:
                yield _promised(context(manifest.job, manifest.job_id, uid), transaction, record)
            except SinkError as error:
                yield TransactionRow(
                    sink=uid,
                    kind="unknown",
                    state=TransactionState.PROMISED,
                    what="cannot be read",
                    bytes=len(transaction),
                    problem=str(error),
                )


def left_behind(
    job: str, job_id: str, records: Mapping[str, SinkRecord]
) -> Iterator[TransactionRow]:
    """Find the files that sinks of a job have staged and not published.

    Raises:
        SinkError: A directory cannot be read.
    """
    from turnback.sinks.staging import KIND, left_files

    for uid, record in records.items():
        root = record.description.get("path")
        if record.description.get("kind") != KIND or root is None:
            continue
        try:
            for file in left_files(Path(root), context(job, job_id, uid)):
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
                f"sink {uid!r} of job {job!r}: what it has staged in {root} cannot be listed: "
                f"{error.strerror or error}"
            ) from error


def context(
    job: str, job_id: str, uid: str, attempt: int = 0, job_directory: str | None = None
) -> CommitterContext:
    """Who settles the transactions of a sink."""
    from turnback.sinks.base import CommitterContext

    return CommitterContext(
        job=job, job_id=job_id, uid=uid, attempt=attempt, job_directory=job_directory
    )


def kind_of(transaction: bytes) -> str | None:
    """The kind of sink a transaction belongs to; None if it cannot be read."""
    from turnback.sinks.base import handle_kind

    return handle_kind(transaction)


def _promised(
    ctx: CommitterContext, transaction: bytes, record: SinkRecord | None
) -> TransactionRow:
    from turnback.sinks.memory import inline_output
    from turnback.sinks.staging import KIND

    kind = kind_of(transaction)
    if kind is None:
        raise SinkError(f"sink {ctx.uid!r}: a prepared transaction cannot be read")
    if kind == KIND:
        return _file(ctx, transaction, record)
    epoch = None
    if kind in ("collect", "discard", "print"):
        epoch = inline_output(kind, transaction, f"sink {ctx.uid!r}").epoch
    told = record.description.get("kind") if record is not None else None
    return TransactionRow(
        sink=ctx.uid,
        kind=kind,
        state=TransactionState.PROMISED,
        what=f"transaction of a {told or kind} sink",
        epoch=epoch,
        bytes=len(transaction),
    )


def _file(ctx: CommitterContext, transaction: bytes, record: SinkRecord | None) -> TransactionRow:
    from turnback.sinks.staging import KIND, StagedFile

    file = StagedFile.decode(transaction, ctx)
    root = record.description.get("path") if record is not None else None
    path = None if root is None else Path(root) / file.staged
    return TransactionRow(
        sink=ctx.uid,
        kind=KIND,
        state=TransactionState.PROMISED,
        what=file.final,
        epoch=file.epoch,
        rows=file.rows,
        bytes=file.length,
        path=None if path is None else str(path),
        problem=_problem(root, path, file),
    )


def _problem(root: str | None, path: Path | None, file: StagedFile) -> str | None:
    from turnback.sinks.staging import PublishRecord

    if root is None or path is None:
        return "where it is staged is not recorded"
    final = Path(root) / file.final
    try:
        if path.is_file():
            return None
        if final.is_file():
            return "published already, only the record of it is missing"
        if PublishRecord(Path(root), 0).covers(file):
            return "published already and taken away by its reader, only the record is missing"
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror or error}"
    except TurnbackError as error:
        return str(error)
    return f"neither {path} nor {final} is on this machine"
