"""The sinks of a program on the driver, in one attempt."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from turnback.coordinator import Committer, Fence, JobDirectory
from turnback.core.errors import TurnbackError
from turnback.graph import NodeKind
from turnback.planner import Operator, Plan
from turnback.runtime.sinkrecord import record_sinks
from turnback.sinks import CommitterContext

_LOG = logging.getLogger(__name__)


def claim_targets(
    plan: Plan, directory: JobDirectory, job_id: str, attempt: int = 0, *, take_over: bool = False
) -> dict[str, CommitterContext]:
    """Make the targets of all sinks this job's; returns who commits, by the sink's uid.

    Args:
        plan: The program.
        directory: The job directory.
        job_id: The job's identity; empty if it is yet to be created.
        attempt: The attempt; 0 before there is one.
        take_over: Whether targets that belong to other jobs become this job's.

    Raises:
        ConfigurationError: A target belongs to another job.
    """
    sinks = sink_operators(plan)
    contexts = {
        op.uid: CommitterContext(
            job=directory.name,
            job_id=job_id,
            uid=op.uid,
            attempt=attempt,
            type=op.input_type,
            job_directory=directory.storage.uri,
            take_over=take_over,
        )
        for op in sinks
    }
    # All of them first: a job that is refused must not own any target.
    for op in sinks:
        op.function.check_claim(contexts[op.uid])
    for op in sinks:
        op.function.claim(contexts[op.uid])
    return contexts


def sink_operators(plan: Plan) -> list[Operator]:
    """The sinks of a program."""
    return [op for op in plan.operators() if op.kind is NodeKind.SINK]


class JobSinks:
    """Commits and rolls back what the tasks of a job have prepared.

    Args:
        plan: The program.
        fence: The attempt; it has the right to commit.
        directory: The job directory.

    Raises:
        ConfigurationError: Another job has taken over a target.
    """

    def __init__(self, plan: Plan, fence: Fence, directory: JobDirectory) -> None:
        self._attempt = fence.attempt
        self._directory = directory
        self._sinks = {op.uid: op.function for op in sink_operators(plan)}
        contexts = claim_targets(plan, directory, fence.job_id, fence.attempt)
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
