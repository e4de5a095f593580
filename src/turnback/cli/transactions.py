"""`turnback transactions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnback.cli.arguments import JobArgument, WholeJobArgument
from turnback.cli.confirm import YesOption, confirm
from turnback.cli.context import Cli
from turnback.cli.output import Column
from turnback.cli.program import ArgumentsArgument, script_path
from turnback.cli.verb import Panel, Verb, VerbGroup, flag

if TYPE_CHECKING:
    from turnback.inspect.job import Job
    from turnback.inspect.transactions import Settled

ForceOption = Annotated[
    bool, flag("--force", help="Even if it cannot be told from here that its driver is dead.")
]
ScriptOption = Annotated[
    str | None,
    typer.Option(
        "--script",
        metavar="FILE",
        help="The job's program, if it has sinks that Turnback does not know.",
    ),
]
_COLUMNS = (
    "sink",
    "kind",
    "state",
    Column("epoch", right=True),
    Column("rows", right=True),
    Column("size", right=True),
    "what",
    "path",
    "problem",
)


def list_transactions(cli: Cli, job: JobArgument) -> None:
    """List transactions of sinks that are not settled yet.

    Promised ones are in the job's newest checkpoint and are committed when it is started again.
    What was left behind is in no checkpoint and is rolled back then.
    """
    from turnback.inspect.transactions import list_transactions

    rows = list_transactions(cli.job(job))
    if cli.json:
        cli.out.document(rows)
        return
    out = cli.out
    table = [
        [
            r.sink,
            r.kind,
            r.state.value,
            r.epoch,
            r.rows,
            out.size(r.bytes),
            r.what,
            r.path,
            r.problem,
        ]
        for r in rows
    ]
    out.table(_COLUMNS, table)


def commit(
    cli: Cli,
    job: WholeJobArgument,
    arguments: ArgumentsArgument = None,
    script: ScriptOption = None,
    force: ForceOption = False,
    yes: YesOption = False,
) -> None:
    """Commit what a dead job has promised, as its next start would do.

    What was left behind is rolled back.
    """
    found = cli.job(job, whole=True)
    confirm(cli, f"Commit the promised transactions of job {found.name!r}?", yes)
    _settle(cli, found, "commit", script, arguments or [], force)


def abort(
    cli: Cli,
    job: WholeJobArgument,
    arguments: ArgumentsArgument = None,
    script: ScriptOption = None,
    force: ForceOption = False,
    yes: YesOption = False,
) -> None:
    """Drop what a dead job has promised.

    The records in these transactions are lost: the job goes on after them.
    """
    found = cli.job(job, whole=True)
    question = (
        f"Drop the promised transactions of job {found.name!r}? The records in them are lost for "
        "good, as the job goes on after them."
    )
    confirm(cli, question, yes)
    _settle(cli, found, "abort", script, arguments or [], force)


def _settle(
    cli: Cli, job: Job, action: str, script: str | None, arguments: list[str], force: bool
) -> None:
    from turnback.core.errors import ConfigurationError
    from turnback.inspect.transactions import Action, settle

    if script is None:
        if arguments:
            raise ConfigurationError("arguments are for a program: name it with --script")
        done = settle(job, Action(action), force=force)
    else:
        done = _with_program(cli, job, action, script_path(script), arguments, force)
    if cli.json:
        cli.out.document(done)
        return
    told = {"commit": "committed", "abort": "dropped"}[action]
    if done.checkpoint is None:
        cli.out.line("nothing was promised")
    for uid, count in done.transactions.items():
        cli.out.line(f"{uid}: {count} {told}")


def _with_program(
    cli: Cli, job: Job, action: str, script: str, arguments: list[str], force: bool
) -> Settled:
    """Let the program itself make its sinks; it is run until it calls execute()."""
    from turnback.inspect.transactions import Settled
    from turnback.job.run import Launch, LaunchMode
    from turnback.launch.preflight import ProgramTask, with_program

    launch = Launch(
        script=script,
        arguments=tuple(arguments),
        directory=str(Path.cwd()),
        mode=LaunchMode.PLAN,
        name=job.name,
        settings=cli.pairs | {"state.checkpoints.dir": cli.root},
    )
    return with_program(launch, ProgramTask(action, force), Settled)


VERB = VerbGroup(
    "transactions",
    "List and settle transactions of sinks that a dead job has left behind.",
    Panel.ACT,
    (
        Verb(
            "list",
            list_transactions,
            Panel.ACT,
            examples=("turnback transactions list orders",),
        ),
        Verb(
            "commit",
            commit,
            Panel.ACT,
            examples=(
                "turnback transactions commit orders",
                "turnback transactions commit orders --script job.py -- --input /data",
            ),
        ),
        Verb(
            "abort",
            abort,
            Panel.ACT,
            examples=("turnback transactions abort orders --yes",),
        ),
    ),
)
