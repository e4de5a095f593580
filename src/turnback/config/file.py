"""The configuration file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnback.config.layer import Given, Layer, Rank, read_layer
from turnback.core.errors import ConfigurationError

FILE_VARIABLE = "TURNBACK_CONF"
DEFAULT_FILE = "turnback.yaml"


def file_layer(environ: Mapping[str, str], directory: Path) -> Layer:
    """What the file says: the one TURNBACK_CONF names, else turnback.yaml if there is one.

    Raises:
        ConfigurationError: It is not there although it was named, cannot be read, or is wrong.
    """
    named = environ.get(FILE_VARIABLE)
    name = named or DEFAULT_FILE
    path = directory / Path(name).expanduser()
    if not path.is_file():
        if named:
            raise ConfigurationError(f"{FILE_VARIABLE} names {named!r}, which is no file")
        return {}
    return read_layer(Rank.FILE, _read(path, name))


def _read(path: Path, name: str) -> list[Given]:
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
    return [Given(key, value, name) for key, value in _flat(document)]


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
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    null = "tag:yaml.org,2002:null"
    Loader.add_implicit_resolver(null, re.compile("(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
    Loader.add_constructor(null, lambda loader, node: None)
    return Loader
