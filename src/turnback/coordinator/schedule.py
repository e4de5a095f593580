"""When savepoints are taken by themselves, and which of those may go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from turnback.coordinator.catalog import SavepointEntry
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
        for found in CronSim(self.cron, moment):
            # An hour that a change of the clocks repeats can give a time that has passed.
            if (at := round(found.timestamp() * 1000)) > start:
                return at
        return _NEVER


def surplus(savepoints: Sequence[SavepointEntry], keep: int) -> list[SavepointEntry]:
    """Return which scheduled savepoints may go so that the newest `keep` of them stay.

    What a user asked for is never among them, nor is the newest savepoint of all.

    Args:
        savepoints: Oldest first, as `SavepointCatalog.list` returns them.
        keep: How many scheduled ones stay; at least one does.
    """
    scheduled = [entry for entry in savepoints if entry.scheduled]
    return scheduled[: -max(keep, 1)]


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
