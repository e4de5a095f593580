"""What people see of jobs and snapshots: plain data, the same on the command line and in the page.

Times are milliseconds since 1970 by the clock of the driver that wrote them, sizes are bytes.
"""

from turnback.ops.model.checkpoint import (
    CheckpointHistory,
    CheckpointRow,
    CheckpointStatus,
    Distribution,
)
from turnback.ops.model.difference import DiffPage, DiffRow, StateDiffRow
from turnback.ops.model.failure import FailureRow
from turnback.ops.model.job import JobDetail, JobSummary, OperatorNode, Process
from turnback.ops.model.request import RequestRow
from turnback.ops.model.savepoint import SavepointRow
from turnback.ops.model.setting import ConfigRow
from turnback.ops.model.snapshot import SnapshotView, StatePage, StateRow
from turnback.ops.model.timeline import StartedFrom, Timeline, TimelineAttempt, TimelineJob
from turnback.ops.model.view import View

__all__ = [
    "CheckpointHistory",
    "CheckpointRow",
    "CheckpointStatus",
    "ConfigRow",
    "DiffPage",
    "DiffRow",
    "Distribution",
    "FailureRow",
    "JobDetail",
    "JobSummary",
    "OperatorNode",
    "Process",
    "RequestRow",
    "SavepointRow",
    "SnapshotView",
    "StartedFrom",
    "StateDiffRow",
    "StatePage",
    "StateRow",
    "Timeline",
    "TimelineAttempt",
    "TimelineJob",
    "View",
]
