"""When a job counts as stalled, and who is told when something is wrong with it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from turnback.config.option import Parser, Settings, duration, option_field, text
from turnback.core.units import duration_setting
from turnback.errors import ConfigurationError

_OFF = "off"
_LEAST_MS = 1_000
_SILENT_LEAST_MS = 3_000
"""A driver reports every two seconds."""


def _limit(least: int) -> Parser:
    read = duration(least, "; `off` disables it")

    def parse(key: str, value: Any) -> int | None:
        is_off = value is None or (isinstance(value, str) and value.strip().lower() == _OFF)
        return None if is_off else read(key, value)

    return parse


def _written(ms: int | None) -> str:
    return _OFF if ms is None else duration_setting(ms)


def _limit_field(key: str, doc: str, default: str, least: int = _LEAST_MS) -> Any:
    return option_field(key, _limit(least), f"{doc} `off` disables it.", default, write=_written)


@dataclass(frozen=True)
class WatchdogSettings(Settings):
    """After how long without progress a job is STALLED, in milliseconds; None for never."""

    no_heartbeat_ms: int | None = _limit_field(
        "watchdog.no-heartbeat",
        "A job is STALLED when its driver has not reported, or Spark has not responded to it, "
        "for this long.",
        "1 min",
        _SILENT_LEAST_MS,
    )
    no_epoch_ms: int | None = _limit_field(
        "watchdog.no-epoch",
        "A job is STALLED when an epoch has been running for this long, or none has begun "
        "although a source has records. A job without input is never stalled.",
        "15 min",
    )
    no_checkpoint_ms: int | None = _limit_field(
        "watchdog.no-checkpoint",
        "A job is STALLED when epochs have waited for a checkpoint for this long, in addition "
        "to the time between two checkpoints.",
        "15 min",
    )
    growing_lag_ms: int | None = _limit_field(
        "watchdog.growing-lag",
        "A job is STALLED when the lag of a source has grown steadily for this long.",
        "30 min",
    )


def _command(key: str, value: Any) -> str:
    command = text(key, value)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"{key} cannot be split into words: {error}") from None
    if not words:
        raise ConfigurationError(f"{key} is empty: give it a value, or omit it")
    return command


def _webhook(key: str, value: Any) -> str:
    address = text(key, value).strip()
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        usable = usable and parts.port != 0 and not any(c.isspace() for c in address)
    except ValueError:
        usable = False
    if not usable:  # the address itself may be a secret
        raise ConfigurationError(
            f"{key} is not a valid webhook URL: it must begin with http:// or https://"
        )
    return address


@dataclass(frozen=True)
class AlertSettings(Settings):
    """What is called when a job fails, restarts again and again, is lost, stalls or recovers."""

    command: str | None = option_field(
        "alerts.command",
        _command,
        "Command to run when a job fails, keeps restarting, is lost, stalls or recovers. It "
        "gets the event as JSON on standard input and is not run by a shell.",
    )
    webhook: str | None = option_field(
        "alerts.webhook",
        _webhook,
        "URL to which the same events are posted as JSON.",
        secret=True,
    )

    @property
    def enabled(self) -> bool:
        return self.command is not None or self.webhook is not None

    def to_configuration(self) -> dict[str, str]:
        """The settings as configuration, secrets included."""
        values = {option.key: getattr(self, option.field) for option in self.options()}
        return {key: value for key, value in values.items() if value is not None}
