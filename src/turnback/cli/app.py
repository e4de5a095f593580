"""All commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from turnback.cli import (
    asking,
    check,
    checkpoints,
    config,
    difference,
    disposal,
    doctor,
    garbage,
    inspection,
    listing,
    logs,
    query,
    run,
    savepoints,
    status,
    ui,
    verification,
)
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
    flag,
)

VERBS: tuple[Verb, ...] = (
    run.VERB,
    check.VERB,
    listing.VERB,
    status.VERB,
    logs.VERB,
    checkpoints.VERB,
    savepoints.VERB,
    asking.SAVEPOINT,
    asking.STOP,
    asking.CANCEL,
    inspection.VERB,
    query.VERB,
    difference.VERB,
    verification.VERB,
    disposal.VERB,
    ui.VERB,
    config.VERB,
    doctor.VERB,
    garbage.VERB,
)
"""All commands, in the order of the help. Each is the VERB of its module."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"turnback {version('turnback')}")
        raise typer.Exit


def _shared(
    ctx: typer.Context,
    root: RootOption = None,
    settings: SettingsOption = None,
    json: JsonOption = False,
    no_color: NoColorOption = False,
    debug: DebugOption = False,
    version: Annotated[
        bool,
        flag("--version", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    ctx.obj = Shared(root, tuple(settings or ()), json, no_color, debug)


def make_app() -> typer.Typer:
    """The program, ready to be called."""
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
    for verb in VERBS:
        verb.register(app)
    return app


def _exit_codes() -> str:
    codes = (f"  {code.value:>3}  {code.meaning}" for code in ExitCode)
    return "\n".join(["[bold]Exit codes[/bold]", *codes])
