"""The keys of a batch: one per element, or the distinct ones and which element has which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.errors import ElementTypeError, NullKeyError
from turnback.functions.partitioning import KeySpec
from turnback.plan.user_code import place_line
from turnback.values.columns import Batch, from_column, stream_columns, to_column
from turnback.values.keys import KeyNormalizer
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types
from turnback.worker.message import user_error

KeyReader = Callable[[Batch], list[Any]]
Index = np.ndarray[Any, np.dtype[np.intp]]


def key_reader(key: KeySpec, type: TypeInfo, uid: str) -> KeyReader:
    """A function that reads the keys of a batch, normalized, and refuses null ones."""
    normalizer = key.codec().normalizer
    if key.function is not None:
        return _function_reader(key.function, normalizer, uid)
    what = f"({', '.join(key.columns)})"
    readers = [_column_reader(column, type) for column in key.columns]

    def read(batch: Batch) -> list[Any]:
        columns = [_not_null(reader(batch), uid, what) for reader in readers]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return list(map(normalizer.normalize, keys)) if normalizer.changes_class else keys

    return read


def _column_reader(column: str, type: TypeInfo) -> KeyReader:
    if not isinstance(type, RowTypeInfo):
        return lambda batch: batch.rows
    if type.python_class is tuple or not column.isidentifier():
        index = [name for name, _ in stream_columns(type)].index(column)
        return lambda batch: [row[index] for row in batch.rows]
    get = attrgetter(column)  # faster than by index: rows take names there as well
    return lambda batch: list(map(get, batch.rows))


def _function_reader(
    function: Callable[[Any], Any], normalizer: KeyNormalizer, uid: str
) -> KeyReader:
    def read(batch: Batch) -> list[Any]:
        rows = batch.rows
        row = None
        keys = []
        try:
            for row in rows:
                keys.append(function(row))
        except Exception as e:
            raise user_error(e, uid, "key function", element=row) from e
        if normalizer.are_normal(keys):
            return keys
        _not_null(keys, uid, "returned by the key function")
        try:
            return list(map(normalizer.normalize, keys))
        except NullKeyError as e:
            raise NullKeyError(f"operator {uid!r}: {e}") from None
        except ElementTypeError as e:
            several = next((key for key in keys if isinstance(key, list)), None)
            advice = "" if several is None else _TUPLE
            place = place_line(function, "get_key")
            raise e.__class__(f"operator {uid!r}: the key {e}{advice}{place}") from None

    return read


_TUPLE = (
    ". A key of several values is a tuple, not a list: return (a, b), and declare it with "
    "key_type=Types.TUPLE([...])"
)


def _not_null(values: list[Any], uid: str, what: str) -> list[Any]:
    if None in values:
        raise _null_key(uid, what)
    return values


def _null_key(uid: str, what: str) -> NullKeyError:
    return NullKeyError(
        f"operator {uid!r}: the key {what} is null for an element; filter such elements out or "
        f"give them a key before key_by"
    )


@dataclass(frozen=True)
class DistinctKeys:
    """The keys of a batch, each once, in the order in which they come up first.

    Attributes:
        keys: As state is looked up by them: what a `KeyReader` would give.
        column: The same ones as a column: a struct if the key has several columns.
        index: For every element, where its key is among them.
    """

    keys: list[Any]
    column: pa.Array
    index: Index


def distinct_key_reader(key: KeySpec, type: TypeInfo, uid: str) -> Callable[[Batch], DistinctKeys]:
    """A function that finds the distinct keys of a batch, and refuses null ones.

    Where the key is made of plain columns, no element becomes a Python object.
    """
    if key.function is not None or any(isinstance(t, RowTypeInfo) for t in key.types):
        return _distinct_objects(key, key_reader(key, type, uid), uid)
    names = [name for name, _ in stream_columns(type)]
    positions = [names.index(column) for column in key.columns]
    what = f"({', '.join(key.columns)})"

    def read(batch: Batch) -> DistinctKeys:
        columns = [batch.arrow.column(i) for i in positions]
        if any(column.null_count for column in columns):
            raise _null_key(uid, what)
        distinct, index = distinct_columns(columns)
        parts = [from_column(c, t) for c, t in zip(distinct, key.types, strict=True)]
        if len(parts) == 1:
            return DistinctKeys(parts[0], distinct[0], index)
        struct = pa.StructArray.from_arrays(distinct, names=list(key.columns))
        return DistinctKeys(list(zip(*parts, strict=True)), struct, index)

    return read


def distinct_columns(columns: Sequence[pa.Array]) -> tuple[list[pa.Array], Index]:
    """The distinct rows of some columns, as columns, and the row each element has."""
    first = columns[0].dictionary_encode()
    distinct = [first.dictionary]
    index = _positions(first)
    for column in columns[1:]:
        other = column.dictionary_encode()
        size = len(other.dictionary)
        # Both factors are at most the number of elements, so 64 bits hold the product.
        pairs = pa.array(index * size + _positions(other)).dictionary_encode()
        before, last = np.divmod(pairs.dictionary.to_numpy(), size)
        distinct = [each.take(pa.array(before)) for each in distinct]
        distinct.append(other.dictionary.take(pa.array(last)))
        index = _positions(pairs)
    return distinct, index


def _positions(encoded: pa.DictionaryArray) -> Index:
    positions: Index = encoded.indices.to_numpy().astype(np.intp)
    return positions


def _distinct_objects(
    key: KeySpec, read_keys: KeyReader, uid: str
) -> Callable[[Batch], DistinctKeys]:
    whole = key.types[0]
    if len(key.types) > 1:
        whole = Types.ROW_NAMED(list(key.columns), list(key.types))

    def read(batch: Batch) -> DistinctKeys:
        positions: dict[Any, int] = {}
        index = [positions.setdefault(each, len(positions)) for each in read_keys(batch)]
        try:
            column = to_column(list(positions), whole)
        except ElementTypeError as e:
            raise type(e)(f"operator {uid!r}: a key has no column: {e}") from None
        return DistinctKeys(list(positions), column, np.array(index, np.intp))

    return read
