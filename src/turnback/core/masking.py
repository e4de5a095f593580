"""Secrets: which settings are secret, how they are masked, and where passwords come from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from turnback.errors import ConfigurationError

MASKED = "****"

_WORDS = (
    r"passw(?:or)?d|passphrase|secret|token|credential|signature|webhook"
    r"|(?:access|account|api|private|shared|encryption|storage)[._-]?key"
    r"|(?<![a-z])(?:pass|pwd|sig|sas)(?![a-z])"
)
_NAME = re.compile(_WORDS, re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@?#'\"]*:)[^\s/?#'\"]+@", re.I)
_ASSIGNED = re.compile(
    # password=x, --token=x, ;password=x, password="x y", and in JSON "password": "x"
    rf"(?P<name>[\w.-]*(?:{_WORDS})[\w.-]*)(?P<equals>[\"']?\s*:\s*(?=[\"'])|\s*=\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s&;,\"'\])}]+)",
    re.IGNORECASE,
)
_LITERAL = re.compile(
    rf"(?P<before>[\w.-]*(?:{_WORDS})[\w.-]*[\"']?\]?\s*(?:=(?!=)|:|,)\s*)(?:\"[^\"\n]+\"|'[^'\n]+')",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<before>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|bearer)\s+|\bbearer\s+(?=\S{16}))"
    r"[^\s\"',]+",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether what has this name, such as a setting or an argument, is a secret."""
    return _NAME.search(name) is not None


def mask_text(text: str) -> str:
    """A text with stars for every secret that can be told from the text itself."""
    if "=" not in text and ":" not in text and "earer" not in text.lower():
        return text
    text = _URL_PASSWORD.sub(rf"\g<before>{MASKED}@", text)
    text = _ASSIGNED.sub(rf"\g<name>\g<equals>{MASKED}", text)
    return _HEADER.sub(rf"\g<before>{MASKED}", text)


def mask_code(text: str) -> str:
    """The text of a program, with stars for the secrets that are written in it as literals."""
    text = _URL_PASSWORD.sub(rf"\g<before>{MASKED}@", text)
    return _LITERAL.sub(rf'\g<before>"{MASKED}"', text)


def mask_value(name: str, value: str) -> str:
    """The value of a setting, with stars in place of secrets."""
    return MASKED if is_secret_name(name) else mask_text(value)


def mask_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a program, with stars in place of secrets.

    A secret is the value of `--token=VALUE` or `token=VALUE`, what follows `--token`, and a
    password within a URL.
    """
    masked: list[str] = []
    secret_follows = False
    for argument in arguments:
        if secret_follows and not argument.startswith("-"):
            masked.append(MASKED)
            secret_follows = False
            continue
        name, equals, _ = argument.partition("=")
        option = argument.startswith("-")
        secret_follows = option and not equals and is_secret_name(argument)
        if equals and is_secret_name(name) and "://" not in name:
            masked.append(f"{name}={MASKED}")
        else:
            masked.append(mask_text(argument))
    return tuple(masked)


def without_secret_parameters(query: str) -> tuple[str, dict[str, str]]:
    """The query of a URL without the parameters that are secret, and those by name."""
    kept = []
    secret: dict[str, str] = {}
    for part in query.split("&"):
        if is_secret_name(unquote_plus(part.partition("=")[0])):
            secret |= dict(parse_qsl(part))
        else:
            kept.append(part)
    return "&".join(kept), secret


def hide(secrets: Iterable[str | None], text: object) -> str:
    """A text without some secrets."""
    shown = str(text)
    for secret in secrets:
        if secret:
            shown = shown.replace(secret, MASKED)
    return shown


def password_of(sink: str, given: Any, variable: str | None, usual: str | None) -> str | None:
    """The password that a program gives, or the driver's environment; tasks get it with the sink.

    Raises:
        ConfigurationError: The variable is not set, or both are given.
    """
    if variable is None:
        return given if given is not None or usual is None else os.environ.get(usual)
    if not isinstance(variable, str) or not variable:
        raise ConfigurationError(
            f"{sink}: password_from must be the name of an environment variable"
        )  # its value is not shown: it may be the password itself
    if given is not None:
        raise ConfigurationError(f"{sink}: give a password or password_from, not both")
    if variable not in os.environ:
        raise ConfigurationError(
            f"{sink}: the environment variable in password_from is not set; set it where the "
            "driver runs"
        )
    return os.environ[variable]
