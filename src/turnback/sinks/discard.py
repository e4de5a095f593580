import msgspec

from turnback.core.batch import Batch
from turnback.sinks.base import CommitterContext, SinkWriter, WriterContext
from turnback.sinks.inline import InlineSink, inline_transaction


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
