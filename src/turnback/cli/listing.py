"""`turnback list`."""

from __future__ import annotations

from typing import Annotated

from turnback.cli.context import Cli
from turnback.cli.output import Column, Value
from turnback.cli.verb import Panel, Verb, flag
from turnback.core.errors import ConfigurationError
from turnback.inspect.model import JobSummary

_OVER = frozenset({"FINISHED", "FAILED", "CANCELED"})
_COLUMNS = (
    "name",
    "state",
    Column("attempt", right=True, extra=True),
    Column("checkpoint", right=True),
    Column("restarts", right=True, extra=True),
    Column("records/s", right=True),
    "started",
    Column("id", extra=True),
    "problem",
)


def list_jobs(
    cli: Cli,
    running: Annotated[bool, flag("-r", "--running", help="Only jobs that run.")] = False,
    all: Annotated[bool, flag("-a", "--all", help="Also jobs that are over.")] = False,
) -> None:
    """List jobs.

    Without options, those that are not over: running, restarting, lost or unreadable ones.
    """
    if running and all:
        raise ConfigurationError("-r and -a contradict each other: give one of them")
    found = cli.jobs.list()
    shown = [job for job in found if all or _is_shown(job, running)]
    if cli.json:
        cli.out.document(shown)
        return
    if shown or not cli.out.terminal:
        cli.out.table(_COLUMNS, [_row(cli, job) for job in shown])
    _tell_others(cli, found, len(found) - len(shown))


def _is_shown(job: JobSummary, running: bool) -> bool:
    return job.state == "RUNNING" if running else job.state not in _OVER


def _row(cli: Cli, job: JobSummary) -> list[Value]:
    rate = None if job.records_per_s is None else round(job.records_per_s, 1)
    return [
        job.name,
        cli.out.state(job.state),
        job.attempt,
        job.checkpoint,
        job.restarts,
        cli.out.number(rate) if job.state == "RUNNING" else None,
        cli.out.time(job.started_ms or job.created_ms),
        cli.out.id(job.job_id),
        job.problem or job.cause,
    ]


def _tell_others(cli: Cli, found: list[JobSummary], others: int) -> None:
    if not found:
        cli.out.say(f"There are no jobs in {cli.root}. Look elsewhere with --root DIR.")
    elif others:
        jobs = "job is" if others == 1 else "jobs are"
        cli.out.hint(f"{others} more {jobs} in {cli.root}: turnback list -a")


VERB = Verb(
    "list",
    list_jobs,
    Panel.LOOK,
    examples=("turnback list", "turnback list -a --json", "turnback --root s3://bucket/jobs list"),
)
