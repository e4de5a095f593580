"""`Batch`: the elements of one stream in one epoch."""

from typing import Any

import pyarrow as pa

from turnback.core.build import build_rows
from turnback.core.columns import from_column, to_column, to_columns
from turnback.core.errors import ElementTypeError
from turnback.core.types import RowTypeInfo, TypeInfo, quote_name

VALUE_COLUMN = "value"
"""The name of the one column of a stream whose elements are not rows."""


class Batch:
    """The elements of one stream in one epoch, as Python objects and as Arrow columns.

    A stream of rows has one column per field, any other stream one column called ``value``. Each
    form is made from the other when first asked for, and kept. Neither may be changed.

    Args:
        type: The type of the elements.
        rows: The elements; a record batch is taken as `arrow`.
        arrow: The columns, in the order of the fields. One of the two must be given.
    """

    __slots__ = ("_arrow", "_rows", "type")

    def __init__(
        self,
        type: TypeInfo,
        rows: list[Any] | pa.RecordBatch | None = None,
        *,
        arrow: pa.RecordBatch | None = None,
    ) -> None:
        if isinstance(rows, pa.RecordBatch):
            rows, arrow = None, rows
        if (rows is None) == (arrow is None):
            raise TypeError("a Batch is made of rows or of arrow: give one of them")
        self.type = type
        self._rows: list[Any] | None = rows
        self._arrow: Any = arrow

    @property
    def rows(self) -> list[Any]:
        """The elements."""
        rows = self._rows
        if rows is None:
            rows = self._rows = _to_rows(self.type, self._arrow)
        return rows

    @property
    def arrow(self) -> pa.RecordBatch:
        """The columns.

        Raises:
            ElementTypeError: An element does not fit the type of the stream.
        """
        arrow = self._arrow
        if arrow is None:
            arrow = self._arrow = _to_arrow(self.type, self._rows or [])
        return arrow

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else int(self._arrow.num_rows)

    def __repr__(self) -> str:
        return f"Batch({self.type}, {len(self)} elements)"


def stream_columns(type_: TypeInfo) -> list[tuple[str, TypeInfo]]:
    """Return the name and the type of each column of a stream."""
    if isinstance(type_, RowTypeInfo):
        return list(zip(type_.names, type_.types, strict=True))
    return [(VALUE_COLUMN, type_)]


def stream_schema(type_: TypeInfo) -> pa.Schema:
    """Return the Arrow schema of a stream."""
    return pa.schema([pa.field(name, t.arrow()) for name, t in stream_columns(type_)])


def stream_ddl(type_: TypeInfo) -> str:
    """Return the schema of a stream as Spark writes it: ``post string, n bigint``."""
    return ", ".join(f"{quote_name(name)} {t.ddl()}" for name, t in stream_columns(type_))


def _to_rows(type_: TypeInfo, batch: pa.RecordBatch) -> list[Any]:
    expected = len(type_.names) if isinstance(type_, RowTypeInfo) else 1
    if batch.num_columns != expected:
        raise ElementTypeError(
            f"a batch of {type_} needs {expected} columns, got {batch.num_columns}: "
            f"{', '.join(batch.schema.names)}"
        )
    if isinstance(type_, RowTypeInfo):
        return build_rows(
            type_, [from_column(c, t) for c, t in zip(batch.columns, type_.types, strict=True)]
        )
    return from_column(batch.column(0), type_)


def _to_arrow(type_: TypeInfo, rows: list[Any]) -> pa.RecordBatch:
    schema = stream_schema(type_)
    if isinstance(type_, RowTypeInfo):
        return pa.RecordBatch.from_arrays(to_columns(rows, type_), schema=schema)
    return pa.RecordBatch.from_arrays([to_column(rows, type_)], schema=schema)
