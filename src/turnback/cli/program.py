"""Arguments that say which program to run and what it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnback.cli.context import Cli
from turnback.cli.verb import flag
from turnback.core.errors import ConfigurationError

ScriptArgument = Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file.")]
ArgumentsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="What the script is given.")
]
AllowAllOption = Annotated[
    bool,
    flag("-n", "--allow-non-restored-state", help="Drop all that the program has no place for."),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="STATE",
        help="Drop this if the program has no place for it: UID/STATE, or all state, the position "
        "or the promised output of a UID; may be repeated.",
    ),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="What had another name in the snapshot: UID=UID or UID/STATE=UID/STATE; may be "
        "repeated.",
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the job, instead of the script's."),
]


def script_path(text: str) -> str:
    """The path of a script.

    Raises:
        ConfigurationError: It is no file.
    """
    path = Path(text).expanduser()
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise ConfigurationError(f"the script {text} {what}: give the path of a Python file")
    return str(path.absolute())


def snapshot_location(cli: Cli, text: str, *, whole: bool = False) -> str:
    """A snapshot to start from, written so that it means the same in the driver.

    Args:
        cli: What the command line says.
        text: What was written.
        whole: Names and ids have to be whole, as the snapshot may be deleted.

    Raises:
        ConfigurationError: It is empty.
    """
    from turnback.config.configuration import location

    if not text.strip():
        raise ConfigurationError("-s names no snapshot: give a path, chk-7, latest or a time")
    if "/" in text or Path(text).is_dir():
        return location(text)
    if "@" in text:
        return cli.snapshot(text, whole=whole).origin.uri
    return text


def allowed(everything: bool, named: list[str] | None) -> bool | tuple[str, ...]:
    """What may be dropped: all of it, or what is named.

    Raises:
        ConfigurationError: Both are said.
    """
    if everything and named:
        raise ConfigurationError("-n and --allow contradict each other: give one of them")
    return everything or tuple(named or ())


def renames(pairs: list[str] | None) -> dict[str, str]:
    """Names in the snapshot to names in the program.

    Raises:
        ConfigurationError: One has another form than OLD=NEW.
    """
    found: dict[str, str] = {}
    for pair in pairs or []:
        old, equals, new = pair.partition("=")
        if not equals or not old.strip() or not new.strip():
            raise ConfigurationError(f"--rename {pair!r}: write OLD=NEW, such as counts=totals")
        found[old.strip()] = new.strip()
    return found
