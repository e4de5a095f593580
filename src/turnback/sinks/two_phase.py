"""`TwoPhaseCommitSink`: the template for sinks of users."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    GuardedWriter,
    Sink,
    SinkWriter,
    TransactionInfo,
    UserCalls,
    WriterContext,
    open_handle,
    require_open,
    seal_handle,
)
from turnback.values.columns import Batch

_KIND = "two-phase"
_VERSION = 1

T = TypeVar("T")
R = TypeVar("R")


class TwoPhaseCommitSink(Sink, Generic[T]):
    """Template for exactly-once output into any system with transactions that can be prepared.

    Subclasses implement one transaction, of type `T`; this class decides when and where each step
    happens:

    1. in the task, `begin` at the first element of an epoch, then `write` for every element;
    2. in the task, at the end of the epoch, `pre_commit`: durable and ready, but not visible;
    3. the result of `pre_commit` is stored in the checkpoint;
    4. on the driver, when the checkpoint is complete, `commit`.

    After a failure the driver calls `recover_and_commit` for every transaction in the restored
    checkpoint and `recover_and_abort` for everything else that `dangling` finds. The latter also
    happens between two epochs, if Spark has run a task more than once or the epoch is replayed.

    A target belongs to one job: override `acquire_target` to record its owner there, and check it
    in `commit`, otherwise a job and its fork can both write to it.

    What is *not* guaranteed: that `abort` runs (the process may be killed at any point), that
    `commit` runs once, that it runs in the process that began the transaction or even on the same
    machine, that the transactions of an epoch are committed together, or that only one attempt of
    a task writes at a time. A transaction that never reached a checkpoint is never committed.

    The sink is pickled to the tasks. Open connections in `begin` (in tasks) or when first needed
    (on the driver), keep them on `self`, and leave them out of `__getstate__`; one instance may
    handle several transactions at a time.

    Attributes:
        transaction_type: The type `T`, for `msgspec` to store and read transactions: a
            `msgspec.Struct`, dataclass, str, tuple[...] and so on. It outlives the job's code, so
            change it only in ways that allow older stored transactions to be read.
    """

    transaction_type: ClassVar[Any] = None

    @abstractmethod
    def begin(self, ctx: WriterContext) -> T:
        """Start a new, unique transaction.

        Called in the task, once per attempt of the task and epoch, at the first element. Make its
        name unique with the context's directory id, job id, uid, attempt, epoch, partition and task
        attempt id. Never roll back a transaction that another attempt of the same task has
        prepared, even if it holds locks: it may be the one that counts, which only the driver
        knows. Wait for the lock, and fail if it takes too long; the driver rolls back transactions
        that are not needed.
        """

    @abstractmethod
    def write(self, txn: T, element: Any) -> None:
        """Add one element to the transaction. Called in the task, for each element in order."""

    def write_batch(self, txn: T, batch: Batch) -> None:
        """Add many elements; calls `write` for each. Override it to write them in bulk."""
        write = self.write
        for element in batch.rows:
            write(txn, element)

    @abstractmethod
    def pre_commit(self, txn: T) -> T:
        """Make everything written durable and ready to commit, but not visible.

        Called in the task, at most once per transaction, after the last `write`. After it returns
        `commit` must be possible from any process, for as long as the job may be down.

        Returns:
            The argument for `commit` or `abort`; usually `txn`.
        """

    @abstractmethod
    def commit(self, txn: T) -> None:
        """Make the transaction visible.

        Called on the driver after the checkpoint that holds it is durable. It must be idempotent:
        it is called again, possibly by another process, whenever it is not known to have succeeded.
        An exception means that the outcome is unknown, and the transaction is kept and tried again.
        It must never return without effect for a transaction that was lost: raise instead.
        """

    @abstractmethod
    def abort(self, txn: T) -> None:
        """Roll back a transaction, prepared or not.

        Called in the task when it fails or is cancelled, or on the driver for prepared ones that
        will not be committed. It may not be called at all, or may be called twice; a transaction
        that no longer exists is not an error.
        """

    def recover_and_commit(self, txn: T) -> None:
        """Commit a transaction of the restored checkpoint; calls `commit`.

        Called on the driver at the start of an attempt, before its first epoch. The transaction
        may have been committed already.
        """
        self.commit(txn)

    def recover_and_abort(self, txn: T) -> None:
        """Roll back a transaction that `dangling` found; calls `abort`.

        Called on the driver: at the start of an attempt, after all `recover_and_commit`, and
        between two epochs.
        """
        self.abort(txn)

    def dangling(self, ctx: CommitterContext) -> Iterable[T]:
        """Find all prepared or open transactions of this job's sink; none by default.

        Called on the driver at the start of an attempt, after all `recover_and_commit`; and between
        two epochs if tasks whose output did not count may have left transactions. Transactions that
        wait for their commit must be listed too, equal to the result of `pre_commit`: they are left
        alone, and if one of them is missing in the list, nothing is rolled back between epochs.

        Omit transactions of other jobs and sinks, and of attempts newer than `ctx.attempt`: a
        driver that was replaced may not know it yet.
        """
        return ()

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        """Describe a prepared transaction by its `repr`; override it to give more information."""
        txn = self.decode(transaction, ctx)
        return TransactionInfo(what=f"{txn!r:.80}", id=repr(txn))

    def decode(self, transaction: bytes, ctx: CommitterContext) -> T:
        """Read a transaction as a checkpoint holds it; for `explain`.

        Raises:
            SinkError: It cannot be read.
        """
        [txn] = _TwoPhaseCommitter(self, ctx).decode([transaction])
        return txn

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        """List what `dangling` finds; override it to add details, such as blocked readers."""
        found = _TwoPhaseCommitter(self, ctx).dangling()
        return [TransactionInfo(what=f"{txn!r:.80}", id=repr(txn)) for txn in found]

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return _TwoPhaseWriter(self, ctx)

    def committer(self, ctx: CommitterContext) -> Committer:
        _decoder(self)
        return _TwoPhaseCommitter(self, ctx)


class _TwoPhaseWriter(UserCalls, GuardedWriter, Generic[T]):
    def __init__(self, sink: TwoPhaseCommitSink[T], ctx: WriterContext) -> None:
        super().__init__(sink, ctx)
        GuardedWriter.__init__(self, ctx)
        self._sink = sink
        self._decoder = _decoder(sink)
        self._txn: list[T] = []  # at most one; T may be anything, None included

    def _add(self, batch: Batch) -> None:
        if not self._txn:
            self._txn.append(self._call("begin", self._sink.begin, self._ctx))
        self._call("write", self._sink.write_batch, self._txn[0], batch)

    def prepare(self) -> bytes | None:
        require_open(self._closed, self._name)
        self._closed = True
        if not self._txn:
            return None
        with self._failures():
            self._txn[0] = self._call("pre_commit", self._sink.pre_commit, self._txn[0])
            return _encode(self._txn[0], self._decoder, self._name)

    def abort(self) -> None:
        self._closed = True
        if self._txn:
            self._call("abort", self._sink.abort, self._txn.pop())


class _TwoPhaseCommitter(UserCalls, Generic[T]):
    def __init__(self, sink: TwoPhaseCommitSink[T], ctx: CommitterContext) -> None:
        super().__init__(sink, ctx)
        self._sink = sink
        self._decoder = _decoder(sink)
        self._ctx = ctx
        self._last_commit: Sequence[bytes] = ()
        self._recovered = False

    def commit(self, transactions: Sequence[bytes]) -> None:
        if not self._recovered:
            self._commit_recovered(transactions)
            return
        self._last_commit = transactions
        for txn in self.decode(transactions):
            self._call("commit", self._sink.commit, txn)

    def _commit_recovered(self, transactions: Sequence[bytes]) -> None:
        """Commit what earlier attempts have promised."""
        self._last_commit = (*self._last_commit, *transactions)
        for txn in self.decode(transactions):
            self._call("recover_and_commit", self._sink.recover_and_commit, txn)

    def abort(self, transactions: Sequence[bytes]) -> None:
        for txn in self.decode(transactions):
            self._call("abort", self._sink.abort, txn)

    def recover(self, pending: Sequence[bytes]) -> None:
        self._commit_recovered(pending)
        self._recovered = True
        # A system may go on listing for a while what was just committed.
        committed = self.decode(self._last_commit)
        for txn in self.dangling():
            if txn not in committed:
                self._call("recover_and_abort", self._sink.recover_and_abort, txn)

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        listed = {_encode(t, self._decoder, self._name): t for t in self.dangling()}
        if not listed.keys() >= set(known):
            # It lists only what older attempts left, or not as pre_commit returned it: what waits
            # for its commit could not be distinguished from what does not.
            return
        # A system may go on listing for a while what was just committed.
        for txn in listed.keys() - set(known) - set(self._last_commit):
            self._call("recover_and_abort", self._sink.recover_and_abort, listed[txn])

    def dangling(self) -> list[T]:
        # It may be a generator, so it is called and read at once.
        return self._call("dangling", lambda: list(self._sink.dangling(self._ctx)))

    def decode(self, transactions: Sequence[bytes]) -> list[T]:
        decoded = []
        for data in transactions:
            body = open_handle(_KIND, _VERSION, data, self._name)
            try:
                decoded.append(self._decoder.decode(body))
            except msgspec.MsgspecError as error:
                raise SinkError(
                    f"{self._name}: a prepared transaction no longer matches "
                    f"{type(self._sink).__name__}.transaction_type: {error}"
                ) from error
        return decoded


def _decoder(sink: TwoPhaseCommitSink[T]) -> msgspec.msgpack.Decoder[T]:
    kind = type(sink).transaction_type
    name = type(sink).__name__
    if kind is None:
        raise ConfigurationError(
            f"{name}.transaction_type is not set; it must be the return type of begin()"
        )
    try:
        # msgspec takes any class for a custom type, and fails only at the first value.
        if not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
            return msgspec.msgpack.Decoder(kind)
        reason = f"msgspec does not support {kind!r}"
    except TypeError as error:
        reason = str(error)
    raise ConfigurationError(
        f"{name}.transaction_type cannot be stored: {reason}; use a msgspec.Struct, a dataclass "
        "or a plain type"
    )


def _encode(txn: T, decoder: msgspec.msgpack.Decoder[T], name: str) -> bytes:
    """Encode a transaction, and make sure now that it can be read later."""
    try:
        body = msgspec.msgpack.encode(txn)
        decoder.decode(body)
    except (msgspec.MsgspecError, TypeError) as error:
        raise SinkError(
            f"{name}: the transaction {txn!r:.80} does not match transaction_type: {error}"
        ) from error
    return seal_handle(_KIND, _VERSION, body)
