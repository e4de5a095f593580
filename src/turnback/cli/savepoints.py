"""`turnback savepoints`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnback.cli.complete import complete_job
from turnback.cli.context import Cli
from turnback.cli.output import Column, Value
from turnback.cli.verb import Panel, Verb, flag
from turnback.inspect.model import SavepointRow

_COLUMNS = (
    "job",
    "id",
    "label",
    "taken",
    Column("checkpoint", right=True, extra=True),
    Column("size", right=True),
    Column("there", extra=True),
    "path",
    Column("note", extra=True),
)


def savepoints(
    cli: Cli,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Only those of this job.", autocompletion=complete_job
        ),
    ] = None,
    restore: Annotated[
        bool, flag("--restore", help="Print the commands that start a job from them.")
    ] = False,
) -> None:
    """List savepoints, newest first.

    Those that the jobs in the root have taken, wherever they are.
    """
    rows = cli.jobs.savepoints() if job is None else cli.job(job).savepoints()
    if cli.json:
        cli.out.document(rows)
    elif restore:
        for row in rows:
            cli.out.line(row.restore)
    elif rows or not cli.out.terminal:
        cli.out.table(_COLUMNS, [_row(cli, row) for row in rows])
    else:
        cli.out.line("There are no savepoints.")


def _row(cli: Cli, row: SavepointRow) -> list[Value]:
    there = {True: "yes", False: "gone", None: "unknown"}[row.exists]
    return [
        row.job,
        row.id,
        row.label,
        cli.out.time(row.created_ms),
        f"chk-{row.checkpoint}",
        cli.out.size(row.bytes),
        there,
        row.path,
        row.note,
    ]


VERB = Verb(
    "savepoints",
    savepoints,
    Panel.LOOK,
    examples=("turnback savepoints", "turnback savepoints orders --restore"),
)
