"""Configuration keys: declared once, read alike everywhere; every message names the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from os import PathLike, fspath
from typing import Any, Self

from turnback.core.masking import MASKED, mask_text
from turnback.core.units import duration_setting, parse_duration, parse_size
from turnback.errors import ConfigurationError

Parser = Callable[[str, Any], Any]
"""Takes the key as it was written and its value; raises ConfigurationError naming the key."""

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def written(value: Any) -> str:
    """A value as people write it in a configuration file."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value) if isinstance(value, Enum) else str(value)


@dataclass(frozen=True)
class Option:
    """A configuration key.

    Attributes:
        parse: Reads a value, whoever wrote it.
        default: What counts when it is not set, as people write it; None for nothing.
        field: The field it fills, where a group of keys fills a data class.
        write: Turns what `parse` returns into text that `parse` reads alike.
    """

    key: str
    parse: Parser
    doc: str
    default: str | None = None
    field: str = ""
    aliases: tuple[str, ...] = ()
    secret: bool = False
    write: Callable[[Any], str] = written

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.key, *self.aliases)

    def text(self, spelling: str, value: Any) -> str:
        """A value, checked, in the one form in which it is stored and printed."""
        if value is None:
            raise ConfigurationError(f"{spelling} has no value: give it one, or omit it")
        if isinstance(value, Mapping | list | tuple | set):
            kind = type(value).__name__
            raise ConfigurationError(f"{spelling} is a {kind}: it must be text or a number")
        return self.write(self.parse(spelling, value))

    def shown(self, text: str) -> str:
        """A value as it may be printed and stored: with stars in place of secrets."""
        return MASKED if self.secret else mask_text(text)


def spellings(options: Iterable[Option]) -> tuple[str, ...]:
    """Every name of every option."""
    return tuple(name for option in options for name in option.spellings)


def read_options(options: Iterable[Option], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are there, by field; other keys are ignored."""
    values: dict[str, Any] = {}
    for option in options:
        origin = ""
        for key in option.spellings:
            if key not in configuration:
                continue
            value = option.parse(key, configuration[key])
            if origin and values[option.field] != value:
                raise ConfigurationError(
                    f"{key} and {origin} have different values: keep one of them"
                )
            values[option.field], origin = value, key
    return values


@dataclass(frozen=True)
class Settings:
    """Base of data classes whose fields are configuration keys, checked; see `option_field`."""

    def __post_init__(self) -> None:
        for option in self.options():
            value = getattr(self, option.field)
            if value is None and option.default is None:
                continue
            parsed = option.parse(option.key, value)
            if parsed != value:
                raise ConfigurationError(f"{option.key} is {value!r}: it must be {parsed!r}")

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        return tuple(replace(f.metadata["option"], field=f.name) for f in fields(cls))

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        """Read the settings from configuration keys; keys of other parts are ignored."""
        return cls(**read_options(cls.options(), configuration))


def option_field(
    key: str,
    parse: Parser,
    doc: str,
    default: str | None = None,
    aliases: tuple[str, ...] = (),
    write: Callable[[Any], str] = written,
    *,
    secret: bool = False,
) -> Any:
    """Declare a field of `Settings` and the configuration key that sets it, see `Option`."""
    option = Option(key, parse, doc, default, aliases=aliases, secret=secret, write=write)
    value = None if default is None else parse(key, default)
    return field(default=value, metadata={"option": option})


def duration_field(
    key: str, doc: str, default: str | None = None, least: int = 0, hint: str = ""
) -> Any:
    """Declare a field that holds milliseconds."""
    return option_field(key, duration(least, hint), doc, default, write=duration_setting)


def duration(least: int = 0, hint: str = "") -> Parser:
    """Return a parser for durations in milliseconds."""

    def parse(key: str, value: Any) -> int:
        ms = parse_duration(value, key)
        if ms < least:
            raise ConfigurationError(f"{key} is {ms} ms: it must be at least {least} ms{hint}")
        return ms

    return parse


def size(least: int = 0) -> Parser:
    """Return a parser for sizes in bytes."""

    def parse(key: str, value: Any) -> int:
        size = parse_size(value, key)
        if size < least:
            raise ConfigurationError(f"{key} is {value!r}: it must be at least {least} bytes")
        return size

    return parse


def count(least: int = 0, most: int | None = None) -> Parser:
    """Return a parser for whole numbers."""

    def parse(key: str, value: Any) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise ConfigurationError(f"{key} is {value!r}: it must be a whole number") from None
        if number < least:
            raise ConfigurationError(f"{key} is {value!r}: it must be at least {least}")
        if most is not None and number > most:
            raise ConfigurationError(f"{key} is {value!r}: it must be at most {most}")
        return number

    return parse


def factor(least: float, most: float | None = None) -> Parser:
    """Return a parser for numbers."""

    def parse(key: str, value: Any) -> float:
        try:
            number = float(str(value))
        except ValueError:
            raise ConfigurationError(f"{key} is {value!r}: it must be a number") from None
        if not least <= number < float("inf") or (most is not None and number > most):
            allowed = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"
            raise ConfigurationError(f"{key} is {value!r}: it must be {allowed}")
        return number

    return parse


def flag(key: str, value: Any) -> bool:
    """Read true or false."""
    text = str(value).strip().lower()
    if text not in _FLAGS:
        raise ConfigurationError(f"{key} is {value!r}: it must be true or false")
    return _FLAGS[text]


def text(key: str, value: Any) -> str:
    """Read any text but an empty one."""
    text = fspath(value) if isinstance(value, PathLike) else written(value)
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{key} is empty: give it a value, or omit it")
    return text


def choice(choices: type[Enum]) -> Parser:
    """Return a parser for the values of an enumeration."""

    def parse(key: str, value: Any) -> Enum:
        if isinstance(value, choices):
            return value
        name = str(value).strip().lower().replace("_", "-")
        for candidate in choices:
            if candidate.value == name:
                return candidate
        allowed = ", ".join(str(candidate.value) for candidate in choices)
        raise ConfigurationError(f"{key} is {value!r}: it must be one of {allowed}")

    return parse


def nonempty_text(what: str, value: Any) -> str:
    """Return a text that is not empty, or say what is wrong with it."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{what} must be a non-empty string, got {value!r:.80}")
    return value


def positive(what: str, number: Any) -> int:
    """A whole number above 0."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ConfigurationError(f"{what} must be a whole number above 0, got {number!r}")
    return number


def column_names(what: str, given: Any, least: int = 0) -> tuple[str, ...]:
    """The names of so many columns at least, each once; one may be given as a text."""
    names = (given,) if isinstance(given, str) else tuple(given)
    are_names = all(isinstance(name, str) and name for name in names)
    if not are_names or len(set(names)) < max(least, len(names)):
        raise ConfigurationError(
            f"{what} must be the name of a column, or a list of distinct names, not {given!r}"
        )
    return names
