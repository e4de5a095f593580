"""Settings of checkpoints and savepoints."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from turnback.config.option import Settings, choice, count, duration_field, flag, option_field, text
from turnback.errors import ConfigurationError

_CHECKPOINTING = "execution.checkpointing"
_MINIMUM_MS = 10


class CheckpointingMode(Enum):
    """The guarantee for the output after a failure."""

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
        "Time between the starts of two checkpoints. If not set, no checkpoints are taken.",
        least=_MINIMUM_MS,
        hint="; omit it to disable them",
    )
    mode: CheckpointingMode = option_field(
        f"{_CHECKPOINTING}.mode",
        choice(CheckpointingMode),
        "`exactly-once`, or `at-least-once` for lower latency, with duplicates after a failure.",
        "exactly-once",
    )
    timeout_ms: int = duration_field(
        f"{_CHECKPOINTING}.timeout",
        "A checkpoint that takes longer than this is discarded.",
        "10 min",
        _MINIMUM_MS,
    )
    min_pause_ms: int = duration_field(
        f"{_CHECKPOINTING}.min-pause",
        "Minimum time between the end of one checkpoint and the start of the next; if above 0, "
        "only one checkpoint is in progress at a time.",
        "0 ms",
    )
    max_concurrent: int = option_field(
        f"{_CHECKPOINTING}.max-concurrent-checkpoints",
        count(1),
        "Maximum number of checkpoints in progress at the same time.",
        "1",
    )
    tolerable_failures: int = option_field(
        f"{_CHECKPOINTING}.tolerable-failed-checkpoints",
        count(0),
        "Number of consecutive checkpoint failures that the job tolerates.",
        "0",
    )
    num_retained: int = option_field(
        f"{_CHECKPOINTING}.num-retained",
        count(1),
        "Number of complete checkpoints to retain.",
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
        "Accepted for compatibility: checkpoints are always incremental.",
        "true",
        aliases=("state.backend.incremental",),
    )
    storage: CheckpointStorage | None = option_field(
        f"{_CHECKPOINTING}.storage",
        choice(CheckpointStorage),
        "Where checkpoints are stored: `filesystem`, or `jobmanager` for the driver's memory. "
        "If not set, the state backend decides.",
        aliases=("state.checkpoint-storage",),
    )
    directory: str = option_field(
        "state.checkpoints.dir",
        text,
        "Directory that holds all jobs with their checkpoints: a path, or a URI such as "
        "`s3://bucket/jobs` or `hdfs://namenode:8020/jobs`.",
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


_NEVER = 2**63 - 1
# What `datetime` can hold, with room for the years a search may take.
_LATEST_MS = 200_000_000_000_000
_EXAMPLE = "for example '0 3 * * *' for every day at 3:00 or '*/30 * * * MON-FRI'"


def _cron(key: str, value: Any) -> str:
    expression = str(value)
    fields = expression.split()
    if len(fields) != 5:
        raise _bad_cron(key, expression, f"it has {len(fields)} fields, not 5")
    try:
        simulated = CronSim(expression, datetime(2000, 1, 1))
    except (CronSimError, AssertionError, ValueError) as error:
        reason = str(error) or "it is not a valid cron expression"
        raise _bad_cron(key, expression, reason[0].lower() + reason[1:]) from None
    if next(simulated, None) is None:
        raise _bad_cron(key, expression, "that day never occurs")
    return expression


def _bad_cron(key: str, expression: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{key} is {expression!r}: {reason}; {_EXAMPLE}")


def _timezone(key: str, value: Any) -> str:
    name = str(value)
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(
            f"{key} is {name!r}, which is not a time zone; use for example 'UTC' or 'Europe/Berlin'"
        ) from None
    return name


class SavepointFormat(StrEnum):
    """How a savepoint is written."""

    CANONICAL = "canonical"
    """As tables: for any program, backend and parallelism, and for people."""
    NATIVE = "native"
    """As copies of the state files: quicker, for Turnback only."""


@dataclass(frozen=True)
class SavepointSettings(Settings):
    """Where, when and how savepoints are taken."""

    directory: str | None = option_field(
        "state.savepoints.dir",
        text,
        "Default directory for savepoints: a path or a URI.",
        aliases=("execution.checkpointing.savepoint-dir",),
    )
    interval_ms: int | None = duration_field(
        "savepoints.schedule.interval",
        "Time between two scheduled savepoints.",
        least=1_000,
        hint="; omit it to disable them",
    )
    cron: str | None = option_field(
        "savepoints.schedule.cron",
        _cron,
        "When scheduled savepoints are taken, as a cron expression of five fields. Alternative "
        "to the interval.",
    )
    timezone: str = option_field(
        "savepoints.schedule.timezone", _timezone, "Time zone of the cron expression.", "UTC"
    )
    keep: int = option_field(
        "savepoints.schedule.keep",
        count(1),
        "Number of scheduled savepoints to retain. Savepoints taken on request are always "
        "retained.",
        "3",
    )
    on_stop: bool = option_field(
        "savepoints.on-stop",
        flag,
        "Whether stopping a job takes a savepoint by default.",
        "true",
    )
    format: SavepointFormat = option_field(
        "savepoints.format",
        choice(SavepointFormat),
        "Format of savepoints: `canonical`, readable by any backend and tool, or `native` for "
        "speed.",
        "canonical",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval_ms is not None and self.cron is not None:
            raise ConfigurationError(
                "savepoints.schedule.interval and savepoints.schedule.cron are both set: keep one "
                "of them"
            )
        if self.is_scheduled and self.directory is None:
            raise ConfigurationError(
                "scheduled savepoints need a directory: set state.savepoints.dir"
            )

    @property
    def is_scheduled(self) -> bool:
        return self.interval_ms is not None or self.cron is not None

    def is_due(self, last_ms: int, now_ms: int) -> bool:
        """Return whether a scheduled savepoint is to be taken now.

        `last_ms` is when the last one was taken or tried, or else when the job was created.
        However many runs were missed, one makes up for them. A clock that was set back makes the
        next one late, never early. A driver that starts counts from `min(last, now)`, so that a
        last savepoint in the future cannot switch the schedule off.
        """
        return now_ms >= self.next_after(last_ms)

    def next_after(self, ms: int) -> int:
        """Return the first time after this one at which a scheduled savepoint is due."""
        if self.interval_ms is not None:
            return ms + self.interval_ms
        if self.cron is None:
            return _NEVER
        start = min(max(ms, 0), _LATEST_MS)
        moment = datetime.fromtimestamp(start // 1000, ZoneInfo(self.timezone))
        for due in CronSim(self.cron, moment):
            # An hour that a change of the clocks repeats can give a time that has passed.
            if (at := round(due.timestamp() * 1000)) > start:
                return at
        return _NEVER
