from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from turnback.runtime.changes import Change, ChangeDecoder
from turnback.runtime.snapshot import StoredRows
from turnback.runtime.spark.stateframes import described, entries_frame, plain_errors, through


@dataclass(frozen=True)
class Pair:
    """A state in two snapshots.

    Attributes:
        old: It in the older one; without files where there is none.
        new: It in the newer one.
        old_groups: Number of key groups of the older snapshot.
        new_groups: That of the newer.
    """

    old: StoredRows
    new: StoredRows
    old_groups: int
    new_groups: int

    def changes(self, spark: SparkSession) -> DataFrame:
        """What changed: key, position or map_key, change, old and new."""
        joined = self._joined(spark).where(F.col("change") != Change.UNCHANGED.value)
        return through(joined, ChangeDecoder(self.new.schema))

    def counts(self, spark: SparkSession) -> DataFrame:
        """How many rows there are of each change."""
        return self._joined(spark).groupBy("change").count()

    def _joined(self, spark: SparkSession) -> DataFrame:
        old = entries_frame(spark, self.old, self.old_groups).alias("a")
        new = entries_frame(spark, self.new, self.new_groups).alias("b")
        same = F.col("a.key") == F.col("b.key")
        if self.new.schema.kind in ("list", "map"):
            same = same & (F.col("a.sub") == F.col("b.sub"))
        change = (
            F.when(F.col("a.key").isNull(), Change.ADDED.value)
            .when(F.col("b.key").isNull(), Change.REMOVED.value)
            .when(F.col("a.value") == F.col("b.value"), Change.UNCHANGED.value)
            .otherwise(Change.CHANGED.value)
        )
        return old.join(new, same, "full_outer").select(
            F.coalesce("a.key", "b.key").alias("key"),
            F.coalesce("a.sub", "b.sub").alias("sub"),
            change.alias("change"),
            F.col("a.value").alias("old"),
            F.col("b.value").alias("new"),
        )


def count_changes(spark: SparkSession, pairs: Sequence[Pair]) -> list[dict[Change, int]]:
    """How many rows of each pair were added, removed, changed and not changed; one Spark job."""
    if not pairs:
        return []
    frames = [pair.counts(spark).withColumn("pair", F.lit(i)) for i, pair in enumerate(pairs)]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    with plain_errors(), described(spark, "diff of savepoints"):
        found = Counter({(r["pair"], Change(r["change"])): r["count"] for r in whole.collect()})
    return [{change: found[i, change] for change in Change} for i in range(len(pairs))]
