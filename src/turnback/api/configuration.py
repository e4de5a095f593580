from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from turnback.coordinator import CHECKPOINT_KEYS, RESTART_KEYS, SAVEPOINT_KEYS
from turnback.core.errors import ConfigurationError

Configuration = dict[str, Any]

FILE_VARIABLE = "TURNBACK_CONF"
DEFAULT_FILE = "turnback.yaml"

_ALIASES = {"state.backend": "state.backend.type"}
KNOWN_KEYS = frozenset(
    {
        *CHECKPOINT_KEYS,
        *RESTART_KEYS,
        *SAVEPOINT_KEYS,
        *_ALIASES,
        "parallelism.default",
        "pipeline.max-parallelism",
        "state.backend.local-dir",
        "state.backend.type",
    }
)


def load_configuration(in_code: Mapping[str, Any] | None = None) -> Configuration:
    """The configuration file, if there is one, overridden by what the code says.

    Raises:
        ConfigurationError: The file cannot be read, or a key is not known.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named or DEFAULT_FILE)
    found: Configuration = {}
    if named is not None and not path.is_file():
        raise ConfigurationError(f"{FILE_VARIABLE} names {named!r}, which is no file")
    if path.is_file():
        found |= _read(path)
    if in_code is not None:
        found |= _checked(dict(in_code), "the configuration in code")
    return found


def _read(path: Path) -> Configuration:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigurationError(f"{path} cannot be read as YAML: {e}") from e
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{path} must hold keys and values, such as 'state.backend.type: x'"
        )
    return _checked(_flat(document), str(path))


def _flat(document: Mapping[Any, Any], prefix: str = "") -> Configuration:
    flat: Configuration = {}
    for key, value in document.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _checked(found: Configuration, where: str) -> Configuration:
    for key in found:
        if key not in KNOWN_KEYS:
            near = difflib.get_close_matches(str(key), KNOWN_KEYS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"{where}: unknown key {key!r}{hint}")
    return {_ALIASES.get(key, key): value for key, value in found.items()}
