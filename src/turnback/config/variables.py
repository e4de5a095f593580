"""Environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from turnback.config.layer import Given, Layer, Rank, read_layer
from turnback.config.options import SPELLINGS, suggestion
from turnback.core.errors import ConfigurationError

VARIABLE_PREFIX = "TURNBACK_CONF_"
ROOT_VARIABLE = "TURNBACK_ROOT"


def variable_of(key: str) -> str:
    """The environment variable for a key."""
    return VARIABLE_PREFIX + re.sub("[.-]", "_", key).upper()


_KEYS = {variable_of(key): key for key in SPELLINGS}


def variable_layer(environ: Mapping[str, str]) -> Layer:
    """What the variables say whose names begin with TURNBACK_CONF_.

    Raises:
        ConfigurationError: One of them stands for no key, or its value cannot be used.
    """
    names = sorted(name for name in environ if name.startswith(VARIABLE_PREFIX))
    for name in names:
        if name.startswith(variable_of("spark.")):
            raise ConfigurationError(
                f"{name}: Spark's settings cannot be given as variables, whose names have no small "
                "letters; use the configuration file or -D"
            )
        if name not in _KEYS:
            raise ConfigurationError(
                f"{name} stands for no configuration key{suggestion(name, tuple(_KEYS))}"
            )
    given = (Given(_KEYS[name], environ[name], name) for name in names)
    return read_layer(Rank.ENVIRONMENT, given)


def root_layer(environ: Mapping[str, str]) -> Layer:
    """What TURNBACK_ROOT says, which counts where nothing else names the directory."""
    root = environ.get(ROOT_VARIABLE)
    given = [Given("state.checkpoints.dir", root, ROOT_VARIABLE)] if root else []
    return read_layer(Rank.ROOT, given)
