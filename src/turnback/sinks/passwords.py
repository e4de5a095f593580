"""Where the passwords of sinks come from. They are told nowhere."""

from __future__ import annotations

import os
from typing import Any

from turnback.core.errors import ConfigurationError


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
