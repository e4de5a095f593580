"""Tasks that Spark has run more than once."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark import SparkContext

from turnback.plan.graph import NodeKind
from turnback.plan.plan import Plan
from turnback.worker.message import TaskAck


class TaskReruns:
    """Tells whether Spark has run tasks of an epoch whose output did not count, or may have.

    Only those matter that write to sinks: what they have prepared, nobody commits.
    """

    def __init__(self, context: SparkContext, plan: Plan) -> None:
        self._levels = {
            level.index
            for level in plan.levels
            if any(op.kind is NodeKind.SINK for op in level.operators)
        }
        self._tracker = context.statusTracker()
        # A copy that lost against the first attempt leaves no trace in what has won.
        self._speculates = context.getConf().get("spark.speculation", "false") == "true"

    def happened(self, acks: Sequence[TaskAck]) -> bool:
        names = [ack.name for ack in acks if ack.level in self._levels]
        if not names:
            return False
        if self._speculates or any(name.tries for name in names):
            return True
        # A stage is run again when its output was lost with an executor.
        stages = map(self._tracker.getStageInfo, {name.stage for name in names})
        return any(s and (s.currentAttemptId > 0 or s.numFailedTasks > 0) for s in stages)
