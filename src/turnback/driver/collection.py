"""The elements of `from_collection`, which travel inside the query."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from turnback.errors import ElementTypeError, PlanError
from turnback.values.columns import Batch
from turnback.values.hints import as_type
from turnback.values.row import Row
from turnback.values.typeinfo import RowTypeInfo, TypeInfo

_MAX_COLLECTION_BYTES = 64 * 1024 * 1024


def encode_collection(elements: Sequence[Any], type_info: Any) -> tuple[str, TypeInfo]:
    """The elements of a list as `GivenElements` takes them, and their type.

    The data travels inside the query; the position is the number of elements read. A list that has
    grown since the last run goes on where it was.
    """
    type = _type_of(elements) if type_info is None else as_type(type_info)
    try:
        return _encoded(Batch(type, list(elements)).arrow), type
    except ElementTypeError as e:
        raise ElementTypeError(f"from_collection: {e}") from None


def _type_of(elements: Sequence[Any]) -> TypeInfo:
    if not elements:
        raise PlanError("from_collection: the list is empty, so its type must be given")
    first = elements[0]
    if isinstance(first, dict):
        names = list(first)
        values = list(first.values())
    elif isinstance(first, Row) and Row.get_field_names(first):
        names = list(Row.get_field_names(first))
        values = list(first)
    elif type(first) is tuple or isinstance(first, Row):
        names = [f"f{i}" for i in range(len(first))]
        values = list(first)
    else:
        return as_type(type(first))
    return RowTypeInfo(tuple(names), tuple(as_type(type(v)) for v in values))


def _encoded(batch: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    if data.size > _MAX_COLLECTION_BYTES:
        raise PlanError(
            f"from_collection: {data.size} bytes are too many to send inside the query; write "
            "the elements to files and use from_files"
        )
    return base64.b64encode(data).decode()


class GivenElements:
    """The elements that `encode_collection` was given."""

    def __init__(self, data: str) -> None:
        self._data = data

    def __len__(self) -> int:
        return int(self._table().num_rows)

    def check(self, read: int) -> None:
        """Refuse to go on behind so many elements if there are fewer."""
        if len(self) < read:
            raise PlanError(
                f"from_collection: {read} elements were already read, but the list now has only "
                f"{len(self)}. Only append to the list, or start the job fresh"
            )

    def between(self, start: int, end: int) -> list[pa.RecordBatch]:
        """The elements from one place up to another."""
        batches: list[pa.RecordBatch] = self._table().slice(start, end - start).to_batches()
        return batches

    def _table(self) -> pa.Table:
        with pa.ipc.open_stream(base64.b64decode(self._data)) as reader:
            return reader.read_all()
