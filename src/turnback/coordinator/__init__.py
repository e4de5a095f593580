"""Checkpoints: when they are taken, what makes them durable, and how a job starts from one."""

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
from turnback.coordinator.process import ProcessId
from turnback.coordinator.restart import (
    RESTART_KEYS,
    RestartStrategies,
    RestartStrategy,
    RestartStrategyConfiguration,
    choose_restart,
)
from turnback.coordinator.status import JobState, Status
from turnback.coordinator.verify import Problem, verify

__all__ = [
    "CHECKPOINT_KEYS",
    "HEARTBEAT_S",
    "RESTART_KEYS",
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
    "EpochCut",
    "Event",
    "ExternalizedCheckpointRetention",
    "Fence",
    "History",
    "InlineLane",
    "JobDirectory",
    "JobEnded",
    "JobInfo",
    "JobState",
    "Lane",
    "LogFile",
    "Manifest",
    "OperatorInfo",
    "Problem",
    "ProcessId",
    "Record",
    "RestartStrategies",
    "RestartStrategy",
    "RestartStrategyConfiguration",
    "Restarting",
    "ResumePoint",
    "SourcePosition",
    "Status",
    "ThreadLane",
    "choose_restart",
    "read_history",
    "resolve",
    "resume_point",
    "slot_path",
    "split_slot_path",
    "verify",
]
