"""`turnback status`."""

from __future__ import annotations

from turnback.cli.arguments import JobArgument
from turnback.cli.context import Cli
from turnback.cli.output import Column, Value
from turnback.cli.verb import Panel, Verb
from turnback.inspect.model import JobDetail, JobSummary, OperatorNode, Process, RequestRow

_OPERATORS = (
    "uid",
    "kind",
    Column("parallelism", right=True),
    Column("in", right=True),
    Column("out", right=True),
    Column("state", right=True),
    "watermark",
    "inputs",
)


def status(cli: Cli, job: JobArgument) -> None:
    """Show how a job is doing.

    Its state, its driver, its newest checkpoint, its operators and what is being done for it.
    Works as well for jobs that are over.
    """
    detail = cli.job(job).detail()
    if cli.json:
        cli.out.document(detail)
        return
    cli.out.fields(_facts(cli, detail))
    if detail.operators:
        cli.out.head("Operators")
        cli.out.table(_OPERATORS, [_operator(cli, node) for node in detail.operators])
    if detail.requests:
        cli.out.head("Requests")
        columns = ("id", "kind", "state", "asked", Column("parts", right=True), "error")
        cli.out.table(columns, [_request(cli, row) for row in detail.requests])
    for warning in detail.warnings:
        cli.out.say(f"warning: {warning}", "yellow")


def _facts(cli: Cli, detail: JobDetail) -> list[tuple[str, Value]]:
    job, out = detail.summary, cli.out
    versions = ", ".join(f"{name} {version}" for name, version in detail.versions.items())
    return [
        ("name", job.name),
        ("id", job.job_id),
        ("state", out.state(job.state)),
        ("cause", job.cause),
        ("problem", job.problem),
        ("created", out.time(job.created_ms)),
        ("started", out.time(job.started_ms)),
        ("last word", out.time(job.updated_ms)),
        ("attempt", job.attempt),
        ("restarts", job.restarts),
        ("epoch", job.epoch),
        ("checkpoint", None if job.checkpoint is None else f"chk-{job.checkpoint}"),
        ("records", _records(cli, job)),
        ("key groups", detail.max_parallelism),
        ("driver", _process(job.driver)),
        ("supervisor", _process(job.supervisor)),
        ("script", " ".join(detail.script) or None),
        ("log", job.log),
        ("versions", versions or None),
        ("directory", job.directory),
    ]


def _records(cli: Cli, job: JobSummary) -> str | None:
    if job.attempt is None:
        return None
    rate = job.records_per_s
    now = "" if rate is None or job.state != "RUNNING" else f", {rate:.1f} a second"
    return f"{cli.out.number(job.records_in)} read{now}"


def _process(process: Process | None) -> str | None:
    if process is None:
        return None
    alive = {True: "alive", False: "gone", None: "elsewhere"}[process.alive]
    return f"pid {process.pid} on {process.host} ({alive})"


def _operator(cli: Cli, node: OperatorNode) -> list[Value]:
    out = cli.out
    return [
        node.uid,
        node.kind,
        node.parallelism,
        out.number(node.records_in),
        out.number(node.records_out),
        out.size(node.state_bytes),
        out.time(node.watermark_ms),
        ",".join(node.inputs),
    ]


def _request(cli: Cli, row: RequestRow) -> list[Value]:
    parts = f"{row.done}/{row.total}" if row.total else None
    asked = cli.out.time(row.created_ms)
    return [row.id, row.kind, cli.out.state(row.state), asked, parts, row.error]


VERB = Verb(
    "status", status, Panel.LOOK, examples=("turnback status orders", "turnback status ord --json")
)
