"""Checkpoints: when they are taken, what makes them durable, and how a job starts from one."""

from turnback.coordinator.catalog import SavepointCatalog, SavepointEntry
from turnback.coordinator.committer import Committer
from turnback.coordinator.completed import CompletedCheckpoint
from turnback.coordinator.config import (
    CHECKPOINT_KEYS,
    CheckpointingMode,
    CheckpointSettings,
    CheckpointStorage,
    ExternalizedCheckpointRetention,
)
from turnback.coordinator.coordinator import CheckpointCoordinator
from turnback.coordinator.cut import EpochCut
from turnback.coordinator.decisions import Decision, Decisions
from turnback.coordinator.event import (
    AttemptStarted,
    CheckpointDone,
    CheckpointFailed,
    Event,
    JobEnded,
    Record,
    Restarting,
)
from turnback.coordinator.find import ResumePoint, resolve, resume_point, split_slot_path
from turnback.coordinator.held import HeldCheckpoint, Holds
from turnback.coordinator.history import History, read_history
from turnback.coordinator.jobdir import HEARTBEAT_S, AttemptInfo, JobDirectory, JobInfo
from turnback.coordinator.lane import InlineLane, Lane, ThreadLane
from turnback.coordinator.log import CheckpointLog, slot_path
from turnback.coordinator.manifest import (
    Fence,
    LogFile,
    Manifest,
    OperatorInfo,
    SourcePosition,
)
from turnback.coordinator.outcomes import answer_ended, answer_leftovers, outcome, recorded
from turnback.coordinator.process import ProcessId
from turnback.coordinator.program import JobProgram, ProgramOperator, ProgramSetting
from turnback.coordinator.request import (
    Progress,
    Request,
    RequestKind,
    RequestOrigin,
    RequestResult,
    RequestState,
)
from turnback.coordinator.requests import Requests
from turnback.coordinator.restart import (
    RESTART_KEYS,
    RestartStrategies,
    RestartStrategy,
    RestartStrategyConfiguration,
    choose_restart,
)
from turnback.coordinator.rundir import RunDirectory, RunEnd, RunError, RunningJob
from turnback.coordinator.savepoint_settings import (
    SAVEPOINT_KEYS,
    SavepointFormat,
    SavepointSettings,
)
from turnback.coordinator.schedule import SavepointSchedule, surplus
from turnback.coordinator.status import JobState, Metrics, Status, UnderWay
from turnback.coordinator.verify import Problem, verify

__all__ = [
    "CHECKPOINT_KEYS",
    "HEARTBEAT_S",
    "RESTART_KEYS",
    "SAVEPOINT_KEYS",
    "AttemptInfo",
    "AttemptStarted",
    "CheckpointCoordinator",
    "CheckpointDone",
    "CheckpointFailed",
    "CheckpointLog",
    "CheckpointSettings",
    "CheckpointStorage",
    "CheckpointingMode",
    "Committer",
    "CompletedCheckpoint",
    "Decision",
    "Decisions",
    "EpochCut",
    "Event",
    "ExternalizedCheckpointRetention",
    "Fence",
    "HeldCheckpoint",
    "History",
    "Holds",
    "InlineLane",
    "JobDirectory",
    "JobEnded",
    "JobInfo",
    "JobProgram",
    "JobState",
    "Lane",
    "LogFile",
    "Manifest",
    "Metrics",
    "OperatorInfo",
    "Problem",
    "ProcessId",
    "ProgramOperator",
    "ProgramSetting",
    "Progress",
    "Record",
    "Request",
    "RequestKind",
    "RequestOrigin",
    "RequestResult",
    "RequestState",
    "Requests",
    "RestartStrategies",
    "RestartStrategy",
    "RestartStrategyConfiguration",
    "Restarting",
    "ResumePoint",
    "RunDirectory",
    "RunEnd",
    "RunError",
    "RunningJob",
    "SavepointCatalog",
    "SavepointEntry",
    "SavepointFormat",
    "SavepointSchedule",
    "SavepointSettings",
    "SourcePosition",
    "Status",
    "ThreadLane",
    "UnderWay",
    "answer_ended",
    "answer_leftovers",
    "choose_restart",
    "outcome",
    "read_history",
    "recorded",
    "resolve",
    "resume_point",
    "slot_path",
    "split_slot_path",
    "surplus",
    "verify",
]
