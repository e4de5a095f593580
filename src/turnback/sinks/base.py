"""What a sink is: writers in tasks, a committer on the driver, and transactions between them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from turnback.errors import (
    ConfigurationError,
    FencedError,
    SinkError,
    StorageError,
    TurnbackError,
)
from turnback.state.files import StorageRef
from turnback.storage.locations import canonical_directory
from turnback.values.columns import Batch
from turnback.values.typeinfo import TypeInfo

R = TypeVar("R")
T = TypeVar("T")


def version_of(attempt: int, epoch: int) -> int:
    """One number for an attempt of a job and an epoch; newer output has a greater number.

    The epoch alone is not enough: a job that is restored from an older savepoint repeats epoch
    numbers, with different output. Attempt numbers only increase.
    """
    return attempt << 40 | epoch


def attempt_of(version: int) -> int:
    """The attempt in a number returned by `version_of`."""
    return version >> 40


def directory_digest(directory: str) -> str:
    """12 characters that identify a job directory in the names of transactions.

    Ids and names inside a directory are copied with it, so only its location distinguishes copies.
    """
    return hashlib.sha256(canonical_directory(directory).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Who writes: one attempt of one task, in one epoch.

    Attributes:
        job: Name of the job.
        job_id: Identity of the job's lineage; a fresh start of the same name has another.
        uid: The sink operator's uid.
        attempt: Fencing number of this attempt of the job; increases with every (re)start.
        epoch: The epoch being run.
        partition: Index of the task within its level. Of all attempts at one epoch and
            partition, at most one transaction is ever committed.
        task_attempt_id: Spark's id of this very attempt of the task.
        type: Type of the stream's elements.
        storage: The job directory, where a sink may stage what it publishes later, below
            `JobDirectory.sink_path`. None where it is not known.
        directory_id: Identifies the job directory, see `directory_digest`. Together with `job_id`
            and `uid` it distinguishes the sink from all others, including those of a copy of the
            job: put all three into the names of transactions, versions and owner records. Empty if
            the job directory is not known.
        nonce: Identifies the driver of this attempt. A job directory that was restored from a
            backup repeats attempt numbers, with different nonces.
    """

    job: str
    job_id: str
    uid: str
    attempt: int
    epoch: int
    partition: int
    task_attempt_id: int
    type: TypeInfo
    storage: StorageRef | None = None
    directory_id: str = ""
    nonce: str = ""

    @property
    def version(self) -> int:
        """Attempt and epoch in one number; see `version_of`."""
        return version_of(self.attempt, self.epoch)


class AttemptHistory(Protocol):
    """The attempts that a job directory knows."""

    def nonce_of(self, attempt: int) -> str | None:
        """The nonce of the driver of an attempt; None if the job directory has no such attempt."""


class PromisedOutput(Protocol):
    """The output that checkpoints of a job directory have held."""

    def newest_epoch(self, attempt: int) -> int | None:
        """The newest epoch of an attempt whose output was in a checkpoint; 0 if none was.

        None if it is unknown: the attempt commits every epoch, or its checkpoints are gone.
        """


class OtherJobs(Protocol):
    """Information about the job that owns a target."""

    def promised_by(self, directory: str) -> int:
        """How many transactions the checkpoints of a job hold that are not committed yet.

        0 if there is no job in the directory any more.

        Raises:
            StorageError: The directory cannot be read, so the number is unknown.
        """


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """Who commits: the driver, in one attempt of the job.

    Attributes:
        job: Name of the job.
        job_id: Identity of the job's lineage.
        uid: The sink operator's uid.
        attempt: Fencing number of this life of the job.
        type: Type of the stream's elements, where the driver knows it.
        job_directory: Where the job directory is, which identifies the job: names and ids are the
            same in a copy. None where it is not known.
        take_over: Whether the user allows taking over the sink's target from another job.
        storage: The job directory, as in `WriterContext`.
        nonce: Which driver runs this attempt, as in `WriterContext`; empty before the start.
        attempts: The attempts that the job directory knows. None if they are not known.
        other_jobs: Information about the job that owns a target. None if there is none.
        promised: The output that checkpoints of the job have held. None if it is not known.
        staged_in: Identifies the directory in which this output was staged, if the job directory
            was moved or copied since; empty otherwise.
    """

    job: str
    job_id: str
    uid: str
    attempt: int
    type: TypeInfo | None = None
    job_directory: str | None = None
    take_over: bool = False
    storage: StorageRef | None = None
    nonce: str = ""
    attempts: AttemptHistory | None = None
    other_jobs: OtherJobs | None = None
    promised: PromisedOutput | None = None
    staged_in: str = ""
    other_uids: tuple[str, ...] = ()

    @property
    def directory_id(self) -> str:
        """Identifies the job directory, as in `WriterContext`, or the one that staged the output.

        A target stores output under the location that staged it. A job that publishes it after a
        move, or a copy of the job that holds it as well, must query and record it under that
        location.
        """
        if self.staged_in:
            return self.staged_in
        return "" if self.job_directory is None else directory_digest(self.job_directory)


