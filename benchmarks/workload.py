"""What is asked of every engine: a number of batches of records over a number of keys."""

from __future__ import annotations

from dataclasses import dataclass

PARALLELISM = 2
"""Tasks in every engine, and files in every batch so that both cores read."""

COUNTED_BATCHES = 2
SMALL_BATCH = 1_000


@dataclass(frozen=True)
class Workload:
    """A stream cut into equal batches, of which the first few only warm the engine up."""

    name: str
    keys: int
    batch_records: int
    batches: int
    warmup_batches: int

    @property
    def records(self) -> int:
        return self.batch_records * self.batches

    @property
    def warmup_records(self) -> int:
        return self.batch_records * self.warmup_batches

    @property
    def counted_records(self) -> int:
        return self.records - self.warmup_records


def throughput(records: int, keys: int) -> Workload:
    """`records` counted records in two batches, after two of the same size to warm up.

    One is not enough: the JVM still compiles hot code during the second, and an aggregation that
    runs in the JVM alone would look much slower than it is.

    Every engine that works in batches has a fixed cost for each: large ones show what a record
    costs, `small_epochs` what a batch does.
    """
    batch = records // COUNTED_BATCHES
    if batch < PARALLELISM:
        raise ValueError(f"--records must be at least {COUNTED_BATCHES * PARALLELISM}")
    return Workload("throughput", keys, batch, COUNTED_BATCHES + 2, warmup_batches=2)


def small_epochs(batches: int, keys: int) -> Workload:
    """Batches of 1,000 records: what an epoch costs when there is next to nothing to do."""
    return Workload("epoch", keys, SMALL_BATCH, batches + 5, warmup_batches=5)
