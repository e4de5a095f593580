from __future__ import annotations

import sys
from typing import Any

import msgspec
import pyarrow as pa

from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks.base import CommitterContext, SinkWriter, WriterContext, name_sink
from turnback.sinks.inline import InlineSink, inline_transaction
from turnback.types.columns import Batch
from turnback.types.factory import Types
from turnback.types.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    type_from_descriptor,
)


class CollectSink(InlineSink):
    """Gathers committed elements on the driver, where `results` has them.

    For tests and small bounded streams: the elements ride in the checkpoint, and stay in memory.
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

    def writer(self, ctx: WriterContext) -> SinkWriter:
        """Hold the elements."""
        return _CollectWriter(ctx)

    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        """Add the elements of one task."""
        output = msgspec.msgpack.decode(body, type=_Elements)
        kind = _stored_type(output.type, ctx)
        with pa.ipc.open_stream(output.data) as reader:
            rows = [row for batch in reader for row in Batch(kind, batch).rows]
        if self.ledger.value is None:
            self.ledger.value = []
        self.ledger.value += rows

    def __repr__(self) -> str:
        return "CollectSink()"


def _stored_type(data: bytes, ctx: CommitterContext) -> TypeInfo:
    kind = type_from_descriptor(msgspec.json.decode(data))
    if kind == ctx.type:
        return ctx.type
    # A checkpoint may come from a stranger: only the program may ask for pickle, not a file.
    if _holds_pickle(kind):
        raise SinkError(
            f"{name_sink(ctx.job, ctx.uid)}: a prepared transaction holds pickled objects, but the "
            "stream's type does not; nothing of it was read"
        )
    return kind


def _holds_pickle(kind: TypeInfo) -> bool:
    if isinstance(kind, RowTypeInfo):
        return any(_holds_pickle(t) for t in kind.types)
    if isinstance(kind, ListTypeInfo):
        return _holds_pickle(kind.element)
    if isinstance(kind, MapTypeInfo):
        return _holds_pickle(kind.key) or _holds_pickle(kind.value)
    return kind == Types.PICKLED_BYTE_ARRAY()


class _Elements(msgspec.Struct, frozen=True, array_like=True):
    type: bytes
    data: bytes


class _CollectWriter(SinkWriter):
    def __init__(self, ctx: WriterContext) -> None:
        self._ctx = ctx
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: Batch) -> None:
        if len(batch):
            self._batches.append(batch.arrow)

    def prepare(self) -> bytes | None:
        if not self._batches:
            return None
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, self._batches[0].schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        elements = _Elements(
            msgspec.json.encode(self._ctx.type.describe()), target.getvalue().to_pybytes()
        )
        return inline_transaction(CollectSink.kind, self._ctx, msgspec.msgpack.encode(elements))

    def abort(self) -> None:
        self._batches = []


class DiscardSink(InlineSink):
    """Drops every element and counts them."""

    kind = "discard"

    @property
    def count(self) -> int:
        """How many elements were committed; on the driver, by this process."""
        with self.ledger.lock:
            return self.ledger.value or 0

    def writer(self, ctx: WriterContext) -> SinkWriter:
        """Count elements."""
        return _DiscardWriter(ctx)

    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        """Add the count of one task."""
        self.ledger.value = self.count + msgspec.msgpack.decode(body, type=int)

    def __repr__(self) -> str:
        return "DiscardSink()"


class _DiscardWriter(SinkWriter):
    def __init__(self, ctx: WriterContext) -> None:
        self._ctx = ctx
        self._count = 0

    def write(self, batch: Batch) -> None:
        self._count += len(batch)

    def prepare(self) -> bytes | None:
        if not self._count:
            return None
        return inline_transaction(DiscardSink.kind, self._ctx, msgspec.msgpack.encode(self._count))

    def abort(self) -> None:
        self._count = 0


class PrintSink(InlineSink):
    """Prints every element on the driver's standard output, one per line, when it is committed.

    For looking at small streams: the lines ride in the checkpoint. Each is printed once by one
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
            raise ConfigurationError(f"PrintSink: prefix is a string, not {prefix!r}")
        super().__init__()
        self.prefix = prefix

    def writer(self, ctx: WriterContext) -> SinkWriter:
        """Turn elements into lines."""
        return _PrintWriter(f"{self.prefix}> " if self.prefix else "", ctx)

    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        """Print the lines of one task."""
        lines = msgspec.msgpack.decode(body, type=list[str])
        text = "".join(f"{line}\n" for line in lines)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()

    def describe(self) -> dict[str, str]:
        """Say what lines begin with."""
        return {"kind": self.kind, "prefix": self.prefix}

    def __repr__(self) -> str:
        return f"PrintSink({self.prefix!r})"


class _PrintWriter(SinkWriter):
    def __init__(self, start: str, ctx: WriterContext) -> None:
        self._start, self._ctx = start, ctx
        self._lines: list[str] = []

    def write(self, batch: Batch) -> None:
        start = self._start
        # A lone surrogate cannot be encoded; showing it escaped beats failing the job.
        self._lines += [
            f"{start}{row}".encode(errors="backslashreplace").decode() for row in batch.rows
        ]

    def prepare(self) -> bytes | None:
        if not self._lines:
            return None
        return inline_transaction(PrintSink.kind, self._ctx, msgspec.msgpack.encode(self._lines))

    def abort(self) -> None:
        self._lines = []
