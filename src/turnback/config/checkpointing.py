"""When and how checkpoints are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from turnback.config.option import (
    Option,
    check_fields,
    choice,
    count,
    duration_option,
    flag,
    read_options,
    text,
)

_MINIMUM_MS = 10


class CheckpointingMode(Enum):
    """What a failure may do to the output."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class ExternalizedCheckpointRetention(Enum):
    """What becomes of the checkpoints when the job is cancelled."""

    RETAIN_ON_CANCELLATION = "retain-on-cancellation"
    DELETE_ON_CANCELLATION = "delete-on-cancellation"


class CheckpointStorage(Enum):
    """Where the bytes of a checkpoint go."""

    JOBMANAGER = "jobmanager"
    FILESYSTEM = "filesystem"


@dataclass(frozen=True)
class CheckpointSettings:
    """When and how checkpoints are taken.

    Attributes:
        interval_ms: Time between two checkpoints; `None` switches them off.
        mode: Exactly-once, or at-least-once for lower latency.
        timeout_ms: A checkpoint that takes longer is discarded.
        min_pause_ms: Least time from the end of one to the start of the next.
        max_concurrent: How many may be under way at once; 1 when `min_pause_ms` is set.
        tolerable_failures: How many may fail in a row before the job fails.
        num_retained: How many complete checkpoints are kept.
        retention: What becomes of them when the job is cancelled.
        incremental: Kept for programs that set it; checkpoints always are.
        storage: Where state goes; `None` lets the state backend say.
        directory: Root of the job directories.
    """

    interval_ms: int | None = None
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    num_retained: int = 1
    retention: ExternalizedCheckpointRetention = (
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    incremental: bool = True
    storage: CheckpointStorage | None = None
    directory: str | None = None

    def __post_init__(self) -> None:
        check_fields(CHECKPOINT_OPTIONS, self)
        if self.min_pause_ms > 0:
            object.__setattr__(self, "max_concurrent", 1)

    @property
    def enabled(self) -> bool:
        return self.interval_ms is not None

    @property
    def commits_every_epoch(self) -> bool:
        """Whether sinks commit at the end of each epoch, without waiting for a checkpoint."""
        return not self.enabled or self.mode is CheckpointingMode.AT_LEAST_ONCE

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> CheckpointSettings:
        """Read the settings from configuration keys; keys of other parts are ignored.

        Raises:
            ConfigurationError: A value cannot be used, or two spellings of a key disagree.
        """
        return cls(**read_options(CHECKPOINT_OPTIONS, configuration))


_CHECKPOINTING = "execution.checkpointing"

CHECKPOINT_OPTIONS = (
    duration_option(
        f"{_CHECKPOINTING}.interval",
        "Time between the starts of two checkpoints; none are taken when it is not set.",
        None,
        "interval_ms",
        _MINIMUM_MS,
        "; leave it out for none",
    ),
    Option(
        f"{_CHECKPOINTING}.mode",
        choice(CheckpointingMode),
        "`exactly-once`, or `at-least-once` for lower latency and duplicates after a failure.",
        "exactly-once",
        "mode",
    ),
    duration_option(
        f"{_CHECKPOINTING}.timeout",
        "A checkpoint that takes longer is discarded.",
        "10 min",
        "timeout_ms",
        _MINIMUM_MS,
    ),
    duration_option(
        f"{_CHECKPOINTING}.min-pause",
        "Least time from the end of one checkpoint to the start of the next; when it is above 0, "
        "only one is under way at a time.",
        "0 ms",
        "min_pause_ms",
    ),
    Option(
        f"{_CHECKPOINTING}.max-concurrent-checkpoints",
        count(1),
        "How many checkpoints may be under way at once.",
        "1",
        "max_concurrent",
    ),
    Option(
        f"{_CHECKPOINTING}.tolerable-failed-checkpoints",
        count(0),
        "How many checkpoints may fail in a row before the job fails.",
        "0",
        "tolerable_failures",
    ),
    Option(
        f"{_CHECKPOINTING}.num-retained",
        count(1),
        "How many complete checkpoints are kept.",
        "1",
        "num_retained",
        aliases=("state.checkpoints.num-retained",),
    ),
    Option(
        f"{_CHECKPOINTING}.externalized-checkpoint-retention",
        choice(ExternalizedCheckpointRetention),
        "What becomes of the checkpoints when the job is cancelled: `retain-on-cancellation` or "
        "`delete-on-cancellation`.",
        "retain-on-cancellation",
        "retention",
    ),
    Option(
        f"{_CHECKPOINTING}.incremental",
        flag,
        "Accepted for programs that set it: checkpoints always are incremental.",
        "true",
        "incremental",
        aliases=("state.backend.incremental",),
    ),
    Option(
        f"{_CHECKPOINTING}.storage",
        choice(CheckpointStorage),
        "Where the bytes of checkpoints go: `filesystem`, or `jobmanager` for the driver's memory; "
        "when it is not set, the state backend says.",
        field="storage",
        aliases=("state.checkpoint-storage",),
    ),
    Option(
        "state.checkpoints.dir",
        text,
        "Where job directories are, with their checkpoints: a path, or a URI such as "
        "`s3://bucket/jobs`.",
        "~/.turnback/jobs",
        "directory",
        aliases=(f"{_CHECKPOINTING}.dir",),
    ),
)
