"""`turnback get`: what a job's state holds for one key, while the job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from turnback.cli.command import argument, command, number_option
from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import time_ago, value_text
from turnback.cli.parameters import job_argument

if TYPE_CHECKING:
    from turnback.views.model import KeyView


@command(
    "get",
    "turnback get orders totals total alice",
    "turnback get orders totals by_day '[\"alice\", 7]' --json",
    "turnback get orders visits pages alice --rows 100",
)
@job_argument
@argument("uid", "UID", help="The operator.")
@argument("state", "STATE", help="The name of its state.")
@argument(
    "key",
    "KEY",
    help="Text, a number, true, a date or time in ISO format, bytes as 0x00ff; several columns or "
    "a row as a JSON array.",
)
@number_option(
    "--rows", least=1, default=50, help="Most list elements or map entries; 50 if left out."
)
@click.option("--after", metavar="NEXT", help="Go on behind the page that ended with this.")
def get(
    cli: Cli, job_name: str, uid: str, state: str, key: str, rows: int, after: str | None
) -> ExitCode | None:
    """Show what a state of a job holds for one key.

    It is the state of the newest checkpoint: what the job would go on with if it failed now. The
    job may run and does not notice. Needs no Spark. Ends with code 3 if there is nothing.
    """
    from turnback.views.lookup import look_up

    job = cli.job(job_name)
    found = look_up(job, uid, state, key, after=after, limit=rows)
    if cli.json:
        cli.out.document(found)
    elif found.found:
        _print(cli, found, job.now_ms())
    else:
        cli.out.message(
            f"{job.name}: state {state!r} of operator {uid!r} holds nothing for {key!r} in "
            f"{found.snapshot}, epoch {found.epoch}"
        )
    return None if found.found else ExitCode.NOT_FOUND


def _print(cli: Cli, found: KeyView, now_ms: int) -> None:
    if found.columns[0] == "value":
        cli.out.line(value_text(found.rows[0][0]) or "null")
    else:
        cli.out.table(found.columns, [[value_text(value) for value in row] for row in found.rows])
    cli.out.hint(f"{found.snapshot}, epoch {found.epoch}, {time_ago(found.created_ms, now_ms)}")
    if found.next is not None:
        cli.out.message(f"There is more: --after {found.next}")
