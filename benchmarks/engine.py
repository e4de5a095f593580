"""The engines that can be compared: another one is its program in `engines`, and a line here."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workload import MANY, SOME, TWO, TWO_SMALL, Batches, Workload

START_S = 15
"""What a trial takes beside its batches, about: to start, to stop, and to check the answer."""
EPOCH_S = 0.6
PER_KEY = "one row out per key and batch, no user function"


@dataclass(frozen=True)
class Engine:
    """An engine under its name in the table.

    Attributes:
        module: The program in `engines`, which takes the name as its variant.
        rate: About how many records a second it does, to tell how long trials take, and to have
            engines that checkpoint by the clock do so about once a batch.
        batches: How many it is given; fewer to those that take minutes for them.
        all_sizes: Whether it is also measured in larger and in small batches.
        environment: Where it is installed, if not where Turnback is; see `program.python_of`.
        csv: Whether it reads records as CSV.
        does: What it does per record, where that is not what the others do.
    """

    name: str
    module: str
    rate: int
    batches: Batches = MANY
    all_sizes: bool = False
    environment: str | None = None
    csv: bool = False
    does: str = "one read, one update, one row out per record"

    def trial_seconds(self, workload: Workload) -> float:
        """About how long a trial takes on two cores."""
        return START_S + max(workload.records / self.rate, workload.batches * EPOCH_S)


BASELINE = "turnback-rocksdb"
CEILING = "spark-group-by"

# fmt: off
_ALL = (
    Engine(BASELINE, "turnback_count", 310_000, all_sizes=True),
    Engine("turnback-hashmap", "turnback_count", 330_000),
    Engine("turnback-batch", "turnback_batch", 600_000, all_sizes=True,
           does="one read, one update, one row out per record, on columns"),
    Engine("turnback-aggregate", "turnback_aggregate", 1_000_000, all_sizes=True, does=PER_KEY),
    Engine(CEILING, "spark_group_by", 500_000, all_sizes=True, does=f"in the JVM, {PER_KEY}"),
    Engine("spark-transform-with-state", "spark_transform_with_state", 9_700, TWO_SMALL),
    Engine("spark-transform-with-state-per-key", "spark_transform_with_state", 39_000, TWO,
           does="one read and one update per key and batch; one row out per record"),
    Engine("flink-sql", "flink_sql_count", 130_000, SOME, environment="flink", csv=True,
           does="in the JVM, one row out per record, no user function"),
    Engine("pyflink-thread", "flink_count", 6_900, TWO_SMALL, environment="flink", csv=True),
    Engine("pyflink-process", "flink_count", 12_500, TWO_SMALL, environment="flink", csv=True),
    Engine("bytewax", "bytewax_count", 200_000, SOME, environment="bytewax",
           does="one worker, so one core; one read, one update, one row out per record"),
)
# fmt: on

ENGINES = {engine.name: engine for engine in _ALL}
