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
        take_over: Whether targets that belong to other jobs become this job's.

    Raises:
        ConfigurationError: A target belongs to another job; none has been written to.
    """

    def __init__(
        self, plan: Plan, fence: Fence, directory: JobDirectory, *, take_over: bool
    ) -> None:
        self._attempt = fence.attempt
        self._directory = directory
        operators = [op for op in plan.operators() if op.kind is NodeKind.SINK]
        self._sinks = {op.uid: op.function for op in operators}
        contexts = {
            op.uid: CommitterContext(
                job=fence.job,
                job_id=fence.job_id,
                uid=op.uid,
                attempt=fence.attempt,
                type=op.input_type,
                job_directory=directory.storage.uri,
                take_over=take_over,
            )
            for op in operators
        }
        # All of them before one is used: a target that is another job's is left as it is.
        for uid, sink in self._sinks.items():
            sink.claim(contexts[uid])
        self.committers: dict[str, Committer] = {
            uid: sink.committer(contexts[uid]) for uid, sink in self._sinks.items()
        }

    def record(self) -> None:
        """Write down what the sinks are, so that what they prepare can be settled by hand.

        To be called when all have recovered: what older attempts left is settled by what those
        have written down.
        """
        record_sinks(self._directory, self._attempt, self._sinks)

    def roll_back(self, prepared: Mapping[str, tuple[bytes, ...]]) -> None:
        """Leave nothing of an epoch that was refused; the next attempt would find it as well."""
        for uid, transactions in prepared.items():
            try:
                self.committers[uid].abort(transactions)
            except TurnbackError as e:
                _LOG.warning("sink %r could not roll back: %s", uid, e)
