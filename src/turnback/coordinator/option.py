"""How configuration values are read; every message names the key."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from turnback.core.duration import parse_duration
from turnback.core.errors import ConfigurationError

Parser = Callable[[str, Any], Any]


def read_options(
    keys: Mapping[str, tuple[str, Parser]], configuration: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the keys that are there, by field; other keys are ignored.

    Args:
        keys: Field and parser of each key; several keys may mean the same field.
        configuration: Keys and values as the user wrote them.

    Raises:
        ConfigurationError: A value cannot be used, or two spellings of a key disagree.
    """
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, (field, parse) in keys.items():
        if key not in configuration:
            continue
        value = parse(key, configuration[key])
        if field in found and found[field] != value:
            raise ConfigurationError(f"{key} and {origin[field]} disagree: keep one of them")
        found[field], origin[field] = value, key
    return found


def duration(key: str, value: Any) -> int:
    """Read a duration in milliseconds."""
    return parse_duration(value, key)


def count(key: str, value: Any) -> int:
    """Read a whole number."""
    try:
        return int(str(value))
    except ValueError:
        raise ConfigurationError(f"{key} is {value!r}: it must be a whole number") from None


def flag(key: str, value: Any) -> bool:
    """Read true or false."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{key} is {value!r}: it must be true or false")
    return text == "true"


def text(_key: str, value: Any) -> str:
    """Read any text."""
    return str(value)


def choice(choices: type[Enum]) -> Parser:
    """Return a parser for the values of an enumeration."""

    def parse(key: str, value: Any) -> Enum:
        if isinstance(value, choices):
            return value
        wanted = str(value).strip().lower().replace("_", "-")
        for candidate in choices:
            if candidate.value == wanted:
                return candidate
        allowed = ", ".join(str(candidate.value) for candidate in choices)
        raise ConfigurationError(f"{key} is {value!r}: it must be one of {allowed}")

    return parse
