"""Settings of Spark for a JVM that is about to start, in a file that only its user can read.

On a command line everybody on the machine could read them, passwords too.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from turnback.core.errors import ConfigurationError
from turnback.spark.class_archive import spark_home
from turnback.spark.scratch import private_directory

_OPTION = "--properties-file"
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""What PySpark appends to the command that starts the JVM."""
_DEFAULT_ARGUMENTS = "pyspark-shell"


@contextmanager
def settings_file(settings: Mapping[str, str]) -> Iterator[None]:
    """Let the JVM that starts meanwhile read its settings from a file, which is deleted afterwards.

    A file of this kind replaces the defaults of the installation and what the user names in
    PYSPARK_SUBMIT_ARGS, so it begins with a copy of those.

    Raises:
        ConfigurationError: The file that PYSPARK_SUBMIT_ARGS names cannot be read.
    """
    before = os.environ.get(_ARGUMENTS)
    arguments, named = _without_file(shlex.split(before or _DEFAULT_ARGUMENTS))
    with private_directory() as directory:
        file = directory / "spark.properties"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(_defaults(named) + b"\n\n" + encode_properties(settings))
        os.environ[_ARGUMENTS] = shlex.join([_OPTION, str(file), *arguments])
        try:
            yield
        finally:
            if before is None:
                del os.environ[_ARGUMENTS]
            else:
                os.environ[_ARGUMENTS] = before


def encode_properties(settings: Mapping[str, str]) -> bytes:
    """Write settings as Java's properties, of which the last one of a key counts."""
    lines = (f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    """Escape all that could end a key, or begin something else."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-._/") else _code(c) for c in text)


def _code(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _without_file(arguments: list[str]) -> tuple[list[str], str | None]:
    """Take the properties file, if there is one, out of arguments of spark-submit."""
    rest = []
    named = None
    words = iter(arguments)
    for word in words:
        if word == _OPTION:
            named = next(words, None)
        elif word.startswith(f"{_OPTION}="):
            named = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, named


def _defaults(named: str | None) -> bytes:
    if named is not None:
        try:
            return Path(named).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"{_ARGUMENTS} names the properties file {named}, which cannot be read: "
                f"{error.strerror}"
            ) from error
    home = spark_home()
    given = os.environ.get("SPARK_CONF_DIR")
    directory = Path(given) if given else home / "conf" if home is not None else None
    try:
        return (directory / "spark-defaults.conf").read_bytes() if directory is not None else b""
    except OSError:  # there is none
        return b""
