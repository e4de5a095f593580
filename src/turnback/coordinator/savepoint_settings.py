from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from turnback.coordinator.option import (
    Option,
    choice,
    count,
    duration,
    duration_text,
    flag,
    read_options,
    spellings,
    text,
)
from turnback.coordinator.schedule import MINIMUM_MS, SavepointSchedule, check_timezone
from turnback.core.errors import ConfigurationError


class SavepointFormat(StrEnum):
    """How a savepoint is written."""

    CANONICAL = "canonical"
    """As tables: for any program, backend and parallelism, and for people."""
    NATIVE = "native"
    """As copies of the state files: quicker, for Turnback only."""


@dataclass(frozen=True)
class SavepointSettings:
    """Where, when and how savepoints are taken.

    Attributes:
        directory: Where they go when a request names no directory.
        interval_ms: Time between two scheduled ones.
        cron: When scheduled ones are taken, as a cron expression; instead of the interval.
        timezone: The time zone of the cron expression.
        keep: How many scheduled ones are kept.
        on_stop: Whether a stop takes one unless the user declines.
        format: How they are written.
    """

    directory: str | None = None
    interval_ms: int | None = None
    cron: str | None = None
    timezone: str = "UTC"
    keep: int = 3
    on_stop: bool = True
    format: SavepointFormat = SavepointFormat.CANONICAL

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or self.keep < 1:
            raise ConfigurationError(
                f"savepoints.schedule.keep is {self.keep!r}: it must be at least 1"
            )
        if self.directory is not None and not self.directory.strip():
            raise ConfigurationError("state.savepoints.dir is empty: name a directory")
        if self.interval_ms is not None and self.cron is not None:
            raise ConfigurationError(
                "savepoints.schedule.interval and savepoints.schedule.cron are both set: keep one "
                "of them"
            )
        check_timezone(self.timezone)
        if self.schedule is not None and self.directory is None:
            raise ConfigurationError(
                "scheduled savepoints need a place to go: set state.savepoints.dir"
            )

    @property
    def schedule(self) -> SavepointSchedule | None:
        """When savepoints are taken by themselves; `None` for never."""
        if self.interval_ms is None and self.cron is None:
            return None
        return SavepointSchedule(self.interval_ms, self.cron, self.timezone)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> SavepointSettings:
        """Read the settings from configuration keys; keys of other parts are ignored.

        Raises:
            ConfigurationError: A value cannot be used, or two of them contradict each other.
        """
        return cls(**read_options(SAVEPOINT_OPTIONS, configuration))


def _cron(key: str, value: Any) -> str:
    return SavepointSchedule(cron=text(key, value)).cron or ""


def _timezone(key: str, value: Any) -> str:
    name = text(key, value)
    check_timezone(name)
    return name


SAVEPOINT_OPTIONS = (
    Option(
        "state.savepoints.dir",
        text,
        "Where savepoints go when nobody names a directory: a path or a URI.",
        field="directory",
        aliases=("execution.checkpointing.savepoint-dir",),
    ),
    Option(
        "savepoints.schedule.interval",
        duration(MINIMUM_MS, "; leave it out for none"),
        "Time between two savepoints that are taken by themselves.",
        field="interval_ms",
        write=duration_text,
    ),
    Option(
        "savepoints.schedule.cron",
        _cron,
        "When savepoints are taken by themselves, as a cron expression of five fields; instead of "
        "the interval.",
        field="cron",
    ),
    Option(
        "savepoints.schedule.timezone",
        _timezone,
        "Time zone of the cron expression.",
        default="UTC",
        field="timezone",
    ),
    Option(
        "savepoints.schedule.keep",
        count(1),
        "How many scheduled savepoints are kept; those that people asked for always are.",
        default="3",
        field="keep",
    ),
    Option(
        "savepoints.on-stop",
        flag,
        "Whether stopping a job takes a savepoint unless told otherwise.",
        default="true",
        field="on_stop",
    ),
    Option(
        "savepoints.format",
        choice(SavepointFormat),
        "How savepoints are written: `canonical` for any backend and for people, `native` for "
        "speed.",
        default="canonical",
        field="format",
    ),
)
"""Every configuration key that is read here."""

SAVEPOINT_KEYS = spellings(SAVEPOINT_OPTIONS)
"""All their names."""
