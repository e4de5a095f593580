"""The configuration of a job: what counts for every key, and where it comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from turnback.config.checkpointing import CheckpointStorage
from turnback.config.option import Option
from turnback.config.options import (
    BACKENDS,
    OPTIONS,
    SPARK_PREFIX,
    SPELLINGS,
    as_storage_options,
    option_of,
    suggestion,
)
from turnback.config.restart import RESTART_TYPE, restart_kind
from turnback.errors import ConfigurationError


class Precedence(IntEnum):
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
    """A value that was set, checked and as people write it, and where."""

    text: str
    origin: str
    precedence: Precedence


Layer = Mapping[str, Setting]
"""Settings by the main name of their key."""


class RawSetting(NamedTuple):
    """A key and a value as somebody wrote them, and where."""

    key: str
    value: Any
    origin: str


def read_layer(
    precedence: Precedence, settings: Iterable[RawSetting], where: str | None = None
) -> dict[str, Setting]:
    """Check the settings of one layer, which errors call `where`, or else by the origin."""
    layer: dict[str, Setting] = {}
    names: dict[str, str] = {}
    for raw in settings:
        try:
            option = option_of(raw.key)
            text = option.text(raw.key, raw.value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where or raw.origin}: {error}") from None
        before = layer.get(option.key)
        if before is not None and before.text != text:
            both = f"{raw.key} and {names[option.key]}"
            if raw.key == names[option.key]:
                both = f"two values of {raw.key}"
            raise ConfigurationError(f"{where or raw.origin}: {both} differ: keep one of them")
        layer[option.key], names[option.key] = Setting(text, raw.origin, precedence), raw.key
    return layer


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Read what ``-D`` is given on the command line.

    Args:
        pairs: Texts of the form ``key=value``; the value may hold further equals signs.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        value = value.strip()
        if not equals or not key:
            start = key if equals or len(key) < 80 else f"{key[:77]}..."
            raise ConfigurationError(
                f"-D {start}: expected key=value, for example -D parallelism.default=4"
            )
        if settings.get(key, value) != value:
            raise ConfigurationError(f"-D {key} is given twice with different values: keep one")
        settings[key] = value
    return settings


VARIABLE_PREFIX = "TURNBACK_CONF_"
ROOT_VARIABLE = "TURNBACK_ROOT"


def variable_of(key: str) -> str:
    """The environment variable for a key."""
    return VARIABLE_PREFIX + re.sub("[.-]", "_", key).upper()


_KEYS = {variable_of(key): key for key in SPELLINGS}


def variable_layer(environ: Mapping[str, str]) -> Layer:
    """The settings in variables whose names begin with TURNBACK_CONF_."""
    names = sorted(name for name in environ if name.startswith(VARIABLE_PREFIX))
    for name in names:
        if name.startswith(variable_of("spark.")):
            raise ConfigurationError(
                f"{name}: Spark's settings cannot be set by environment variables, whose names "
                "are upper case; use the configuration file or -D"
            )
        if name not in _KEYS:
            raise ConfigurationError(
                f"{name} does not match any configuration key{suggestion(name, tuple(_KEYS))}"
            )
    given = (RawSetting(_KEYS[name], environ[name], name) for name in names)
    return read_layer(Precedence.ENVIRONMENT, given)


def root_layer(environ: Mapping[str, str]) -> Layer:
    """The directory in TURNBACK_ROOT, which counts where nothing else names it."""
    root = environ.get(ROOT_VARIABLE)
    given = [RawSetting("state.checkpoints.dir", root, ROOT_VARIABLE)] if root else []
    return read_layer(Precedence.ROOT, given)


FILE_VARIABLE = "TURNBACK_CONF"
DEFAULT_FILE = "turnback.yaml"


def file_layer(environ: Mapping[str, str], directory: Path) -> Layer:
    """The settings in the file TURNBACK_CONF names, else in turnback.yaml if there is one."""
    named = environ.get(FILE_VARIABLE)
    name = named or DEFAULT_FILE
    path = directory / Path(name).expanduser()
    if not path.is_file():
        if named:
            raise ConfigurationError(f"{FILE_VARIABLE} is {named!r}, which is not a file")
        return {}
    return read_layer(Precedence.FILE, _read(path, name))


def _read(path: Path, name: str) -> list[RawSetting]:
    import yaml

    try:
        document = yaml.load(path.read_text("utf-8"), _loader())
    except yaml.MarkedYAMLError as error:
        # Only where and what: the line itself may hold a password.
        mark = error.problem_mark
        line = f" in line {mark.line + 1}" if mark else ""
        raise ConfigurationError(
            f"{name} is not valid YAML: {error.problem or 'it is malformed'}{line}"
        ) from None
    except RecursionError:
        raise ConfigurationError(
            f"{name} cannot be read as YAML: it is nested too deeply"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{name} cannot be read as YAML: {error}") from error
    if document is None:
        return []
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{name} must contain keys and values, such as 'state.backend.type: x'"
        )
    return [RawSetting(key, value, name) for key, value in _flat(document)]


def _flat(document: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _loader() -> Any:
    import yaml

    class Loader(yaml.BaseLoader):
        """Leaves values as they are written, for `off`, `0123` and `1:30` mean other things here.

        A key that is there twice is refused, where YAML would take the last.
        """

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for index, key in enumerate(keys):
                if key.value in (earlier.value for earlier in keys[:index]):
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} appears twice", key.start_mark
                    )
            return super().construct_mapping(node, deep)

    null = "tag:yaml.org,2002:null"
    Loader.add_implicit_resolver(null, re.compile("(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
    Loader.add_constructor(null, lambda loader, node: None)
    return Loader


_EITHER_OR = ("savepoints.schedule.interval", "savepoints.schedule.cron")


def resolve(layers: Sequence[Layer]) -> dict[str, Setting]:
    """Return the settings that count, by key."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        if any(key in layer for key in _EITHER_OR):
            for key in _EITHER_OR:
                merged.pop(key, None)
        merged.update(layer)
    chosen = _restart_type(layers)
    if chosen is None:
        return merged
    merged[RESTART_TYPE] = chosen
    return {k: s for k, s in merged.items() if restart_kind(k) in (None, chosen.text)}


def _restart_type(layers: Sequence[Layer]) -> Setting | None:
    """The highest layer with keys of restart strategies decides which strategy it is.

    Either by name, or because all its keys belong to one. The keys of the other strategies, in
    the layers below, are then ignored.
    """
    kinds: set[str] = set()
    for layer in reversed(layers):
        named = layer.get(RESTART_TYPE)
        if named is not None and (not kinds or named.text in kinds):
            return named
        about = {kind: key for key in layer if (kind := restart_kind(key)) is not None}
        if not kinds and len(about) == 1:
            ((kind, key),) = about.items()
            return replace(layer[key], text=kind)
        kinds = kinds or set(about)
    return None


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

    def without_code(self, prefix: str | tuple[str, ...]) -> Configuration:
        """Return a configuration without keys of these prefixes that `with_code` had set."""
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

    def replace(self, prefix: str | tuple[str, ...], settings: Mapping[str, Any]) -> None:
        """The same, and forget what code had set with one of these prefixes."""
        self._set(self.current.without_code(prefix), settings)

    def _set(self, configuration: Configuration, settings: Mapping[str, Any]) -> None:
        for key, value in settings.items():
            configuration = configuration.with_code(key, value)
        self.current = configuration


_BACKEND = "state.backend.type"
_STORAGE = "execution.checkpointing.storage"


def storage_options(configuration: Configuration) -> dict[str, str]:
    """The settings of storages, as `open_storage` takes them."""
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
