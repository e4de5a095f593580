from __future__ import annotations

from pyspark.sql import SparkSession

from turnback.graph import NodeKind
from turnback.planner import Plan
from turnback.runtime.spark.epoch import EpochAcks


class Retries:
    """Tells whether Spark has run tasks of an epoch whose output did not count.

    Only those matter that write to sinks: what they have prepared, nobody commits.
    """

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self._levels = {
            level.index
            for level in plan.levels
            if any(op.kind is NodeKind.SINK for op in level.operators)
        }
        context = spark.sparkContext
        self._tracker = context.statusTracker()
        # A copy that lost against the first attempt leaves no trace in what has won.
        self._speculates = context.getConf().get("spark.speculation", "false") == "true"

    def happened(self, acks: EpochAcks) -> bool:
        """Return whether a task was run more than once, or may have been."""
        names = [ack.name for ack in acks.acks if ack.level in self._levels]
        if not names:
            return False
        if self._speculates or any(name.tries for name in names):
            return True
        return any(map(self._ran_again, {name.stage for name in names}))

    def _ran_again(self, stage: int) -> bool:
        """Whether a stage was run again, after its output was lost with an executor."""
        info = self._tracker.getStageInfo(stage)
        return info is not None and (info.currentAttemptId > 0 or info.numFailedTasks > 0)
