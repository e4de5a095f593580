"""One place where settings come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from turnback.config.options import option_of
from turnback.core.errors import ConfigurationError


class Rank(IntEnum):
    """Which layer wins: the higher one."""

    DEFAULT = 0
    ROOT = 1
    """TURNBACK_ROOT, which counts only where nothing else names the directory."""
    FILE = 2
    ENVIRONMENT = 3
    IN_CODE = 4
    """What the environment was made with."""
    SETTERS = 5
    """What was set on it afterwards."""
    COMMAND_LINE = 6


@dataclass(frozen=True)
class Setting:
    """A value that somebody gave.

    Attributes:
        text: The value, checked and as people write it.
        origin: Where it was given.
        rank: The layer it is in.
    """

    text: str
    origin: str
    rank: Rank


Layer = Mapping[str, Setting]
"""Settings by the main name of their key."""


@dataclass(frozen=True)
class Given:
    """A key and a value as somebody wrote them, and where."""

    key: str
    value: Any
    origin: str


def read_layer(rank: Rank, given: Iterable[Given], where: str | None = None) -> dict[str, Setting]:
    """Check what one place says.

    Args:
        rank: The layer.
        given: Keys, by any of their names, and values.
        where: What error messages call the place; by default the origin.

    Raises:
        ConfigurationError: A key is not known, a value cannot be used, or two names of one key
            disagree.
    """
    layer: dict[str, Setting] = {}
    names: dict[str, str] = {}
    for one in given:
        try:
            option = option_of(one.key)
            text = option.text(one.key, one.value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where or one.origin}: {error}") from None
        before = layer.get(option.key)
        if before is not None and before.text != text:
            both = f"{one.key} and {names[option.key]}"
            if one.key == names[option.key]:
                both = f"two values of {one.key}"
            raise ConfigurationError(f"{where or one.origin}: {both} disagree: keep one of them")
        layer[option.key], names[option.key] = Setting(text, one.origin, rank), one.key
    return layer
