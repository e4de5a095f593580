"""`turnback redrive`: feeds dead letters back to the job that wrote them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from turnback.cli.command import argument, command, flag
from turnback.cli.context import Cli, ExitCode, TimedOutError
from turnback.cli.parameters import whole_job_argument
from turnback.cli.requests import timeout_option
from turnback.core.clock import SystemClock
from turnback.core.errors import ConfigurationError
from turnback.core.units import format_duration, parse_duration

if TYPE_CHECKING:
    from turnback.operations.redrive import Redrive, RedriveRow
    from turnback.views.job import Job

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