def require_known_attempt(ctx: CommitterContext, attempt: int, nonce: str, target: str) -> None:
    """Refuse a target with an attempt that this job directory does not know.

    Call it with the values that the target stores for `(ctx.directory_id, ctx.job_id, ctx.uid)`,
    before any output in the target is treated as published. An empty nonce is not compared.

    Raises:
        FencedError: A newer attempt of this job has written to the target.
        ConfigurationError: The job directory is older than the target, as after it was restored
            from a backup, and the user does not allow to take the target over.
    """
    if ctx.attempts is None or attempt <= 0:
        return
    known = ctx.attempts.nonce_of(attempt)
    if known is not None and nonce in ("", known):
        if ctx.attempt and attempt > ctx.attempt:
            raise FencedError(
                f"{sink_label(ctx.job, ctx.uid)}: attempt {ctx.attempt} can no longer write, "
                f"because attempt {attempt} has written to {target}. Stop this driver"
            )
        return
    if ctx.take_over:
        return
    raise unknown_output(ctx, attempt, target)


def is_known_attempt(ctx: CommitterContext, attempt: int, nonce: str) -> bool:
    """Whether the job directory knows of an attempt, whatever the user allows.

    Raises:
        FencedError: As `require_known_attempt`.
    """
    try:
        require_known_attempt(replace(ctx, take_over=False), attempt, nonce, "its target")
    except ConfigurationError:
        return False
    return True


def promised_version(ctx: CommitterContext, version: int) -> int:
    """The version that a target stores, or the newest before it that was in a checkpoint.

    They differ if the job directory was restored from a backup that was made while the attempt ran:
    it knows the attempt, but not what the attempt has written since. Read the target first, because
    a checkpoint held its output before the target did. 0 if no checkpoint has held output of the
    attempt: that of earlier attempts may have been rolled back before the target got that version.
    """
    attempt = attempt_of(version)
    newest = ctx.promised.newest_epoch(attempt) if ctx.promised is not None and attempt else None
    if newest is None:
        return version
    return min(version, version_of(attempt, newest)) if newest else 0


def require_promised(ctx: CommitterContext, version: int, target: str) -> None:
    """Refuse to write to a target with output that was in no checkpoint of this job.

    Call it when a target is claimed, with the version that it stores for this sink, after
    `require_known_attempt`.

    Raises:
        ConfigurationError: The job directory was restored from a backup, and the user does not
            allow to take the target over.
    """
    if not ctx.take_over and promised_version(ctx, version) < version:
        raise unknown_output(ctx, attempt_of(version), target)


def unknown_output(ctx: CommitterContext, attempt: int, target: str) -> ConfigurationError:
    """Why a target cannot be written to that has output which the job directory never wrote."""
    if ctx.staged_in:
        return _unclear_output(ctx, attempt, target)
    return ConfigurationError(
        f"{sink_label(ctx.job, ctx.uid)}: {target} has output of attempt {attempt} of this job, "
        "which is unknown to the job directory: the directory was restored from a backup, or "
        "replaced by a copy. Restore the target from the same time too, or give this sink "
        "another target; or continue with the existing output, which duplicates the output "
        "since then, with take_over_sinks=True (turnback run --take-over-sinks)"
    )


