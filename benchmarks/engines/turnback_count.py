"""Turnback's `KeyedProcessFunction`, with state in RocksDB or in memory."""

from __future__ import annotations

from benchmarks.engines import arguments, turnback_engine
from benchmarks.engines.turnback_job import Count, with_function

if __name__ == "__main__":
    given = arguments.parse(__doc__, ("turnback-rocksdb", "turnback-hashmap"))
    backend = given.variant.removeprefix("turnback-")
    turnback_engine.run(given, with_function(Count()), backend).print()
