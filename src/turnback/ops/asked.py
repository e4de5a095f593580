"""What somebody asks of a job, made complete from its configuration."""

from __future__ import annotations

from turnback.coordinator.request import RequestKind
from turnback.coordinator.savepoint_settings import SavepointFormat, SavepointSettings
from turnback.core.errors import ConfigurationError

ASKED_KEYS = (
    "state.savepoints.dir",
    "execution.checkpointing.savepoint-dir",
    "savepoints.on-stop",
    "savepoints.format",
)
"""The settings that matter; no other one keeps a job from being stopped."""


def asked_kind(kind: RequestKind | str) -> RequestKind:
    """Return what is asked for, or say that there is no such thing."""
    try:
        return RequestKind(kind)
    except ValueError:
        known = ", ".join(RequestKind)
        raise ConfigurationError(
            f"{kind!r} cannot be asked of a job: it is one of {known}"
        ) from None


def asked_format(format: SavepointFormat | str | None) -> SavepointFormat | None:
    """Return how a savepoint is to be written, or say that this is no way to do it."""
    try:
        return None if format is None else SavepointFormat(format)
    except ValueError:
        known = ", ".join(SavepointFormat)
        raise ConfigurationError(f"{format!r} is no format of savepoints, only {known}") from None


def takes_savepoint(
    kind: RequestKind,
    settings: SavepointSettings,
    target: str | None,
    savepoint: bool | None,
    *,
    drain: bool,
) -> bool:
    """Return whether a stop or cancel takes a savepoint; see `Job.ask`.

    Raises:
        ConfigurationError: A stop is to drain without one.
    """
    if drain and savepoint is False:
        raise ConfigurationError(
            "that event time has come to its end is told in a savepoint: take one, or do not drain"
        )
    if savepoint is not None:
        return savepoint
    if kind is RequestKind.SAVEPOINT:
        return False  # it is one
    on_stop = settings.on_stop and settings.directory is not None
    return target is not None or (kind is RequestKind.STOP and (on_stop or drain))
