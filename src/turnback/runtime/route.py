from __future__ import annotations

import pyarrow as pa

from turnback.core import Batch, partition_of
from turnback.planner import Routing, Wire
from turnback.runtime.runners import key_reader

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
            self._keys = key_reader(wire.key, wire.type, f"wire {wire.id}")
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
        known, group = self._known, self._codec.group
        if len(known) > _CACHED_KEYS:
            known.clear()
        targets = []
        for key in self._keys(batch):
            target = known.get(key)
            if target is None:
                target = known[key] = partition_of(
                    group(key, self.max_parallelism), self.parallelism, self.max_parallelism
                )
            targets.append(target)
        return pa.array(targets, pa.int32())
