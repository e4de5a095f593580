"""The configuration of a job: what counts for every key, and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from turnback.config.checkpointing import CheckpointStorage
from turnback.config.layers import (
    Layer,
    Precedence,
    RawSetting,
    Setting,
    file_layer,
    read_layer,
    resolve,
    root_layer,
    variable_layer,
)
from turnback.config.option import Option
from turnback.config.options import BACKENDS, OPTIONS, SPARK_PREFIX, as_storage_options, option_of
from turnback.core.errors import ConfigurationError

CODE = "code"
COMMAND_LINE = "-D"
DEFAULT = "default"


@dataclass(frozen=True)
class ConfigEntry:
    """A key, what counts for it, and why.

    Attributes:
        value_text: What counts, as people write it; stars for a secret, None for nothing.
        origin: "default", the file's name, the environment variable, "code" or "-D".
    """

    key: str
    value_text: str | None
    origin: str
    doc: str
    is_set: bool


class Configuration:
    """What is configured, and where; immutable.

    Layers, of which each overrides the one before it: defaults, the configuration file,
    environment variables, code, the command line.
    """

    __slots__ = ("_layers", "_settings")

    def __init__(self, layers: Mapping[Precedence, Layer] | None = None) -> None:
        self._layers: dict[Precedence, Layer] = dict(layers or {})
        self._settings: dict[str, Setting] = resolve(
            [self._layers[precedence] for precedence in sorted(self._layers)]
        )

    @classmethod
    def load(
        cls,
        in_code: Mapping[str, Any] | None = None,
        command_line: Mapping[str, str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> Configuration:
        """Read all layers, and check them.

        Args:
            in_code: Keys and values a program was written with.
            command_line: Keys and values of ``-D``, see `parse_pairs`.
            environ: Environment variables; by default those of this process.
            directory: Where ``turnback.yaml`` is; by default the working directory.
        """
        environ = os.environ if environ is None else environ
        where = "the configuration in code"
        code = _raw_settings(in_code, CODE, where)
        options = _raw_settings(command_line, COMMAND_LINE, COMMAND_LINE)
        return cls(
            {
                Precedence.ROOT: root_layer(environ),
                Precedence.FILE: file_layer(environ, Path(directory or ".")),
                Precedence.ENVIRONMENT: variable_layer(environ),
                Precedence.IN_CODE: read_layer(Precedence.IN_CODE, code, where),
                Precedence.COMMAND_LINE: read_layer(Precedence.COMMAND_LINE, options),
            }
        )

    def with_code(self, key: str, value: Any) -> Configuration:
        """Return a configuration in which code sets a key; the command line still wins."""
        made = read_layer(Precedence.SETTERS, [RawSetting(key, value, CODE)])
        return self._with_setters({**self._layers.get(Precedence.SETTERS, {}), **made})

    def without_code(self, prefix: str) -> Configuration:
        """Return a configuration without the keys below a prefix that `with_code` had set."""
        setters = self._layers.get(Precedence.SETTERS, {})
        return self._with_setters({k: s for k, s in setters.items() if not k.startswith(prefix)})

    @property
    def raw(self) -> Mapping[str, str]:
        """What is set, as people write it, by the main name of each key. Secrets are in it."""
        return MappingProxyType({key: s.text for key, s in self._settings.items()})

    def value(self, key: str) -> Any:
        """What counts for a key, parsed; None when it is not set and has no default."""
        option = option_of(key)
        setting = self._settings.get(option.key)
        text = option.default if setting is None else setting.text
        return None if text is None else option.parse(option.key, text)

    def origin(self, key: str) -> str:
        setting = self._settings.get(option_of(key).key)
        return DEFAULT if setting is None else setting.origin

    def precedence(self, key: str) -> Precedence:
        setting = self._settings.get(option_of(key).key)
        return Precedence.DEFAULT if setting is None else setting.precedence

    def entries(self) -> list[ConfigEntry]:
        """Every known key, and Spark's that are set, in the order of their names."""
        known = {option.key: option for option in OPTIONS}
        known |= {key: option_of(key) for key in self._settings}
        return [self._entry(known[key]) for key in sorted(known)]

    def __repr__(self) -> str:
        settings = {e.key: e.value_text for e in self.entries() if e.is_set}
        return f"Configuration({settings})"

    def _with_setters(self, setters: Layer) -> Configuration:
        return Configuration({**self._layers, Precedence.SETTERS: setters})

    def _entry(self, option: Option) -> ConfigEntry:
        setting = self._settings.get(option.key)
        return ConfigEntry(
            key=option.key,
            value_text=option.default if setting is None else option.shown(setting.text),
            origin=self.origin(option.key),
            doc=option.doc,
            is_set=setting is not None,
        )


def _raw_settings(settings: Mapping[str, Any] | None, origin: str, where: str) -> list[RawSetting]:
    if settings is None:
        return []
    if not isinstance(settings, Mapping):
        raise ConfigurationError(
            f"{where} must be keys and values, such as {{'parallelism.default': 4}}, "
            f"got {type(settings).__name__}"
        )
    return [RawSetting(key, value, origin) for key, value in settings.items()]


class ConfigurationEditor:
    """The configuration as it stands while a program sets one thing after the other."""

    def __init__(self, configuration: Configuration) -> None:
        self.current = configuration

    def set(self, settings: Mapping[str, Any]) -> None:
        """Set keys in code: all of them, or none if one cannot be used."""
        self._set(self.current, settings)

    def replace(self, prefix: str, settings: Mapping[str, Any]) -> None:
        """The same, and forget what code had set below this prefix."""
        self._set(self.current.without_code(prefix), settings)

    def _set(self, configuration: Configuration, settings: Mapping[str, Any]) -> None:
        for key, value in settings.items():
            configuration = configuration.with_code(key, value)
        self.current = configuration


_BACKEND = "state.backend.type"
_STORAGE = "execution.checkpointing.storage"


def storage_options(configuration: Configuration) -> dict[str, str]:
    """The settings of object stores, as `open_storage` takes them."""
    return as_storage_options(configuration.raw)


def spark_options(configuration: Configuration) -> dict[str, str]:
    """Spark's own settings."""
    return {key: value for key, value in configuration.raw.items() if key.startswith(SPARK_PREFIX)}


def state_backend(configuration: Configuration) -> tuple[str, CheckpointStorage]:
    """The local store, and where checkpoints go.

    A classic pair names both; the key of the storage wins over it, unless the pair was set in a
    later layer.
    """
    backend, paired = BACKENDS[configuration.value(_BACKEND)]
    storage: CheckpointStorage | None = configuration.value(_STORAGE)
    later = configuration.precedence(_BACKEND) > configuration.precedence(_STORAGE)
    if paired is not None and (storage is None or later):
        return backend, paired
    return backend, storage or CheckpointStorage.FILESYSTEM


def job_root(configuration: Configuration) -> str:
    """Where job directories are: an absolute path, or a URI."""
    return location(configuration.value("state.checkpoints.dir"))


def location(text: str) -> str:
    """A path made absolute, for it means the same everywhere; a URI as it is."""
    return text if "://" in text else str(Path(text).expanduser().absolute())
