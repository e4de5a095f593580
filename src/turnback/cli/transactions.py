"""`turnback transactions`: list and settle what a dead job has left in its sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from turnback.cli.command import Group, flag
from turnback.cli.context import Cli
from turnback.cli.output import Column
from turnback.cli.parameters import (
    arguments_argument,
    job_argument,
    program_of_job,
    whole_job_argument,
    yes_option,
)
from turnback.core.errors import ConfigurationError

if TYPE_CHECKING:
    from turnback.operations.transactions import TransactionRow
    from turnback.views.job import Job

_COLUMNS: tuple[Column[TransactionRow], ...] = (
    Column("sink", lambda row, out: row.sink),
    Column("kind", lambda row, out: row.kind),
    Column("state", lambda row, out: row.state.value),
    Column("epoch", lambda row, out: row.epoch, right=True),
    Column("rows", lambda row, out: row.rows, right=True),
    Column("size", lambda row, out: out.size(row.bytes), right=True),
    Column("what", lambda row, out: row.what),
    Column("path", lambda row, out: row.path),
    Column("held up", lambda row, out: row.waiting),
    Column("problem", lambda row, out: row.problem),
)

script_option = click.option(
    "--script",
    metavar="FILE",
    help="The job's program, if it has sinks that Turnback does not know.",
)
force_option = flag("--force", help="Even if this machine cannot tell whether its driver is dead.")


@click.group("transactions", cls=Group)
def transactions() -> None:
    """List and settle transactions of sinks that a dead job has left behind."""


@transactions.command("list", examples=("turnback transactions list orders",))
@job_argument
def list_transactions(cli: Cli, job_name: str) -> None:
    """List transactions of sinks that are not settled yet.

    Promised ones are in the job's newest checkpoint and are committed when it is started again.
    What was left behind is in no checkpoint and is rolled back then.
    """
    from turnback.operations.transactions import list_transactions

    cli.out.records(_COLUMNS, list_transactions(cli.job(job_name)))


@transactions.command(
    "commit",
    examples=(
        "turnback transactions commit orders",
        "turnback transactions commit orders --script job.py -- --input /data",
    ),
)
@whole_job_argument
@arguments_argument
@script_option
@force_option
@yes_option
def commit(
    cli: Cli, job_name: str, arguments: Sequence[str], script: str | None, force: bool, yes: bool
) -> None:
    """Commit what a dead job has promised, as its next start would do.

    What was left behind is rolled back.
    """
    job = cli.job(job_name, whole=True)
    cli.confirm(f"Commit the promised transactions of job {job.name!r}?", yes)
    _settle(cli, job, "commit", script, arguments, force)


@transactions.command("abort", examples=("turnback transactions abort orders --yes",))
@whole_job_argument
@arguments_argument
@script_option
@force_option
@yes_option
def abort(
    cli: Cli, job_name: str, arguments: Sequence[str], script: str | None, force: bool, yes: bool
) -> None:
    """Drop what a dead job has promised.

    The records in these transactions are lost: the job goes on after them.
    """
    job = cli.job(job_name, whole=True)
    cli.confirm(
        f"Drop the promised transactions of job {job.name!r}? The records in them are lost for "
        "good, as the job goes on after them.",
        yes,
    )
    _settle(cli, job, "abort", script, arguments, force)


def _settle(
    cli: Cli,
    job: Job,
    action: Literal["commit", "abort"],
    script: str | None,
    arguments: Sequence[str],
    force: bool,
) -> None:
    from turnback.launch.preflight import with_program
    from turnback.operations.transactions import Action, Settled, settle

    if script is not None:  # the program itself makes its sinks
        launch = program_of_job(cli, job.name, script, arguments)
        settled = with_program(launch, action, Settled, force=force)
    elif arguments:
        raise ConfigurationError("arguments are for a program: name it with --script")
    else:
        settled = settle(job, Action(action), force=force)
    if cli.json:
        cli.out.document(settled)
        return
    if settled.checkpoint is None:
        cli.out.line("nothing was promised")
    for uid, count in settled.transactions.items():
        cli.out.line(f"{uid}: {count} {'committed' if action == 'commit' else 'dropped'}")
