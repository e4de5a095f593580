"""Event time as the user describes it: where timestamps come from, and how late elements may be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol

from turnback.errors import PlanError
from turnback.values.typeinfo import BasicTypeInfo, RowTypeInfo, TypeInfo

MIN_TIME = -(2**63)
"""No timestamp, or a watermark before all others; PyFlink's `MIN_WATERMARK`."""
MAX_TIME = 2**63 - 1
"""The watermark after which nothing comes; PyFlink's `MAX_WATERMARK`."""
FURTHEST_TIME = (2**63 - 1) // 1000
"""Timestamps lie between this and its opposite, as far as Spark's do: some 292,000 years.

So there is room around them for bounds, windows and lateness, and no sum of them overflows.
"""


def within_reach(time: int) -> int:
    """A timestamp that windows can be made of, for one that may be at an end of time.

    Such as that of a global window, or of a timer that waits for the end.
    """
    return min(max(time, -FURTHEST_TIME), FURTHEST_TIME)


_COLUMN_TYPES = ("long", "int", "timestamp", "instant")


class TimeDomain(Enum):
    """Which clock a timer goes by."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time in whole milliseconds; PyFlink's name."""

    millis: int

    @classmethod
    def of_days(cls, days: int) -> Duration:
        return cls(days * 86_400_000)

    @classmethod
    def of_hours(cls, hours: int) -> Duration:
        return cls(hours * 3_600_000)

    @classmethod
    def of_minutes(cls, minutes: int) -> Duration:
        return cls(minutes * 60_000)

    @classmethod
    def of_seconds(cls, seconds: int) -> Duration:
        return cls(seconds * 1_000)

    @classmethod
    def of_millis(cls, millis: int) -> Duration:
        return cls(millis)

    def to_milliseconds(self) -> int:
        return self.millis


class Time(Duration):
    """A length of time, by the names that windows are given in PyFlink."""

    @classmethod
    def days(cls, days: int) -> Time:
        return cls(days * 86_400_000)

    @classmethod
    def hours(cls, hours: int) -> Time:
        return cls(hours * 3_600_000)

    @classmethod
    def minutes(cls, minutes: int) -> Time:
        return cls(minutes * 60_000)

    @classmethod
    def seconds(cls, seconds: int) -> Time:
        return cls(seconds * 1_000)

    @classmethod
    def milliseconds(cls, milliseconds: int) -> Time:
        return cls(milliseconds)


def as_milliseconds(given: Any, what: str, *, least: int = 0) -> int:
    """The milliseconds of a `Duration`, a `Time` or a `timedelta`."""
    if isinstance(given, timedelta):
        given = Duration(given // timedelta(milliseconds=1))
    if not isinstance(given, Duration) or isinstance(given.millis, bool):
        raise PlanError(
            f"{what} must be a Duration, a Time or a timedelta, such as Duration.of_seconds(5), "
            f"got {given!r}"
        )
    if not isinstance(given.millis, int) or given.millis < least:
        raise PlanError(f"{what} must be {least} ms or more, got {given.millis!r} ms")
    return given.millis


class TimestampAssigner(ABC):
    """Gives elements their event time."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the event time of an element, in milliseconds since 1970.

        Args:
            value: The element.
            record_timestamp: Its timestamp so far, `MIN_TIME` if it has none.
        """


@dataclass(frozen=True)
class WatermarkStrategy:
    """How a stream gets its timestamps, and how late elements may be.

    A watermark says that no element with a smaller or equal timestamp is expected any more. After
    every element it is the greatest timestamp so far, minus the bound, minus one millisecond.

    Attributes:
        bound_ms: How much later than others an element may arrive; None for no watermarks.
        assigner: A `TimestampAssigner`, a function of the element, or the name of a column.
        idle_ms: Time without elements after which watermarks no longer wait for a partition; None
            for no limit.
    """

    bound_ms: int | None
    assigner: TimestampAssigner | Callable[..., int] | str | None = None
    idle_ms: int | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """For timestamps that only increase."""
        return WatermarkStrategy(0)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Duration) -> WatermarkStrategy:
        """For elements that arrive out of order by at most this duration."""
        return WatermarkStrategy(as_milliseconds(max_out_of_orderness, "max_out_of_orderness"))

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """For timestamps without watermarks: no event-time timer or window ever fires."""
        return WatermarkStrategy(None)

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | str
    ) -> WatermarkStrategy:
        """Take timestamps from a `TimestampAssigner`, or from a column.

        A column of integers is in milliseconds since 1970; a column of timestamps without a zone is
        in UTC. No Python runs for a column.
        """
        given = timestamp_assigner
        if isinstance(given, type) and issubclass(given, TimestampAssigner):
            raise PlanError(f"with_timestamp_assigner takes an instance; write {given.__name__}()")
        if not isinstance(given, TimestampAssigner | str):
            raise PlanError(
                f"with_timestamp_assigner takes a TimestampAssigner or the name of a column, got "
                f"{type(given).__name__}"
            )
        return replace(self, assigner=given)

    def with_idleness(self, idle_timeout: Duration) -> WatermarkStrategy:
        """Stop waiting for partitions that have had no elements for this long."""
        return replace(self, idle_ms=as_milliseconds(idle_timeout, "idle_timeout", least=1))

    def check(self, type: TypeInfo) -> None:
        """Refuse a column that does not exist in a stream, or that has no timestamps."""
        if self.assigner is None:
            raise PlanError(
                "the watermark strategy has no timestamps: add .with_timestamp_assigner(...) "
                "with the name of a column or a TimestampAssigner"
            )
        if not isinstance(self.assigner, str):
            return
        fields = dict(type.fields()) if isinstance(type, RowTypeInfo) else {"value": type}
        column = fields.get(self.assigner)
        if column is None:
            raise PlanError(f"there is no column {self.assigner!r}; the columns are {list(fields)}")
        if not isinstance(column, BasicTypeInfo) or column.name not in _COLUMN_TYPES:
            raise PlanError(
                f"the column {self.assigner!r} of {column} cannot provide timestamps: it must "
                "contain timestamps, or milliseconds since 1970 as whole numbers"
            )


class TimerService(Protocol):
    """Where a function learns what time it is, and registers timers for the current key."""

    def current_processing_time(self) -> int:
        """The time of the clock, in milliseconds since 1970; the same during an epoch."""

    def current_watermark(self) -> int:
        """How far event time has come, in milliseconds since 1970."""

    def register_event_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called when the watermark has reached a time; once per key and time."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called when the clock has reached a time; once per key and time."""

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take a timer back; nothing happens if there is none."""

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Take a timer back; nothing happens if there is none."""