def _unclear_output(ctx: CommitterContext, attempt: int, target: str) -> ConfigurationError:
    """Why it cannot be told whether output was published that was staged in another place."""
    return ConfigurationError(
        f"{sink_label(ctx.job, ctx.uid)}: this job directory was copied while it had unpublished "
        "output, and it is unknown whether the original has published that output: since then, "
        f"attempt {attempt} of the original has written to {target}. The original has published "
        "the output unless it was reset to an earlier checkpoint. If it has, drop the output "
        f"here with `turnback transactions abort {ctx.job}` and start again. If not, start from "
        "an earlier checkpoint, which writes all output since then again"
    )


def require_newest_attempt(
    ctx: CommitterContext, job_id: str, attempt: int, nonce: str, target: str
) -> None:
    """Refuse to claim a target that a newer attempt in the same job directory has claimed.

    As `require_known_attempt`, with the job id that is noted at the target. A job that was started
    afresh in its directory has another; if the directory does not know of that start, it was
    restored from a backup. What a job has left whose directory was deleted does not count: when
    the next one there is about to be created, it has no id.
    """
    known = ctx.attempts.nonce_of(attempt) if ctx.attempts is not None else None
    is_forgotten = bool(job_id and ctx.job_id) and not ctx.attempt and known is None
    if job_id == ctx.job_id or (nonce and nonce == known) or is_forgotten:
        require_known_attempt(ctx, attempt, nonce, target)


class Committer(Protocol):
    """Commits and rolls back the transactions of one sink, on the driver.

    The methods are called one at a time, but not always from the same thread.
    """

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Make transactions visible.

        Called after the manifest that holds them is durable, and before `recover` with the
        transactions of earlier attempts' checkpoints. It must be idempotent: after a failure it is
        called again with the same transactions, some or all of them already committed.

        Raises:
            SinkError: Not all are committed; the caller retries all of them later.
            ConfigurationError: They cannot be committed, now or later, such as when another job
                has taken the target over; the job fails.
        """

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Roll back transactions that no manifest holds; missing ones are not an error.

        Output that the target has must stay: after a commit with an unknown outcome, only the
        target shows whether there is anything left to roll back.
        """

    def recover(self, pending: Sequence[bytes]) -> None:
        """Commit or roll back what earlier attempts left, before the first epoch of this one.

        Commits `pending`, if any, and rolls back everything else that dead attempts of this job
        prepared or began, under any uid. Called when the snapshot that this attempt starts from is
        durable, and when all sinks of the job have committed the output that it holds.
        """

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        """Roll back what tasks of this attempt have prepared or begun, except `known`.

        Spark may run a task more than once, and an epoch may be replayed; only one result counts,
        and transactions prepared by the others would stay, with their locks, until the job is
        started again. Called between two epochs, after such an epoch and before a replay, with all
        transactions that wait for their commit. Transactions of newer attempts must stay: a driver
        that was replaced may not know it yet. Optional: a committer without this method leaves
        everything to `recover`.
        """


@runtime_checkable
class ClosingCommitter(Protocol):
    """A committer that has something to close when its attempt ends, such as a connection."""

    def close(self) -> None: ...


@runtime_checkable
class VersionedTarget(Protocol):
    """A committer whose target has versions that can be read again, such as a table."""

    def target_version(self) -> str | None:
        """Return the version with everything committed so far, and nothing newer from the job.

        Called after `commit` and `recover`. It is recorded with the checkpoint, and in savepoints:
        `turnback inspect` shows which version of the target a snapshot matches.
        """


def target_version(committer: object) -> str | None:
    """Return the version of a committer's target; None if it has no versions."""
    return committer.target_version() if isinstance(committer, VersionedTarget) else None


class TransactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction of a sink as shown by `turnback transactions list`.

    Attributes:
        what: A short description.
        id: The same for one transaction in `Sink.explain` and `Sink.list_orphans`.
        path: Its path, if it is a file.
        waiting: What it blocks until it is resolved, such as readers of a topic or locked rows.
        problem: Why it cannot be committed.
    """

    what: str
    id: str | None = None
    epoch: int | None = None
    rows: int | None = None
    bytes: int | None = None
    path: str | None = None
    waiting: str | None = None
    problem: str | None = None


class SinkWriter(ABC):
    """Writes the elements of one task and epoch, in the task.

    Used once: any number of `write`, then `prepare` or `abort`.
    """

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Write elements; nothing may become visible to readers yet."""

    @abstractmethod
    def prepare(self) -> bytes | None:
        """Make everything written durable and return how to commit it.

        Returns:
            The transaction, to be handed to a `Committer` on the driver by this or a later
            process, or None when nothing was written.
        """

    @abstractmethod
    def abort(self) -> None:
        """Remove everything written. Safe to call at any time, even twice or after a failure.

        Not guaranteed to be called: the process may be killed instead.
        """


def require_open(closed: bool, sink: str) -> None:
    """Refuse to use a writer again; `sink` is what error messages call its sink."""
    if closed:
        raise SinkError(f"{sink}: this writer has failed, or has already been prepared or aborted")


@contextmanager
def aborted_on_failure(writer: SinkWriter) -> Iterator[None]:
    """Abort a writer if what is done with it fails; if that fails as well, the error says so."""
    try:
        yield
    except BaseException as error:
        try:
            writer.abort()
        except SinkError as second:
            error.add_note(f"and then: {second}")
        raise


class GuardedWriter(SinkWriter):
    """A writer that refuses to be used again, and is aborted if writing fails."""

    def __init__(self, ctx: WriterContext) -> None:
        self._ctx = ctx
        self._name = sink_label(ctx.job, ctx.uid)
        self._closed = False

    def write(self, batch: Batch) -> None:
        require_open(self._closed, self._name)
        if len(batch):
            with self._failures():
                self._add(batch)

    @abstractmethod
    def _add(self, batch: Batch) -> None:
        """Write elements, of which there are some."""

    def _failures(self) -> AbstractContextManager[None]:
        return aborted_on_failure(self)


class Sink(ABC):
    """The base class of sinks, for `stream.sink_to(sink)`.

    A sink is pickled to the tasks, so it holds configuration but no connections. Several attempts
    of one task may write at the same time (retries, speculation); only the transaction that reaches
    the driver is committed, and every other must stay invisible.

    Attributes:
        needs_checkpoints: Whether the sink's guarantee needs checkpoints whose mode is
            exactly-once; a job without them is refused.
        keeps_nothing: Whether it keeps nothing that is identified by its uid, so that no warning is
            logged if it has none.
    """

    needs_checkpoints: bool = False
    keeps_nothing: bool = False
    holds_locks: bool = False

    @abstractmethod
    def writer(self, ctx: WriterContext) -> SinkWriter:
        """Start the output of one task and epoch. Called in the task, once per attempt of it."""

    def check_target(self, ctx: CommitterContext) -> None:
        """Refuse what `acquire_target` would refuse, and write nothing; nothing by default.

        Called on the driver before the job starts, for all sinks before the first `acquire_target`.

        Raises:
            ConfigurationError: The target is another job's.
            SinkError: The target cannot be reached.
        """
        return

    def acquire_target(self, ctx: CommitterContext) -> None:
        """Acquire the target for this job, or refuse another job's target; nothing by default.

        Two jobs that write to one target, such as a job and its fork, duplicate the output for its
        readers. To prevent this, a sink records the owner at its target, where jobs in other roots
        see it as well: `ctx.job_directory` if none is recorded, or if `ctx.take_over` is set.

        Called on the driver before the job starts (then `ctx.attempt` is 0, and `ctx.job_id` is
        empty for a new job), and again at the start of each attempt, never with `take_over`, before
        the first `committer` is created. Not called when transactions are resolved by hand. Check
        ownership in `Committer.commit` too: the job may still be running when another takes over.

        Raises:
            ConfigurationError: The target is another job's. Name that job; nothing was written.
            SinkError: The target cannot be reached or written.
        """
        return

    @abstractmethod
    def committer(self, ctx: CommitterContext) -> Committer:
        """Create the committer. Called on the driver, once at the start of each attempt.

        Raises:
            ConfigurationError: The sink cannot be used as configured.
            SinkError: The target cannot be reached or written.
        """

    def describe(self) -> dict[str, str]:
        """Describe the sink, so that its transactions can be resolved without the program.

        Called on the driver, once at the start of each attempt. The description is stored in the
        job directory, where other people may read it: never put a password into it. `kind`
        identifies the sink. `from_description` recreates built-in sinks; for other sinks the
        description is only displayed.
        """
        return {"kind": type(self).__name__}

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> Sink | None:
        """Return a sink that resolves transactions of the sink with this description.

        None, the default, if only the program can create it. Passwords come from the environment.

        Raises:
            ConfigurationError: The description cannot be used, or a password is missing.
        """
        return None

    def unusable_here(self) -> str | None:
        """Say why this machine cannot settle its transactions: "writes to ..., which is not ...".

        None, the default, if it can, or if only an attempt shows whether it can.
        """
        return None

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        """Describe a prepared transaction that a checkpoint holds; changes nothing.

        Called for `turnback transactions list`, without a driver. `ctx.attempt` is the newest.

        Raises:
            SinkError: It cannot be read.
        """
        kind = self.describe().get("kind", type(self).__name__)
        return TransactionInfo(what=f"transaction of a {kind} sink", bytes=len(transaction))

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        """Find in-doubt transactions that the sink has prepared or begun; none by default.

        Called like `explain`. Only those of `ctx.job_id` and `ctx.uid`; transactions that a
        checkpoint holds may be included, under the id that `explain` gives them.

        Raises:
            SinkError: The target cannot be reached.
        """
        return ()


