"""When savepoints are taken by themselves, and which of those may go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

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
from turnback.core.errors import ConfigurationError

MINIMUM_MS = 1_000
_NEVER = 2**63 - 1
# What `datetime` can hold, with room for the years a search may take.
_LATEST_MS = 200_000_000_000_000
_EXAMPLE = "for example '0 3 * * *' for every day at 3:00 or '*/30 * * * MON-FRI'"


@dataclass(frozen=True)
class SavepointSchedule:
    """Either an interval, or a cron expression of five fields in a time zone.

    Attributes:
        interval_ms: Time between two savepoints.
        cron: Minute, hour, day of month, month, day of week.
        timezone: The time zone of the cron expression.

    Raises:
        ConfigurationError: None or both are given, or one of them cannot be used.
    """

    interval_ms: int | None = None
    cron: str | None = None
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if (self.interval_ms is None) == (self.cron is None):
            raise ConfigurationError(
                "a schedule needs savepoints.schedule.interval or savepoints.schedule.cron: give "
                "one of them"
            )
        if self.interval_ms is not None and self.interval_ms < MINIMUM_MS:
            raise ConfigurationError(
                f"savepoints.schedule.interval is {self.interval_ms} ms: it must be at least "
                f"{MINIMUM_MS} ms; leave it out for none"
            )
        check_timezone(self.timezone)
        if self.cron is not None:
            _check_cron(self.cron)

    def due(self, last_ms: int, now_ms: int) -> bool:
        """Say whether a savepoint is to be taken now.

        However many runs were missed, one makes up for them: it becomes the last. A clock that
        was set back makes the next one late, never early. A driver that starts counts from
        `min(last, now)`, so that a last savepoint in the future cannot switch the schedule off.

        Args:
            last_ms: When the last scheduled savepoint was taken or tried; if there was none, when
                the job was created.
            now_ms: The time.
        """
        return now_ms >= self.next_after(last_ms)

    def next_after(self, ms: int) -> int:
        """Return the first time after this one at which a savepoint is due."""
        if self.interval_ms is not None:
            return ms + self.interval_ms
        assert self.cron is not None
        start = min(max(ms, 0), _LATEST_MS)
        moment = datetime.fromtimestamp(start // 1000, ZoneInfo(self.timezone))
        for due in CronSim(self.cron, moment):
            # An hour that a change of the clocks repeats can give a time that has passed.
            if (at := round(due.timestamp() * 1000)) > start:
                return at
        return _NEVER


def check_timezone(name: str) -> None:
    """Raise `ConfigurationError` if there is no such time zone."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(
            f"savepoints.schedule.timezone is {name!r}, which is no time zone; for example 'UTC' "
            "or 'Europe/Berlin'"
        ) from None


def _check_cron(expression: str) -> None:
    fields = expression.split()
    if len(fields) != 5:
        raise _bad_cron(expression, f"it has {len(fields)} fields, not 5")
    try:
        simulated = CronSim(expression, datetime(2000, 1, 1))
    except (CronSimError, AssertionError, ValueError) as error:
        reason = str(error) or "it cannot be understood"
        raise _bad_cron(expression, reason[0].lower() + reason[1:]) from None
    if next(simulated, None) is None:
        raise _bad_cron(expression, "that day never comes")


def _bad_cron(expression: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"savepoints.schedule.cron is {expression!r}: {reason}; {_EXAMPLE}")


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
        check_fields(SAVEPOINT_OPTIONS, self)
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
    check_timezone(str(value))
    return str(value)


SAVEPOINT_OPTIONS = (
    Option(
        "state.savepoints.dir",
        text,
        "Where savepoints go when nobody names a directory: a path or a URI.",
        field="directory",
        aliases=("execution.checkpointing.savepoint-dir",),
    ),
    duration_option(
        "savepoints.schedule.interval",
        "Time between two savepoints that are taken by themselves.",
        None,
        "interval_ms",
        MINIMUM_MS,
        "; leave it out for none",
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
        "UTC",
        "timezone",
    ),
    Option(
        "savepoints.schedule.keep",
        count(1),
        "How many scheduled savepoints are kept; those that people asked for always are.",
        "3",
        "keep",
    ),
    Option(
        "savepoints.on-stop",
        flag,
        "Whether stopping a job takes a savepoint unless told otherwise.",
        "true",
        "on_stop",
    ),
    Option(
        "savepoints.format",
        choice(SavepointFormat),
        "How savepoints are written: `canonical` for any backend and for people, `native` for "
        "speed.",
        "canonical",
        "format",
    ),
)
