"""Where the passwords of sinks come from. They are told nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from turnback.core.errors import ConfigurationError
from turnback.core.masking import MASKED, is_secret_name


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
            f"{sink}: password_from is the name of an environment variable"
        )  # its value is not shown: it may be the password itself
    if given is not None:
        raise ConfigurationError(f"{sink}: give a password or password_from, not both")
    if variable not in os.environ:
        raise ConfigurationError(
            f"{sink}: the environment variable that password_from names is not set; set it "
            "where the driver runs"
        )
    return os.environ[variable]
