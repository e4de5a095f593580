"""`turnback checkpoints`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnback.cli.arguments import JobArgument
from turnback.cli.context import Cli
from turnback.cli.output import Column, Value
from turnback.cli.verb import Panel, Verb, flag
from turnback.inspect.model import CheckpointHistory, CheckpointRow, Distribution

_COLUMNS = (
    "checkpoint",
    "status",
    Column("attempt", right=True, extra=True),
    Column("epoch", right=True, extra=True),
    Column("trigger", extra=True),
    "triggered",
    Column("duration", right=True),
    Column("sync", right=True, extra=True),
    Column("async", right=True, extra=True),
    Column("delta", right=True),
    Column("full", right=True),
    Column("acks", right=True, extra=True),
    "note",
)
_QUANTILES = ("min", "p50", "p90", "p99", "max")


def checkpoints(
    cli: Cli,
    job: JobArgument,
    limit: Annotated[
        int | None,
        typer.Option("-n", "--limit", min=1, metavar="N", help="Show the newest N."),
    ] = None,
    retained: Annotated[
        bool, flag("--retained", help="Only those that a job can be started from.")
    ] = False,
    paths: Annotated[bool, flag("--paths", help="Print the paths of the files only.")] = False,
) -> None:
    """Show the checkpoints of a job, newest first.

    When and why each was taken, how long it took, and how large it is: what it added, and all it
    needs. On a terminal the newest 20 unless --limit says otherwise, with a summary.
    """
    history = cli.job(job).checkpoints()
    limit = limit or (20 if cli.out.terminal else None)
    rows = [r for r in history.rows if not (retained or paths) or r.path is not None][:limit]
    if cli.json:
        import msgspec

        cli.out.document(msgspec.structs.replace(history, rows=tuple(rows)))
    elif paths:
        for row in rows:
            cli.out.line(str(row.path))
    else:
        if rows or not cli.out.terminal:
            cli.out.table(_COLUMNS, [_row(cli, row) for row in rows])
        _summary(cli, history)


def _row(cli: Cli, row: CheckpointRow) -> list[Value]:
    out = cli.out
    acks = None if row.tasks is None else f"{row.acknowledged}/{row.tasks}"
    return [
        None if row.number is None else f"chk-{row.number}",
        out.state(row.status.value),
        row.attempt,
        row.epoch,
        row.trigger,
        out.time(row.triggered_ms),
        out.duration(row.duration_ms),
        out.duration(row.sync_ms),
        out.duration(row.async_ms),
        out.size(row.delta_bytes),
        out.size(row.full_bytes),
        acks,
        row.reason or ("retained" if row.path else None),
    ]


def _summary(cli: Cli, history: CheckpointHistory) -> None:
    if not cli.out.terminal:
        return
    out = cli.out
    out.head(
        f"{history.completed} completed, {history.failed} failed, {history.in_progress} in "
        f"progress, {history.restored} restored"
    )
    rows = [
        ("duration", history.duration_ms, out.duration),
        ("sync", history.sync_ms, out.duration),
        ("async", history.async_ms, out.duration),
        ("delta", history.delta_bytes, out.size),
        ("full", history.full_bytes, out.size),
    ]
    table = [[name, *_numbers(d, form)] for name, d, form in rows if d is not None]
    if table:
        out.table(("", *(Column(name, right=True) for name in _QUANTILES)), table)


def _numbers(numbers: Distribution, form: object) -> list[Value]:
    assert callable(form)
    return [form(round(getattr(numbers, name))) for name in _QUANTILES]


VERB = Verb(
    "checkpoints",
    checkpoints,
    Panel.LOOK,
    examples=(
        "turnback checkpoints orders",
        "turnback checkpoints orders --retained --paths -n 1",
    ),
)
