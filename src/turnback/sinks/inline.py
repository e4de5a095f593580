"""Small output that rides to the driver inside the transaction itself.

It is kept in the manifest until the commit, so it has a limit.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import msgspec

from turnback.core.errors import SinkError, TurnbackError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    WriterContext,
    name_sink,
    open_handle,
    seal_handle,
)

MAX_BYTES = 32 * 1024 * 1024
_VERSION = 1
_REMEMBERED = 100_000


class InlineOutput(msgspec.Struct, frozen=True, array_like=True):
    """The output of one task and epoch."""

    token: str
    epoch: int
    partition: int
    body: bytes


class OutputLedger:
    """What this process has been told to commit so far; one per sink, whatever copies exist.

    Attributes:
        lock: Held while `apply` runs; hold it to read what `apply` writes.
        value: What the sink gathers.
    """

    _all: ClassVar[WeakValueDictionary[str, OutputLedger]] = WeakValueDictionary()
    _guard = threading.Lock()

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.value: Any = None
        self._seen: OrderedDict[str, None] = OrderedDict()

    @classmethod
    def of(cls, key: str) -> OutputLedger:
        """The ledger of this key in this process."""
        with cls._guard:
            ledger = cls._all.get(key)
            if ledger is None:
                ledger = cls._all[key] = OutputLedger()
            return ledger

    def once(self, token: str, apply: Callable[[], None]) -> None:
        """Apply an output unless that has been done."""
        with self.lock:
            if token in self._seen:
                return
            apply()
            self._seen[token] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)


class InlineSink(Sink):
    """A sink whose output rides in its transactions, and is applied on the driver.

    Every copy of it in one process, however it got there, shares one ledger.
    """

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._key = uuid.uuid4().hex
        self._ledger = OutputLedger.of(self._key)

    def committer(self, ctx: CommitterContext) -> Committer:
        """Apply the output."""
        return InlineCommitter(self, ctx)

    def describe(self) -> dict[str, str]:
        """Say which sink it is."""
        return {"kind": self.kind}

    @property
    def ledger(self) -> OutputLedger:
        """What this process has committed to the sink."""
        return self._ledger

    @abstractmethod
    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        """Apply the output of one task and epoch. Called with the ledger's lock held."""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_ledger"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ledger = OutputLedger.of(self._key)


class InlineCommitter:
    """Applies outputs on the driver, in order of epoch and partition, each once per process."""

    def __init__(self, sink: InlineSink, ctx: CommitterContext) -> None:
        self._sink, self._ctx = sink, ctx
        self._name = name_sink(ctx.job, ctx.uid)

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Apply what has not been applied."""
        outputs = sorted(
            (self._decode(t) for t in transactions), key=lambda o: (o.epoch, o.partition)
        )
        for output in outputs:
            apply = partial(self._sink.apply, output.body, self._ctx)
            try:
                self._sink.ledger.once(output.token, apply)
            except TurnbackError:
                raise
            except Exception as error:
                raise SinkError(
                    f"{self._name}: the {self._sink.kind} sink failed in epoch {output.epoch}: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Nothing to undo: what was not committed exists nowhere."""

    def recover(self, pending: Sequence[bytes]) -> None:
        """Commit `pending`; dead attempts leave nothing else."""
        self.commit(pending)

    def discard_others(self, known: Sequence[bytes]) -> None:
        """Nothing to undo."""

    def _decode(self, transaction: bytes) -> InlineOutput:
        return inline_output(self._sink.kind, transaction, self._name)


def inline_output(kind: str, transaction: bytes, sink: str) -> InlineOutput:
    """Read a transaction; `sink` is what messages call the sink.

    Raises:
        SinkError: It cannot be read, or is none of this kind.
    """
    body = open_handle(kind, _VERSION, transaction, sink)
    try:
        return msgspec.msgpack.decode(body, type=InlineOutput)
    except msgspec.MsgspecError as error:
        raise SinkError(f"{sink}: a prepared transaction cannot be read: {error}") from error


def inline_transaction(kind: str, ctx: WriterContext, body: bytes) -> bytes:
    """Put the output of a task into a transaction.

    Raises:
        SinkError: It is too large to be kept in a checkpoint.
    """
    if len(body) > MAX_BYTES:
        raise SinkError(
            f"{name_sink(ctx.job, ctx.uid)}: {len(body)} bytes in epoch {ctx.epoch} of task "
            f"{ctx.partition} are too much for a {kind} sink (limit {MAX_BYTES}); use a FileSink"
        )
    output = InlineOutput(secrets.token_hex(16), ctx.epoch, ctx.partition, body)
    return seal_handle(kind, _VERSION, msgspec.msgpack.encode(output))
