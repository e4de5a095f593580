"""Partitioned output: rows by the values of columns, in directories as Hive and Spark name them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.errors import ConfigurationError, SinkError
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{[\]^]""")
"""What Spark escapes; a name must not contain a NUL either."""
_LONGEST_NAME = 255
_LONGEST_PATH = 2048
_TYPES: tuple[TypeInfo, ...] = (
    Types.STRING(),
    Types.BYTE(),
    Types.SHORT(),
    Types.INT(),
    Types.LONG(),
    Types.BOOLEAN(),
    Types.SQL_DATE(),
)
"""Types whose text is the same for all readers."""


def partition_columns(names: object) -> tuple[str, ...]:
    """Check the argument `partition_by` of a sink."""
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise ConfigurationError(
            f"FileSink: partition_by takes names of columns, such as ['day', 'hour'], not {names!r}"
        )
    for name in given:
        if not name or name[0] in "._":
            raise ConfigurationError(
                f"FileSink: cannot partition by {name!r}: readers skip directories whose names "
                "begin with '.' or '_'; rename the column"
            )
    if len(set(given)) != len(given):
        raise ConfigurationError(f"FileSink: partition_by {list(given)} names a column twice")
    return tuple(given)


def rest_of(type_: TypeInfo, columns: Sequence[str]) -> RowTypeInfo:
    """The type of what is in the files: rows without the columns that directories are named for."""
    fields = dict(type_.fields()) if isinstance(type_, RowTypeInfo) else {}
    missing = [name for name in columns if name not in fields]
    if missing:
        raise ConfigurationError(
            f"FileSink: cannot partition by {missing[0]!r}: the stream has "
            + (f"the columns {', '.join(fields)}" if fields else f"no columns, but {type_}")
        )
    for name in columns:
        if fields[name] not in _TYPES:
            raise ConfigurationError(
                f"FileSink: cannot partition by {name!r} of type {fields[name]}: only strings, "
                "integers, booleans and dates look alike to all readers; add a column of such a "
                "type"
            )
        alike = [other for other in fields if other != name and other.lower() == name.lower()]
        if alike:
            raise ConfigurationError(
                f"FileSink: cannot partition by {name!r}: the stream also has the column "
                f"{alike[0]!r}, which readers such as Spark take for the same; rename one"
            )
    rest = {name: field for name, field in fields.items() if name not in columns}
    if not rest:
        raise ConfigurationError(
            "FileSink: partition_by names all columns of the stream, so that files would be empty; "
            "leave one out"
        )
    return RowTypeInfo(tuple(rest), tuple(rest.values()))


@dataclass(frozen=True)
class Part:
    """Rows of one directory, whose path is relative to that of the sink."""

    directory: str
    rows: pa.Table


def parts(batches: Sequence[pa.RecordBatch], columns: Sequence[str], sink: str) -> Iterator[Part]:
    """Distribute rows over their directories; the order of rows is kept in each."""
    table = pa.Table.from_batches(batches)
    names: list[list[str]] = []
    codes = []
    group = np.zeros(table.num_rows, np.int64)
    for name in columns:
        encoded = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode")
        of_value = [_segment(name, value, sink) for value in encoded.dictionary.to_pylist()]
        known = {segment: n for n, segment in enumerate(dict.fromkeys(of_value))}
        code = np.array([known[segment] for segment in of_value])[encoded.indices.to_numpy()]
        names.append(list(known))
        codes.append(code)
        group = np.unique(group * len(known) + code, return_inverse=True)[1].reshape(-1)
    order = np.argsort(group, kind="stable")
    # Once for all directories: to take the rows of one, Arrow may join all chunks.
    rows = table.drop_columns(list(columns)).take(pa.array(order))
    start = 0
    for end in np.cumsum(np.bincount(group)).tolist():
        first = order[start]
        directory = "/".join(known[code[first]] for known, code in zip(names, codes, strict=True))
        if len(directory.encode()) > _LONGEST_PATH:
            raise SinkError(f"{sink}: the path {directory[:80]}... is too long for a file system")
        yield Part(directory, rows.slice(start, end - start))
        start = end


def _segment(name: str, value: Any, sink: str) -> str:
    """The name of a directory, as Spark's `partitionBy` writes it."""
    segment = f"{_escaped(name)}={_text(value)}"
    if len(segment.encode()) > _LONGEST_NAME:
        raise SinkError(
            f"{sink}: {segment[:80]}... is too long for the name of a directory, which can have "
            f"{_LONGEST_NAME} bytes; partition by something shorter"
        )
    return segment


def _text(value: Any) -> str:
    if value is None or value == "":
        return _NULL
    return _escaped(str(value).lower() if isinstance(value, bool) else str(value))


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)
