"""`turnback config`: the configuration, and where each value comes from."""

from __future__ import annotations

from turnback.cli.command import argument, command, flag
from turnback.cli.context import Cli
from turnback.cli.output import Cell, Value


@command(
    "config",
    "turnback config",
    "turnback config savepoints --doc",
    "turnback config --set-only -D state.checkpoints.num-retained=3",
)
@argument("text", "[TEXT]", help="Only keys that hold this text.")
@flag("--set-only", help="Leave defaults out.")
@flag("--doc", help="Also say what each key does.")
def config(cli: Cli, text: str | None, set_only: bool, doc: bool) -> None:
    """Show the configuration: every key, its value and where that comes from.

    Defaults are overridden by turnback.yaml (or the file that TURNBACK_CONF names), that by
    environment variables, those by the program, and that by -D. What a program sets is known only
    when it runs: the dashboard shows it for a running job.
    """
    from turnback.inspect.model import ConfigRow

    rows = [
        ConfigRow(key=e.key, value=e.value_text, origin=e.origin, doc=e.doc)
        for e in cli.configuration.entries()
        if (text or "").lower() in e.key and (e.is_set or not set_only)
    ]
    if cli.json:
        cli.out.document(rows)
        return
    table: list[list[Value]] = []
    for row in rows:
        style = "dim" if row.origin == "default" else "bold"
        value = None if row.value is None else Cell(row.value, style)
        table.append([row.key, value, Cell(row.origin, style), *([row.doc] if doc else [])])
    cli.out.table(("key", "value", "origin", *(("what it does",) if doc else ())), table)
