"""Where the key of an element comes from."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from turnback.core import Batch, RowTypeInfo, TypeInfo
from turnback.core.batch import stream_columns
from turnback.core.errors import ElementTypeError, NullKeyError
from turnback.core.keyform import KeyForm
from turnback.graph import KeySpec
from turnback.runtime.failure import user_error

KeyReader = Callable[[Batch], list[Any]]


def key_reader(key: KeySpec, type: TypeInfo, uid: str) -> KeyReader:
    """A function that gives the keys of a batch's elements, and refuses null ones.

    The keys have the form in which Python finds them equal exactly if they are one key.
    """
    form = key.codec().form
    if key.function is not None:
        return _function_reader(key.function, form, uid)
    what = f"({', '.join(key.columns)})"
    readers = [_column_reader(column, type) for column in key.columns]

    def read(batch: Batch) -> list[Any]:
        columns = [_not_null(reader(batch), uid, what) for reader in readers]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return list(map(form.one, keys)) if form.differs else keys

    return read


def _column_reader(column: str, type: TypeInfo) -> KeyReader:
    if not isinstance(type, RowTypeInfo):
        return lambda batch: batch.rows
    if type.python_class is tuple or not column.isidentifier():
        index = [name for name, _ in stream_columns(type)].index(column)
        return lambda batch: [row[index] for row in batch.rows]
    get = attrgetter(column)  # faster than by index: rows take names there as well
    return lambda batch: list(map(get, batch.rows))


def _function_reader(function: Callable[[Any], Any], form: KeyForm, uid: str) -> KeyReader:
    def read(batch: Batch) -> list[Any]:
        rows, row, keys = batch.rows, None, []
        try:
            for row in rows:
                keys.append(function(row))
        except Exception as e:
            raise user_error(e, uid, "key function", element=row) from e
        if form.are_all(keys):
            return keys
        try:
            return list(map(form.one, _not_null(keys, uid, "that the key function gives")))
        except ElementTypeError as e:
            raise e.__class__(f"operator {uid!r}: {e}") from None

    return read


def _not_null(values: list[Any], uid: str, what: str) -> list[Any]:
    if None in values:
        raise NullKeyError(
            f"operator {uid!r}: the key {what} of an element is null; filter such elements out or "
            f"give them a key before key_by"
        )
    return values
