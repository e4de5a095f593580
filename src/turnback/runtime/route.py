from __future__ import annotations

from typing import Any

import pyarrow as pa

from turnback.core import Batch, partition_of
from turnback.core.errors import ElementTypeError
from turnback.planner import Routing, Wire
from turnback.runtime.keyreader import key_reader

_CACHED_KEYS = 100_000


class Router:
    """Says to which partition of the next level each element of a wire goes."""

    def __init__(self, wire: Wire, into_level: int, next_parallelism: int, max_parallelism: int):
        self.routing = wire.routing(into_level)
        self.parallelism = wire.parallelism
        if self.routing is Routing.TRANSIT:
            self.parallelism = next_parallelism
        self.max_parallelism = max_parallelism
        self._turn = 0
        self._known: dict[object, int] = {}
        if self.routing is Routing.KEY_FUNCTION:
            assert wire.key is not None
            self._reader = wire.reader
            self._keys = key_reader(wire.key, wire.type, wire.reader)
            self._codec = wire.key.codec()

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
