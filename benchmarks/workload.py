"""What is asked of every engine: a number of batches of records over a number of keys."""

from __future__ import annotations

from dataclasses import dataclass

PARALLELISM = 2
"""Tasks in every engine, and files in every batch so that both cores read."""

SMALL_BATCH = 1_000
SMALL_WARMUP = 20


@dataclass(frozen=True)
class Batches:
    """How many batches an engine warms up with, how many are counted, and how large they are.

    A stream runs for days, and the JVM compiles hot code in its first ten to fifteen seconds, with
    the cores that the work wants: warm-ups take at least that. Slow engines are warm after one
    batch, and would take minutes for more.
    """

    warmup: int
    counted: int
    divisor: int = 1


MANY = Batches(12, 10)
SOME = Batches(4, 4)
TWO = Batches(1, 1)
TWO_SMALL = Batches(1, 1, divisor=10)
LARGE = Batches(3, 3)


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


def throughput(batch_records: int, keys: int, batches: Batches) -> Workload:
    """Large batches, some of them to warm up.

    Every engine that works in batches has a fixed cost for each: large ones show what a record
    costs, `small_epochs` what a batch does.
    """
    total = batches.warmup + batches.counted
    records = batch_records // batches.divisor
    return Workload("throughput", keys, records, total, batches.warmup)


def small_epochs(batches: int, keys: int) -> Workload:
    """Batches of 1,000 records: what an epoch costs when there is next to nothing to do."""
    return Workload("epoch", keys, SMALL_BATCH, batches + SMALL_WARMUP, SMALL_WARMUP)
