"""Sinks whose output ends on the driver: collected, counted or printed.

The output of a task travels inside its transaction, and so in the manifest: it has a limit.
"""

from __future__ import annotations

import secrets
import sys
import threading
import uuid
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import msgspec

from turnback.errors import ConfigurationError, SinkError, TurnbackError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    read_handle,
    seal_handle,
    sink_label,
)
from turnback.sinks.elements import ElementsEncoder, decode_elements, describe_type, stored_type
from turnback.values.columns import Batch

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
    """What a sink has committed in this process; one for all copies of the sink.

    The lock is held while `apply` runs; hold it to read the value, which `apply` writes.
    """

    _all: ClassVar[WeakValueDictionary[str, OutputLedger]] = WeakValueDictionary()
    _guard = threading.Lock()

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.value: Any = None
        self._seen: OrderedDict[str, None] = OrderedDict()

    @classmethod
    def of(cls, key: str) -> OutputLedger:
        with cls._guard:
            return cls._all.setdefault(key, OutputLedger())

    def once(self, token: str, apply: Callable[[], None]) -> None:
        with self.lock:
            if token in self._seen:
                return
            apply()
            self._seen[token] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)


class InlineSink(Sink):
    """A sink whose output travels in its transactions, and is applied on the driver.

    All its copies in one process share one ledger.
    """

    kind: ClassVar[str]
    keeps_nothing = True

    def __init__(self) -> None:
        self._key = uuid.uuid4().hex
        self.ledger = OutputLedger.of(self._key)

    def committer(self, ctx: CommitterContext) -> Committer:
        return InlineCommitter(self, ctx)

    def describe(self) -> dict[str, str]:
        return {"kind": self.kind}

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return explain_inline(self.kind, transaction, ctx)

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return _InlineWriter(self, ctx)

    @abstractmethod
    def gather(self, gathered: Any, batch: Batch) -> Any:
        """Return what is gathered in a task, None at first, with the elements of one more batch."""

    def encode(self, gathered: Any, ctx: WriterContext) -> bytes:
        """Return what `apply` is given of the elements that were gathered."""
        return msgspec.msgpack.encode(gathered)

    @abstractmethod
    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        """Apply the output of one task and epoch. Called with the ledger's lock held."""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "ledger"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.ledger = OutputLedger.of(self._key)


class _InlineWriter(SinkWriter):
    def __init__(self, sink: InlineSink, ctx: WriterContext) -> None:
        self._sink = sink
        self._ctx = ctx
        self._gathered: Any = None

    def write(self, batch: Batch) -> None:
        if len(batch):
            self._gathered = self._sink.gather(self._gathered, batch)

    def prepare(self) -> bytes | None:
        if self._gathered is None:
            return None
        kind = self._sink.kind
        ctx = self._ctx
        body = self._sink.encode(self._gathered, ctx)
        if len(body) > MAX_BYTES:
            raise SinkError(
                f"{sink_label(ctx.job, ctx.uid)}: {len(body)} bytes in epoch {ctx.epoch} of task "
                f"{ctx.partition} are too much for a {kind} sink (limit {MAX_BYTES}); use a "
                "FileSink"
            )
        output = InlineOutput(secrets.token_hex(16), ctx.epoch, ctx.partition, body)
        return seal_handle(kind, _VERSION, msgspec.msgpack.encode(output))

    def abort(self) -> None:
        self._gathered = None


class InlineCommitter:
    """Applies outputs on the driver, in order of epoch and partition, each once per process."""

    def __init__(self, sink: InlineSink, ctx: CommitterContext) -> None:
        self._sink = sink
        self._ctx = ctx
        self._name = sink_label(ctx.job, ctx.uid)

    def commit(self, transactions: Sequence[bytes]) -> None:
        outputs = [inline_output(self._sink.kind, t, self._name) for t in transactions]
        for output in sorted(outputs, key=lambda o: (o.epoch, o.partition)):
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

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        """Nothing to undo."""


