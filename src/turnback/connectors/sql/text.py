"""Columns of a stream as text that SQL databases read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.values.plain_values import json_column

Text = Callable[[pa.Array], pa.Array]
CHUNK_BYTES = 1 << 20
"""How much text is sent at once."""


def plain_text(column: pa.Array) -> pa.Array:
    """The values as strings, nulls left as they are; the bytes of binary columns in hex.

    Dates, times and timestamps are in ISO 8601 with a space, instants in UTC without a zone; rows,
    lists and maps are JSON, as `FileSink` writes them.
    """
    kind = column.type
    if pt.is_string(kind):
        return column
    if pt.is_time64(kind):
        column = pc.cast(column, pa.time64("us"))
    elif pt.is_timestamp(kind):
        # A cast to text would put a `Z` behind instants, which not every database takes.
        column = pc.cast(column, pa.timestamp("us", kind.tz)).cast(pa.timestamp("us"))
    elif pt.is_binary(kind) or pt.is_large_binary(kind):
        return pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string())
    elif pt.is_nested(kind):
        encode = msgspec.json.Encoder().encode
        values = (None if v is None else encode(v).decode() for v in json_column(column))
        return pa.array(values, pa.string())
    return pc.cast(column, pa.string())


def joined_rows(columns: list[pa.Array], separator: str) -> pa.Array:
    """One string per row out of columns without nulls."""
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*columns, separator)


def chunks(rows: pa.Array, separator: str) -> Iterator[str]:
    """Rows joined to texts of about `CHUNK_BYTES`, never splitting a row."""
    sizes = pc.cumulative_sum(pc.cast(pc.binary_length(rows), pa.int64())).to_numpy()
    start = 0
    while start < len(rows):
        done = int(sizes[start - 1]) if start else 0
        end = max(start + 1, int(sizes.searchsorted(done + CHUNK_BYTES, side="right")))
        yield separator.join(rows.slice(start, end - start).to_pylist())
        start = end


def escaped(text: pa.Array, replacements: dict[str, str]) -> pa.Array:
    """Replace characters, in this order."""
    for character, replacement in replacements.items():
        text = pc.replace_substring(text, character, replacement)
    return text