class _Handle(msgspec.Struct, frozen=True, array_like=True):
    """A transaction as bytes in a manifest; a later version or another sink may come to read it."""

    kind: str
    version: int
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Handle).decode


def seal_handle(kind: str, version: int, body: bytes) -> bytes:
    """Wrap the body of a transaction."""
    return _encode(_Handle(kind, version, body))


def open_handle(kind: str, supported: int, data: bytes, sink: str) -> bytes:
    """Unwrap a transaction; `sink` is what error messages call the sink that reads it."""
    try:
        handle = _decode(data)
    except (msgspec.MsgspecError, TypeError) as error:
        raise SinkError(f"{sink}: cannot read a prepared transaction: {error}") from error
    if handle.kind != kind:
        raise SinkError(
            f"{sink}: a prepared transaction belongs to a {handle.kind!r} sink, but this uid now "
            f"has a {kind!r} sink; restore the old sink once to resolve it, or use another uid"
        )
    if not 1 <= handle.version <= supported:
        raise SinkError(
            f"{sink}: a prepared transaction has format version {handle.version}, but this "
            f"version of Turnback reads up to {supported}; upgrade Turnback to resolve it"
        )
    return handle.body


def read_handle(kind: str, supported: int, data: bytes, type_: type[T], sink: str) -> T:
    """Read a transaction whose body is a struct; raises `SinkError` as `open_handle` does."""
    body = open_handle(kind, supported, data, sink)
    with sink_errors(f"{sink}: cannot read a prepared transaction", (msgspec.MsgspecError,)):
        return msgspec.msgpack.decode(body, type=type_)


def handle_kind(data: bytes) -> str | None:
    """Return the kind of sink that a transaction belongs to; None if it cannot be read."""
    try:
        return _decode(data).kind
    except (msgspec.MsgspecError, TypeError):
        return None


def sink_label(job: str, uid: str) -> str:
    """The sink as error messages name it."""
    return f"sink {uid!r} of job {job!r}"


@contextmanager
def sink_errors(what: str, kinds: tuple[type[Exception], ...] = (StorageError,)) -> Iterator[None]:
    """Raise errors of these kinds as `SinkError`: "{what}: {error}"."""
    try:
        yield
    except kinds as error:
        raise SinkError(f"{what}: {error}") from error


class UserCalls:
    """Calls the methods of a user's sink, with errors that name both."""

    def __init__(self, sink: Sink, ctx: WriterContext | CommitterContext) -> None:
        self._kind = type(sink).__name__
        self._name = sink_label(ctx.job, ctx.uid)

    def _call(self, step: str, method: Callable[..., R], *args: Any) -> R:
        try:
            return method(*args)
        except TurnbackError:
            raise
        except Exception as error:
            raise SinkError(
                f"{self._name}: {self._kind}.{step} failed: {type(error).__name__}: {error}"
            ) from error
