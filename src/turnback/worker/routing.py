"""Where elements go: to which partition of the next level, and in batches of what size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.core.errors import ElementTypeError, TooLargeError
from turnback.plan.plan import Channel, Routing
from turnback.values.columns import Batch
from turnback.values.keys import partition_of
from turnback.worker.keys import key_reader
from turnback.worker.message import user_error
from turnback.worker.stamps import Stamps

_CACHED_KEYS = 100_000
_CACHED_BYTES = 64 << 20
MOST_BYTES = 64 << 20
"""Of a batch on its way to the next level; only a single row may be larger."""


class Router:
    """Assigns the elements of a channel to partitions of the next level."""

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
        self._known_bytes = 0
        self._reader = channel.reader
        self._partitioning = channel.partitioning
        if self.routing is Routing.KEY_FUNCTION:
            assert channel.key is not None
            self._keys = key_reader(channel.key, channel.type, channel.reader)
            self._codec = channel.key.codec()

    def start(self, partition: int) -> None:
        """Begin an epoch; tasks start the round robin at different partitions."""
        self._turn = partition

    def copies(self, batch: Batch) -> list[pa.Array | None]:
        """The target of each element, for every copy of the batch that is sent."""
        if self.routing is not Routing.BROADCAST:
            return [self.targets(batch)]
        targets = (pa.scalar(target, pa.int32()) for target in range(self.parallelism))
        return [pa.repeat(target, len(batch)) for target in targets]

    def targets(self, batch: Batch) -> pa.Array | None:
        """The target of each element; None where Spark computes it from the key columns."""
        if self.routing is Routing.KEY_COLUMNS:
            return None
        if self.parallelism == 1:
            return pa.array(np.zeros(len(batch), np.int32))
        if self.routing is Routing.KEY_FUNCTION:
            return self._by_key(batch)
        if self.routing is Routing.CUSTOM:
            return self._by_partitioner(batch)
        if self.routing is Routing.TRANSIT and batch.stamps is not None:
            return self._by_place(batch.stamps)
        n = len(batch)
        first = self._turn
        self._turn = (first + n) % self.parallelism
        return pa.array(((first + i) % self.parallelism for i in range(n)), pa.int32(), size=n)

    def _by_place(self, stamps: Stamps) -> pa.Array:
        """The same partition for all that was made from one element: so it stays in its order."""
        return pa.array((stamps.segment + stamps.row) % self.parallelism, pa.int32())

    def _by_partitioner(self, batch: Batch) -> pa.Array:
        how = self._partitioning
        count = self.parallelism
        row = None
        targets = []
        assert how is not None
        assert how.partition is not None
        assert how.key is not None
        try:
            for row in batch.rows:
                targets.append(how.partition(how.key(row), count))
        except Exception as e:
            raise user_error(e, self._reader, "partition_custom", element=row) from e
        for row, target in zip(batch.rows, targets, strict=True):
            if type(target) is not int or not 0 <= target < count:
                raise ElementTypeError(
                    f"operator {self._reader!r}: the partitioner gave {target!r:.40} for "
                    f"{row!r:.80}; it has to give a whole number from 0 to {count - 1}"
                )
        return pa.array(targets, pa.int32())

    def _by_key(self, batch: Batch) -> pa.Array:
        known = self._known
        locate = self._locate
        if len(known) > _CACHED_KEYS or self._known_bytes > _CACHED_BYTES:
            known.clear()
            self._known_bytes = 0
        targets = []
        for key in self._keys(batch):
            target = known.get(key)
            targets.append(locate(key) if target is None else target)
        return pa.array(targets, pa.int32())

    def _locate(self, key: Any) -> int:
        try:
            group = self._codec.group(key, self.max_parallelism)
        except ElementTypeError as e:
            raise type(e)(f"operator {self._reader!r}: {e}") from None
        self._known_bytes += len(self._codec.encode(key))
        target = self._known[key] = partition_of(group, self.parallelism, self.max_parallelism)
        return target


def bounded(elements: Batch) -> Iterator[Batch]:
    """The elements in batches that Spark can take: it and Arrow end at 2 GiB."""
    try:
        if elements.arrow.nbytes <= MOST_BYTES or len(elements) == 1:
            yield elements
            return
    except TooLargeError:
        if len(elements) == 1:
            raise
    for half in elements.halves():
        yield from bounded(half)
