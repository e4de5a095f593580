"""When a failed job is started again. Pure: the caller brings the time and does the waiting."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count as count_from
from typing import Any, ClassVar

from turnback.config.option import (
    Option,
    Settings,
    count,
    duration_field,
    factor,
    option_field,
    read_options,
)
from turnback.core.units import parse_duration
from turnback.errors import ConfigurationError

RESTART_TYPE = "restart-strategy.type"
RESTART_KINDS = ("fixed-delay", "failure-rate", "exponential-delay")
"""The strategies that have keys of their own, below ``restart-strategy.<kind>.``"""
_UNLIMITED = "unlimited"
_NONE = ("none", "off", "disable")
_JOINED = {kind.replace("-", ""): kind for kind in RESTART_KINDS}


def restart_kind(key: str) -> str | None:
    """The strategy a key is about, `None` for keys that are about none or all of them."""
    group, _, rest = key.partition(".")
    kind = rest.partition(".")[0]
    return kind if group == "restart-strategy" and kind in RESTART_KINDS else None


def _type(key: str, value: Any) -> str:
    name = str(value).strip().lower().replace("_", "-").replace("delayed", "delay")
    if name in _NONE:
        return "none"
    kind = _JOINED.get(name, name)
    if kind not in RESTART_KINDS:
        allowed = ", ".join(("none", *RESTART_KINDS))
        raise ConfigurationError(f"{key} is {value!r}: it must be one of {allowed}")
    return kind


def limit(least: int) -> Callable[[str, Any], int | None]:
    """Return a parser for whole numbers, or `unlimited`, which is None."""

    def parse(key: str, value: Any) -> int | None:
        if value is None or str(value).strip().lower() == _UNLIMITED:
            return None
        try:
            return int(count(least)(key, value))
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}, or {_UNLIMITED}") from None

    return parse


def written_limit(number: int | None) -> str:
    """A limit as it is written in a configuration."""
    return _UNLIMITED if number is None else str(number)


_FIXED, _RATE, _EXPONENTIAL = (f"restart-strategy.{kind}" for kind in RESTART_KINDS)

Duration = int | str | timedelta


RestartStrategy = Callable[[int], int | None]
"""Called with the time of each failure of one run of a job, in milliseconds; returns how many of
them to wait before the next attempt, `None` to give up."""


@dataclass(frozen=True)
class RestartStrategyConfiguration(Settings, ABC):
    """A restart strategy as a user writes it down; equal by value, shared by any number of jobs."""

    kind: ClassVar[str | None] = None
    """Its name in ``restart-strategy.type``."""

    @abstractmethod
    def create(self) -> RestartStrategy:
        """Return a fresh strategy for one run of a job."""

    def to_configuration(self) -> dict[str, str]:
        if self.kind is None:
            raise ConfigurationError(f"{self!r} has no configuration keys: use RestartStrategies")
        chosen = {RESTART_TYPE: self.kind}
        return chosen | {o.key: o.write(getattr(self, o.field)) for o in self.options()}


@dataclass(frozen=True)
class NoRestart(RestartStrategyConfiguration):
    """The first failure is the last."""

    kind = "none"

    def create(self) -> RestartStrategy:
        return lambda now: None


@dataclass(frozen=True)
class FixedDelayRestart(RestartStrategyConfiguration):
    """A number of restarts (`None`: any number), each after the same delay."""

    kind = "fixed-delay"

    attempts: int | None = option_field(
        f"{_FIXED}.attempts",
        limit(0),
        f"Maximum number of restarts before the job fails permanently, or `{_UNLIMITED}`.",
        "1",
        write=written_limit,
    )
    delay_ms: int = duration_field(f"{_FIXED}.delay", "Delay before each restart.", "1 s")

    def create(self) -> RestartStrategy:
        failures = count_from(1)

        def on_failure(now: int) -> int | None:
            over = self.attempts is not None and next(failures) > self.attempts
            return None if over else self.delay_ms

        return on_failure


@dataclass(frozen=True)
class FailureRateRestart(RestartStrategyConfiguration):
    """Restarts, until more than `max_failures` fall into one interval."""

    kind = "failure-rate"

    max_failures: int = option_field(
        f"{_RATE}.max-failures-per-interval",
        count(1),
        "Maximum number of failures in one interval; one more fails the job permanently.",
        "1",
    )
    interval_ms: int = duration_field(
        f"{_RATE}.failure-rate-interval", "Interval in which failures are counted.", "1 min", 1
    )
    delay_ms: int = duration_field(f"{_RATE}.delay", "Delay before each restart.", "1 s")

    def create(self) -> RestartStrategy:
        failures: deque[int] = deque(maxlen=self.max_failures + 1)

        def on_failure(now: int) -> int | None:
            failures.append(now)
            too_many = len(failures) > self.max_failures
            return None if too_many and now - failures[0] <= self.interval_ms else self.delay_ms

        return on_failure


@dataclass(frozen=True)
class ExponentialDelayRestart(RestartStrategyConfiguration):
    """Restarts for ever, after delays that grow until the job has run well for a while."""

    kind = "exponential-delay"

    initial_ms: int = duration_field(
        f"{_EXPONENTIAL}.initial-backoff", "Delay before the first restart.", "1 s", 1
    )
    max_ms: int = duration_field(
        f"{_EXPONENTIAL}.max-backoff", "Longest delay before a restart.", "1 min", 1
    )
    multiplier: float = option_field(
        f"{_EXPONENTIAL}.backoff-multiplier",
        factor(1),
        "Factor by which the delay grows from one restart to the next.",
        "1.5",
    )
    reset_threshold_ms: int = duration_field(
        f"{_EXPONENTIAL}.reset-backoff-threshold",
        "After this time without a failure, the next restart uses the initial delay again.",
        "1 h",
        1,
    )
    jitter: float = option_field(
        f"{_EXPONENTIAL}.jitter-factor",
        factor(0, 1),
        "Random part of each delay, as a fraction of it, so that jobs do not restart at the "
        "same time.",
        "0.1",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_ms < self.initial_ms:
            raise ConfigurationError(
                f"{_EXPONENTIAL}.max-backoff is {self.max_ms} ms: it must be at least the initial "
                f"backoff, {self.initial_ms} ms"
            )

    def create(self, jitter: Callable[[], float] = random.random) -> RestartStrategy:
        backoff: float | None = None
        restarted = 0

        def on_failure(now: int) -> int | None:
            nonlocal backoff, restarted
            if backoff is None or now - restarted >= self.reset_threshold_ms:
                backoff = self.initial_ms
            else:
                backoff = min(backoff * self.multiplier, self.max_ms)
            offset = backoff * self.jitter * (2 * jitter() - 1)
            delay = max(0, round(min(backoff + offset, self.max_ms)))
            restarted = now + delay
            return delay

        return on_failure


@dataclass(frozen=True)
class FallBackRestart(RestartStrategyConfiguration):
    """The strategy of the configuration file."""

    def to_configuration(self) -> dict[str, str]:
        return {}

    def create(self) -> RestartStrategy:
        raise ConfigurationError("resolve fall_back_restart with choose_restart first")


_TYPE = Option(
    RESTART_TYPE,
    _type,
    "Restart strategy after a failure: `none`, `fixed-delay`, `failure-rate` or "
    "`exponential-delay`. If not set, a job with checkpoints restarts after one second, without "
    "limit; a job without checkpoints does not restart.",
    field="kind",
    aliases=("restart-strategy",),
)
_CONFIGURATIONS: dict[str | None, type[RestartStrategyConfiguration]] = {
    cls.kind: cls
    for cls in (NoRestart, FixedDelayRestart, FailureRateRestart, ExponentialDelayRestart)
}
RESTART_OPTIONS = (_TYPE, *(o for cls in _CONFIGURATIONS.values() for o in cls.options()))


class RestartStrategies:
    """Creates restart strategies."""

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        """Never restart."""
        return NoRestart()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: Duration
    ) -> RestartStrategyConfiguration:
        """Restart a number of times, each after the same delay."""
        return FixedDelayRestart(restart_attempts, parse_duration(delay_between_attempts))

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: Duration, delay_interval: Duration
    ) -> RestartStrategyConfiguration:
        """Restart unless there are more than `failure_rate` failures in one interval."""
        return FailureRateRestart(
            failure_rate, parse_duration(failure_interval), parse_duration(delay_interval)
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: Duration,
        max_backoff: Duration,
        backoff_multiplier: float,
        reset_backoff_threshold: Duration,
        jitter_factor: float,
    ) -> RestartStrategyConfiguration:
        """Restart without limit, after increasing delays."""
        return ExponentialDelayRestart(
            parse_duration(initial_backoff),
            parse_duration(max_backoff),
            backoff_multiplier,
            parse_duration(reset_backoff_threshold),
            jitter_factor,
        )

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        """Use the strategy of the configuration file."""
        return FallBackRestart()


def choose_restart(
    configuration: Mapping[str, Any], checkpointing: bool
) -> RestartStrategyConfiguration:
    """Return the strategy of a job, as configured.

    When nothing is, a job without checkpoints is not restarted, one with them every second without
    limit.
    """
    default = FixedDelayRestart(None, 1_000) if checkpointing else NoRestart()
    return restart_from_configuration(configuration) or default


def restart_from_configuration(
    configuration: Mapping[str, Any],
) -> RestartStrategyConfiguration | None:
    """Return the strategy that configuration keys describe, `None` if they do not."""
    kind = read_options([_TYPE], configuration).get("kind")
    return None if kind is None else _CONFIGURATIONS[kind].from_configuration(configuration)
