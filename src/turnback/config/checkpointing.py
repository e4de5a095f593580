"""When and how checkpoints are taken."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turnback.config.option import (
    Settings,
    choice,
    count,
    duration_field,
    flag,
    option_field,
    text,
)

_CHECKPOINTING = "execution.checkpointing"
_MINIMUM_MS = 10


class CheckpointingMode(Enum):
    """What guarantee the output has after a failure."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class ExternalizedCheckpointRetention(Enum):
    """What happens to checkpoints when the job is cancelled."""

    RETAIN_ON_CANCELLATION = "retain-on-cancellation"
    DELETE_ON_CANCELLATION = "delete-on-cancellation"


class CheckpointStorage(Enum):
    """Where checkpoints are stored."""

    JOBMANAGER = "jobmanager"
    FILESYSTEM = "filesystem"


@dataclass(frozen=True)
class CheckpointSettings(Settings):
    """When and how checkpoints are taken."""

    interval_ms: int | None = duration_field(
        f"{_CHECKPOINTING}.interval",
        "Time between the starts of two checkpoints; none are taken when it is not set.",
        least=_MINIMUM_MS,
        hint="; leave it out for none",
    )
    mode: CheckpointingMode = option_field(
        f"{_CHECKPOINTING}.mode",
        choice(CheckpointingMode),
        "`exactly-once`, or `at-least-once` for lower latency and duplicates after a failure.",
        "exactly-once",
    )
    timeout_ms: int = duration_field(
        f"{_CHECKPOINTING}.timeout",
        "A checkpoint that takes longer is discarded.",
        "10 min",
        _MINIMUM_MS,
    )
    min_pause_ms: int = duration_field(
        f"{_CHECKPOINTING}.min-pause",
        "Minimum time between the end of one checkpoint and the start of the next; above 0, only "
        "one checkpoint is in progress at a time.",
        "0 ms",
    )
    max_concurrent: int = option_field(
        f"{_CHECKPOINTING}.max-concurrent-checkpoints",
        count(1),
        "How many checkpoints may be in progress at once.",
        "1",
    )
    tolerable_failures: int = option_field(
        f"{_CHECKPOINTING}.tolerable-failed-checkpoints",
        count(0),
        "How many checkpoints may fail in a row before the job fails.",
        "0",
    )
    num_retained: int = option_field(
        f"{_CHECKPOINTING}.num-retained",
        count(1),
        "How many complete checkpoints are retained.",
        "1",
        aliases=("state.checkpoints.num-retained",),
    )
    retention: ExternalizedCheckpointRetention = option_field(
        f"{_CHECKPOINTING}.externalized-checkpoint-retention",
        choice(ExternalizedCheckpointRetention),
        "What happens to checkpoints when the job is cancelled: `retain-on-cancellation` or "
        "`delete-on-cancellation`.",
        "retain-on-cancellation",
    )
    incremental: bool = option_field(
        f"{_CHECKPOINTING}.incremental",
        flag,
        "Accepted for programs that set it: checkpoints always are incremental.",
        "true",
        aliases=("state.backend.incremental",),
    )
    storage: CheckpointStorage | None = option_field(
        f"{_CHECKPOINTING}.storage",
        choice(CheckpointStorage),
        "Where checkpoints are stored: `filesystem`, or `jobmanager` for the driver's memory; when "
        "it is not set, the state backend decides.",
        aliases=("state.checkpoint-storage",),
    )
    directory: str = option_field(
        "state.checkpoints.dir",
        text,
        "Where job directories are, with their checkpoints: a path, or a URI such as "
        "`s3://bucket/jobs`.",
        "~/.turnback/jobs",
        aliases=(f"{_CHECKPOINTING}.dir",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_pause_ms > 0:
            object.__setattr__(self, "max_concurrent", 1)

    @property
    def enabled(self) -> bool:
        return self.interval_ms is not None

    @property
    def commits_every_epoch(self) -> bool:
        """Whether sinks commit at the end of each epoch, without waiting for a checkpoint."""
        return not self.enabled or self.mode is CheckpointingMode.AT_LEAST_ONCE
