"""Turnback's declared aggregate: one row out per key and batch."""

from __future__ import annotations

from benchmarks.engines import arguments, turnback_engine
from turnback import DataStream, count


def counting(events: DataStream) -> DataStream:
    return events.key_by("post").aggregate(n=count())


if __name__ == "__main__":
    given = arguments.parse(__doc__, ("turnback-aggregate",))
    turnback_engine.run(given, counting, "rocksdb").print()
