"""Elements of a stream as bytes: Arrow batches, and the type to read them with."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from turnback.errors import SinkError
from turnback.sinks.base import CommitterContext, sink_label
from turnback.values.columns import Batch
from turnback.values.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
    type_from_descriptor,
)


class ElementsEncoder:
    """Makes bytes of batches, all of one stream."""

    def __init__(self, compression: str | None = None) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._target = pa.BufferOutputStream()
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: Batch) -> None:
        arrow = batch.arrow
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._target, arrow.schema, options=self._options)
        self._writer.write_batch(arrow)

    @property
    def size(self) -> int:
        return int(self._target.tell())

    def finish(self) -> bytes:
        """Return the bytes of all batches, of which there has to be one; to be called once."""
        assert self._writer is not None
        self._writer.close()
        return self._target.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode_elements(data: bytes, type_: TypeInfo) -> Iterator[Batch]:
    """Read the batches that an `ElementsEncoder` has written."""
    with pa.ipc.open_stream(data) as reader:
        for batch in reader:
            yield Batch(type_, batch)


def describe_type(type_: TypeInfo) -> bytes:
    """Return a type as bytes, which `stored_type` reads."""
    return msgspec.json.encode(type_.describe())


def stored_type(data: bytes, ctx: CommitterContext) -> TypeInfo:
    """Read the type of stored elements; the program's own if it is the same.

    One that could run foreign code is refused: it holds pickled objects, and the program's does
    not.
    """
    kind = type_from_descriptor(msgspec.json.decode(data))
    if kind == ctx.type:
        return ctx.type
    # A checkpoint may come from an untrusted source: only the program may enable pickle.
    if _holds_pickle(kind):
        raise SinkError(
            f"{sink_label(ctx.job, ctx.uid)}: a prepared transaction contains pickled objects, "
            "but the type of the stream does not; nothing of it was read"
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
