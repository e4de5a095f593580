"""The layers of a configuration: environment variables, a file, code and the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from turnback.config.options import SPELLINGS, option_of, suggestion
from turnback.config.restart import RESTART_TYPE, restart_kind
from turnback.core.errors import ConfigurationError


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
    """Check the settings of one layer.

    Args:
        precedence: The layer.
        settings: Keys, by any of their names, and values.
        where: What error messages call the layer; by default the origin.
    """
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
            raise ConfigurationError(f"{where or raw.origin}: {both} disagree: keep one of them")
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
                f"-D {start}: write key=value, for example -D parallelism.default=4"
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
                f"{name}: Spark's settings cannot be given as variables, whose names have no small "
                "letters; use the configuration file or -D"
            )
        if name not in _KEYS:
            raise ConfigurationError(
                f"{name} stands for no configuration key{suggestion(name, tuple(_KEYS))}"
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
            raise ConfigurationError(f"{FILE_VARIABLE} names {named!r}, which is no file")
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
            f"{name} cannot be read as YAML: {error.problem or 'it is malformed'}{line}"
        ) from None
    except RecursionError:
        raise ConfigurationError(f"{name} cannot be read as YAML: it is nested too deep") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{name} cannot be read as YAML: {error}") from error
    if document is None:
        return []
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{name} must hold keys and values, such as 'state.backend.type: x'"
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
                        None, None, f"{key.value!r} is there twice", key.start_mark
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
