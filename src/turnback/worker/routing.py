"""The key of each element, and the partition of the next level that it goes to."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pyarrow as pa

from turnback.core.errors import ElementTypeError, NullKeyError
from turnback.program.graph import KeySpec
from turnback.program.plan import Channel, Routing
from turnback.types.columns import Batch, stream_columns
from turnback.types.keys import KeyNormalizer, partition_of
from turnback.types.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import user_error

KeyReader = Callable[[Batch], list[Any]]


def key_reader(key: KeySpec, type: TypeInfo, uid: str) -> KeyReader:
    """A function that gives the keys of a batch's elements, and refuses null ones.

    The keys have the form in which Python finds them equal exactly if they are one key.
    """
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
        rows, row, keys = batch.rows, None, []
        try:
            for row in rows:
                keys.append(function(row))
        except Exception as e:
            raise user_error(e, uid, "key function", element=row) from e
        if normalizer.are_normal(keys):
            return keys
        try:
            return list(
                map(normalizer.normalize, _not_null(keys, uid, "that the key function gives"))
            )
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


_CACHED_KEYS = 100_000


class Router:
    """Says to which partition of the next level each element of a channel goes."""

    def __init__(
        self, channel: Channel, into_level: int, next_parallelism: int, max_parallelism: int
    ):
        self.routing = channel.routing(into_level)
        self.parallelism = channel.parallelism
        if self.routing is Routing.TRANSIT:
            self.parallelism = next_parallelism
        self.max_parallelism = max_parallelism
        self._turn = 0
        self._known: dict[object, int] = {}
        if self.routing is Routing.KEY_FUNCTION:
            assert channel.key is not None
            self._reader = channel.reader
            self._keys = key_reader(channel.key, channel.type, channel.reader)
            self._codec = channel.key.codec()

    def start(self, partition: int) -> None:
        """Begin an epoch; tasks start their round robin at different places."""
        self._turn = partition

    def targets(self, batch: Batch) -> pa.Array | None:
        """The target of each element; None where Spark computes it from the key columns."""
        if self.routing is Routing.KEY_COLUMNS:
            return None
        if self.routing is Routing.KEY_FUNCTION:
            return self._by_key(batch)
        n, first = len(batch), self._turn
        self._turn = (first + n) % self.parallelism
        return pa.array(((first + i) % self.parallelism for i in range(n)), pa.int32(), size=n)

    def _by_key(self, batch: Batch) -> pa.Array:
        known, place = self._known, self._place
        if len(known) > _CACHED_KEYS:
            known.clear()
        targets = []
        for key in self._keys(batch):
            target = known.get(key)
            targets.append(place(key) if target is None else target)
        return pa.array(targets, pa.int32())

    def _place(self, key: Any) -> int:
        try:
            group = self._codec.group(key, self.max_parallelism)
        except ElementTypeError as e:
            raise type(e)(f"operator {self._reader!r}: {e}") from None
        target = self._known[key] = partition_of(group, self.parallelism, self.max_parallelism)
        return target
