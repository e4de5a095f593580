"""`turnback config`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnback.cli.context import Cli
from turnback.cli.output import Cell
from turnback.cli.verb import Panel, Verb, flag
from turnback.inspect.model import ConfigRow


def config(
    cli: Cli,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="Only keys that hold this text.")
    ] = None,
    set_only: Annotated[bool, flag("--set-only", help="Leave defaults out.")] = False,
    doc: Annotated[bool, flag("--doc", help="Also say what each key does.")] = False,
) -> None:
    """Show the configuration: every key, its value and where that comes from.

    Defaults are overridden by turnback.yaml (or the file that TURNBACK_CONF names), that by
    environment variables, those by the program, and that by -D. What a program sets is known only
    when it runs: the dashboard shows it for a running job.
    """
    rows = [
        ConfigRow(key=e.key, value=e.value_text, origin=e.origin, doc=e.doc)
        for e in cli.configuration.entries()
        if (text or "").lower() in e.key and (e.is_set or not set_only)
    ]
    if cli.json:
        cli.out.document(rows)
        return
    columns = ("key", "value", "origin", *(("what it does",) if doc else ()))
    cli.out.table(columns, [_row(row, doc) for row in rows])


def _row(row: ConfigRow, doc: bool) -> list[Cell | str | None]:
    style = "dim" if row.origin == "default" else "bold"
    value = None if row.value is None else Cell(row.value, style)
    return [row.key, value, Cell(row.origin, style), *([row.doc] if doc else [])]


VERB = Verb(
    "config",
    config,
    Panel.TOOLS,
    examples=(
        "turnback config",
        "turnback config savepoints --doc",
        "turnback config --set-only -D state.checkpoints.num-retained=3",
    ),
)
