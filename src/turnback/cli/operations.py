"""What is done to jobs from outside: `transactions`, `delete`, `compact` and `redrive`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from turnback.cli.command import Group, argument, command, flag
from turnback.cli.context import Cli, ExitCode, TimedOutError
from turnback.cli.output import Column
from turnback.cli.parameters import (
    arguments_argument,
    job_argument,
    program_of_job,
    whole_job_argument,
    yes_option,
)
from turnback.cli.requests import timeout_option
from turnback.core.clock import SystemClock
from turnback.core.errors import ConfigurationError
from turnback.core.units import format_duration, parse_duration

if TYPE_CHECKING:
    from turnback.operations.compaction import CompactedTable
    from turnback.operations.redrive import Redrive, RedriveRow
    from turnback.operations.transactions import TransactionRow
    from turnback.views.job import Job

_TRANSACTIONS: tuple[Column[TransactionRow], ...] = (
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

    cli.out.records(_TRANSACTIONS, list_transactions(cli.job(job_name)))


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


@command("delete", "turnback delete orders", "turnback delete orders --savepoints --yes")
@whole_job_argument
@flag("--savepoints", help="Its savepoints too; otherwise they are kept.")
@flag(
    "--force",
    help="Also if its driver cannot be asked, or sinks have promised output that is not committed.",
)
@yes_option
def delete(cli: Cli, job_name: str, savepoints: bool, force: bool, yes: bool) -> None:
    """Delete a job that does not run: its directory with all checkpoints, for good.

    Savepoints are kept unless --savepoints is given, and can be started from. What sinks have
    written stays. Names and ids have to be whole.
    """
    from turnback.operations.deletion import delete_job, refuse_to_delete

    job = cli.job(job_name, whole=True)
    refuse_to_delete(job, force=force)
    there = sum(row.exists is not False for row in job.savepoints())
    also = f" and {there} savepoints" if savepoints and there else ""
    cli.confirm(f"Delete job {job.name!r} with all its checkpoints{also} for good?", yes)
    deleted = delete_job(job, cli.jobs, savepoints=savepoints, force=force)
    if cli.json:
        cli.out.document(deleted)
        return
    cli.out.line(
        f"deleted {deleted.directory}: {deleted.files} files, {cli.out.size(deleted.bytes)}"
    )
    for path in deleted.savepoints:
        cli.out.line(f"deleted {path}")
    for path in deleted.kept:
        cli.out.message(f"kept the savepoint {path}")


_COMPACTED: tuple[Column[CompactedTable], ...] = (
    Column("sink", lambda row, out: row.sink),
    Column("files", lambda row, out: row.files_before, right=True),
    Column("now", lambda row, out: row.files_after, right=True),
    Column("joined", lambda row, out: row.joined, right=True),
    Column("size", lambda row, out: out.size(row.bytes), right=True),
    Column("version", lambda row, out: row.version),
    Column("table", lambda row, out: row.table),
)


@command(
    "compact",
    "turnback compact orders",
    "turnback compact orders to-payments --dry-run",
    "turnback compact orders --script job.py -- --input /data",
)
@job_argument
@argument("uid", "[UID]", help="The sink whose table is meant; by default all tables of the job.")
@arguments_argument
@flag("--dry-run", help="Say what would be done, and do nothing.")
@click.option(
    "--script",
    metavar="FILE",
    help="The job's program, if only it knows the catalog of an Iceberg table.",
)
def compact(
    cli: Cli,
    job_name: str,
    uid: str | None,
    arguments: Sequence[str],
    dry_run: bool,
    script: str | None,
) -> None:
    """Join small files of the Delta and Iceberg tables that a job writes.

    The job may be running: no row changes, nothing is committed twice, and its own commits go on.
    Old files stay for readers of older versions, until you vacuum the table.
    """
    from turnback.launch.preflight import with_program
    from turnback.operations.compaction import CompactedTables, compact

    job = cli.job(job_name)
    if script is not None:
        launch = program_of_job(cli, job.name, script, arguments)
        words = (*(("--dry-run",) if dry_run else ()), *((uid,) if uid is not None else ()))
        done = with_program(launch, "compact", CompactedTables, words=words)
    elif arguments:
        raise ConfigurationError("arguments are for a program: name it with --script")
    else:
        done = compact(
            job,
            uid,
            dry_run=dry_run,
            on_table=lambda name: cli.out.message(f"Looking at the table of sink {name!r} ..."),
        )
    if cli.json:
        cli.out.document(done)
        return
    cli.out.records(_COMPACTED, list(done.tables))
    if dry_run:
        cli.out.message("Nothing was done. Leave out --dry-run to do it.")


_POLL_S = 0.2


@command(
    "redrive",
    "turnback redrive orders dead-letters/",
    "turnback redrive orders dead-letters/ --operator parsed --dry-run",
    "turnback redrive orders - < letters.json",
)
@whole_job_argument
@argument("places", "LETTERS...", help="Files, directories or Delta tables; - for JSON lines.")
@click.option("--operator", metavar="UID", help="Only those of this operator.")
@flag("--dry-run", help="Only count them.")
@flag("--no-wait", help="Do not wait until the job has taken them.")
@timeout_option
def redrive(
    cli: Cli,
    job_name: str,
    places: Sequence[str],
    operator: str | None,
    dry_run: bool,
    no_wait: bool,
    timeout: str | None,
) -> ExitCode | None:
    """Feed dead letters back to the operators whose functions had failed at them.

    Each is fed back exactly once, however often it is given. One that fails again becomes a dead
    letter again. A job that does not run takes them when it is started.
    """
    from turnback.operations.letters import read_letters
    from turnback.operations.redrive import Redrive

    if no_wait and timeout is not None:
        raise ConfigurationError("--no-wait and --timeout contradict each other: give one of them")
    limit_ms = None if timeout is None else parse_duration(timeout, "--timeout")
    job = cli.job(job_name, whole=True)
    work = Redrive(job, read_letters(places, sys.stdin), operator)
    row = work.count() if dry_run else work.give()
    waits = not (dry_run or no_wait or row.done) and job.liveness().takes_requests
    if waits:
        try:
            row = _wait(job, work, limit_ms)
        except KeyboardInterrupt:
            cli.out.message("\nThey are given back; the job takes them in the background.")
            return ExitCode.INTERRUPTED
    if cli.json:
        cli.out.document(row)
    else:
        _print(cli, row, dry_run=dry_run)
    return ExitCode.FAILED if row.refused else None


def _wait(job: Job, work: Redrive, limit_ms: int | None) -> RedriveRow:
    """Wait until a checkpoint of the job has them, or it ends."""
    clock = SystemClock()
    began = clock.monotonic()
    while not (row := work.look()).done and job.liveness().takes_requests:
        if limit_ms is not None and (clock.monotonic() - began) * 1000 >= limit_ms:
            raise TimedOutError(
                f"job {job.name!r} has not confirmed them after {format_duration(limit_ms)}; they "
                "are given back, and it goes on with them"
            )
        clock.sleep(_POLL_S)
    return row


def _print(cli: Cli, row: RedriveRow, *, dry_run: bool) -> None:
    will = "would be given back" if dry_run else "given back"
    cli.out.line(f"{row.letters:,} dead letters: {row.given:,} {will}, {row.before:,} before")
    if row.done and row.given:
        cli.out.line(f"{row.fed:,} fed to job {row.job!r}")
    elif row.given and not dry_run:
        cli.out.message(f"Job {row.job!r} takes them with its next checkpoint, once it runs.")
    if row.coming:
        cli.out.line(
            f"{row.coming:,} not fed: the job was turned back to a time before them, so their "
            "elements come again"
        )
    for why, count in row.refused.items():
        cli.out.line(f"{count:,} not fed: {why}", "red")
