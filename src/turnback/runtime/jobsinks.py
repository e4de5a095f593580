"""The sinks of a program on the driver, in one attempt."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from turnback.coordinator import Committer, Fence, JobDirectory
from turnback.core.errors import TurnbackError
from turnback.graph import NodeKind
from turnback.planner import Plan
from turnback.runtime.sinkrecord import record_sinks
from turnback.sinks import CommitterContext

_LOG = logging.getLogger(__name__)


class JobSinks:
    """Commits and rolls back what the tasks of a job have prepared.

    Args:
        plan: The program.
        fence: The attempt; it has the right to commit.
        directory: The job directory.
    """

    def __init__(self, plan: Plan, fence: Fence, directory: JobDirectory) -> None:
        self._attempt = fence.attempt
        self._directory = directory
        operators = [op for op in plan.operators() if op.kind is NodeKind.SINK]
        self._sinks = {op.uid: op.function for op in operators}
        self.committers: dict[str, Committer] = {
            op.uid: op.function.committer(
                CommitterContext(
                    job=fence.job,
                    job_id=fence.job_id,
                    uid=op.uid,
                    attempt=fence.attempt,
                    type=op.input_type,
                )
            )
            for op in operators
        }

    def settle(self, promised: Mapping[str, tuple[bytes, ...]]) -> None:
        """Commit what the snapshot has promised, and roll back what else older attempts left.

        Args:
            promised: Transactions by the uid of the sink that commits them.
        """
        for uid, committer in self.committers.items():
            committer.recover(promised.get(uid, ()))
        # Written down after that: what older attempts left is settled by what they wrote down.
        record_sinks(self._directory, self._attempt, self._sinks)

    def roll_back(self, prepared: Mapping[str, tuple[bytes, ...]]) -> None:
        """Leave nothing of an epoch that was refused; the next attempt would find it as well."""
        for uid, transactions in prepared.items():
            try:
                self.committers[uid].abort(transactions)
            except TurnbackError as e:
                _LOG.warning("sink %r could not roll back: %s", uid, e)