def inline_output(kind: str, transaction: bytes, sink: str) -> InlineOutput:
    """Read a transaction of this kind; `sink` is what messages call the sink."""
    return read_handle(kind, _VERSION, transaction, InlineOutput, sink)


def explain_inline(kind: str, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
    """Describe a transaction of an inline sink of this kind, as `Sink.explain` does."""
    epoch = inline_output(kind, transaction, sink_label(ctx.job, ctx.uid)).epoch
    what = f"transaction of a {kind} sink"
    return TransactionInfo(what=what, epoch=epoch, bytes=len(transaction))


class CollectSink(InlineSink):
    """Gathers committed elements on the driver, where `results` has them.

    For tests and small bounded streams: the elements travel in the checkpoint, and stay in memory.
    Rows come as the stream's own Python class where the driver knows it, else as `Row`. Each is
    there once, also after restarts of the job within one driver process; a new process
    begins with what was prepared but not yet known to be committed.
    """

    kind = "collect"

    @property
    def results(self) -> list[Any]:
        """Everything committed so far, in order of epoch and partition; a copy."""
        with self.ledger.lock:
            return list(self.ledger.value or ())

    def gather(self, gathered: Any, batch: Batch) -> Any:
        batches = gathered or []
        # Only the columns, so that the objects can go.
        batches.append(Batch(batch.type, batch.arrow))
        return batches

    def encode(self, gathered: Any, ctx: WriterContext) -> bytes:
        encoder = ElementsEncoder()
        for batch in gathered:
            encoder.add(batch)
        return msgspec.msgpack.encode(_Elements(describe_type(ctx.type), encoder.finish()))

    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        output = msgspec.msgpack.decode(body, type=_Elements)
        kind = stored_type(output.type, ctx)
        rows = [row for batch in decode_elements(output.data, kind) for row in batch.rows]
        self.ledger.value = self.ledger.value or []
        self.ledger.value += rows

    def __repr__(self) -> str:
        return "CollectSink()"


class _Elements(msgspec.Struct, frozen=True, array_like=True):
    type: bytes
    data: bytes


class DiscardSink(InlineSink):
    """Drops every element and counts them."""

    kind = "discard"

    @property
    def count(self) -> int:
        """How many elements were committed; on the driver, by this process."""
        with self.ledger.lock:
            return self.ledger.value or 0

    def gather(self, gathered: Any, batch: Batch) -> Any:
        return (gathered or 0) + len(batch)

    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        self.ledger.value = self.count + msgspec.msgpack.decode(body, type=int)

    def __repr__(self) -> str:
        return "DiscardSink()"


class PrintSink(InlineSink):
    """Prints every element on the driver's standard output, one per line, when it is committed.

    For looking at small streams: the lines travel in the checkpoint. Each is printed once by one
    driver process; a driver that dies between printing and recording that it did prints the
    last checkpoint's lines again when it is restarted.

    Args:
        prefix: Put before every line as `prefix> `.

    Raises:
        ConfigurationError: `prefix` is not a string.
    """

    kind = "print"

    def __init__(self, prefix: str = "") -> None:
        if not isinstance(prefix, str):
            raise ConfigurationError(f"PrintSink: prefix must be a string, not {prefix!r}")
        super().__init__()
        self.prefix = prefix

    def gather(self, gathered: Any, batch: Batch) -> Any:
        start = f"{self.prefix}> " if self.prefix else ""
        lines = gathered or []
        # A lone surrogate cannot be encoded; showing it escaped beats failing the job.
        lines += [f"{start}{row}".encode(errors="backslashreplace").decode() for row in batch.rows]
        return lines

    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        lines = msgspec.msgpack.decode(body, type=list[str])
        text = "".join(f"{line}\n" for line in lines)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()

    def describe(self) -> dict[str, str]:
        return {"kind": self.kind, "prefix": self.prefix}

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> PrintSink:
        return cls(description.get("prefix", ""))

    def __repr__(self) -> str:
        return f"PrintSink({self.prefix!r})"
