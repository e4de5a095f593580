from typing import Any

import msgspec
import pyarrow as pa

from turnback.core.batch import Batch
from turnback.core.errors import SinkError
from turnback.core.types import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
    type_from_descriptor,
)
from turnback.sinks.base import CommitterContext, SinkWriter, WriterContext
from turnback.sinks.handle import name_sink
from turnback.sinks.inline import InlineSink, inline_transaction


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
