"""What is asked of every engine: a number of batches of records over a number of keys."""

from __future__ import annotations

from dataclasses import dataclass

PARALLELISM = 2
"""Tasks in every engine, and files in every batch so that both cores read."""

SLOW_BATCHES = (2, 2)
FAST_BATCHES = (6, 10)
"""Batches to warm up with, and batches that are counted."""

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


def throughput(batch_records: int, keys: int, *, slow: bool) -> Workload:
    """Large batches, some of them to warm up.

    The JVM compiles hot code for about ten seconds. Slow engines have those behind them after two
    batches; fast ones take more batches, and would look slower than they are with two.

    Every engine that works in batches has a fixed cost for each: large ones show what a record
    costs, `small_epochs` what a batch does.
    """
    warmup, counted = SLOW_BATCHES if slow else FAST_BATCHES
    return Workload("throughput", keys, batch_records, warmup + counted, warmup)


def small_epochs(batches: int, keys: int) -> Workload:
    """Batches of 1,000 records: what an epoch costs when there is next to nothing to do."""
    return Workload("epoch", keys, SMALL_BATCH, batches + 5, warmup_batches=5)
