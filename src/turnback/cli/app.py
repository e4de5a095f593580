"""All commands, put together."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Annotated

import typer

from turnback.cli.exit import ExitCode
from turnback.cli.quick import QuickGroup
from turnback.cli.verb import (
    DebugOption,
    JsonOption,
    NoColorOption,
    RootOption,
    SettingsOption,
    Shared,
    Verb,
    VerbGroup,
    flag,
)

VERBS = {
    "run": "run.VERB",
    "check": "check.VERB",
    "list": "listing.VERB",
    "status": "status.VERB",
    "logs": "logs.VERB",
    "checkpoints": "checkpoints.VERB",
    "savepoints": "savepoints.VERB",
    "savepoint": "asking.SAVEPOINT",
    "stop": "asking.STOP",
    "cancel": "asking.CANCEL",
    "transactions": "transactions.VERB",
    "inspect": "inspection.VERB",
    "query": "query.VERB",
    "diff": "difference.VERB",
    "verify": "verification.VERB",
    "dispose": "disposal.VERB",
    "ui": "ui.VERB",
    "config": "config.VERB",
    "doctor": "doctor.VERB",
    "gc": "garbage.VERB",
}
"""Every command, in the order of the help, and where in this package it is declared."""


def find_verb(name: str) -> Verb | VerbGroup:
    """The declaration of a command."""
    module, _, attribute = VERBS[name].partition(".")
    found = getattr(import_module(f"turnback.cli.{module}"), attribute)
    assert isinstance(found, Verb | VerbGroup) and found.name == name
    return found


def make_app(words: Collection[str] = ()) -> typer.Typer:
    """The program, ready to be called.

    Args:
        words: What it will be called with. Commands that are not among them are left out, as
            importing them all takes longer than most of them run; without a command all are there.
    """
    app = typer.Typer(
        name="turnback",
        cls=QuickGroup,
        help="State, checkpoints and savepoints for PySpark streaming jobs.",
        epilog=_exit_codes(),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_shared)
    for name in [name for name in VERBS if name in words] or VERBS:
        find_verb(name).register(app)
    return app


def _shared(
    ctx: typer.Context,
    root: RootOption = None,
    settings: SettingsOption = None,
    json: JsonOption = False,
    no_color: NoColorOption = False,
    debug: DebugOption = False,
    version: Annotated[
        bool,
        flag(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    ctx.obj = Shared(root, tuple(settings or ()), json, no_color, debug)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"turnback {version('turnback')}")
        raise typer.Exit


def _exit_codes() -> str:
    codes = (f"  {code.value:>3}  {code.meaning}" for code in ExitCode)
    return "\n".join(["[bold]Exit codes[/bold]", *codes])
