"""The configuration file."""

from __future__ import annotations

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
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{name} cannot be read as YAML: {error}") from error
    if document is None:
        return []
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{name} must hold keys and values, such as 'state.backend.type: x'"
        )
    try:
        return [Given(key, value, name) for key, value in _flat(document)]
    except RecursionError:
        raise ConfigurationError(f"{name} is nested without end: write each key once") from None


def _flat(document: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is there twice, where YAML would take the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is there twice", key.start_mark
                    )
                if isinstance(key.value, str):
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader
