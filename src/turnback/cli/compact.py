"""`turnback compact`: join small files of the tables that a job writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from turnback.cli.command import argument, command, flag
from turnback.cli.context import Cli
from turnback.cli.output import Column
from turnback.cli.parameters import arguments_argument, job_argument, program_of_job
from turnback.core.errors import ConfigurationError

if TYPE_CHECKING:
    from turnback.operations.compaction import CompactedTable

_COLUMNS: tuple[Column[CompactedTable], ...] = (
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
    cli.out.records(_COLUMNS, list(done.tables))
    if dry_run:
        cli.out.message("Nothing was done. Leave out --dry-run to do it.")
