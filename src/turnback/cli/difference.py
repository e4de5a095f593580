"""`turnback diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnback.cli.complete import complete_snapshot
from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.output import Column, Value
from turnback.cli.query import plain
from turnback.cli.states import StateOption, which_state
from turnback.cli.text import told
from turnback.cli.verb import Panel, Verb, flag

if TYPE_CHECKING:
    from turnback.api.savepoint import SavepointDiff, StateDiff

_COUNTS = ("added", "removed", "changed", "unchanged")


def diff(
    cli: Cli,
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="The earlier SNAPSHOT.", autocompletion=complete_snapshot),
    ],
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="The later SNAPSHOT.", autocompletion=complete_snapshot),
    ],
    state: StateOption = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="With --state, at most N rows.")
    ] = 50,
    exit_code: Annotated[
        bool, flag("--exit-code", help="End with code 1 if anything differs.")
    ] = False,
) -> ExitCode | None:
    """Compare two checkpoints or savepoints, key by key.

    Counts what was added, removed and changed in every state; with --state shows the keys of one.
    They may be of different jobs. Spark compares, on this machine or where SPARK_MASTER says.
    """
    from turnback.cli.spark import spark
    from turnback.inspect.snapshots import while_kept

    old, new = cli.snapshot(a), cli.snapshot(b)
    with while_kept(old, new), spark(cli) as session:
        from turnback.api.savepoint import SavepointDiff

        found = SavepointDiff(old, new, session)
        summary = found.summary() if state is None else []
        changes = None if state is None else _changes(found, state, rows)
    differs = _show_summary(cli, summary) if changes is None else _show_changes(cli, *changes)
    return ExitCode.FAILED if exit_code and differs else None


def _changes(found: SavepointDiff, text: str, most: int) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of what differs in a state."""
    frame = found.state(*which_state(text, found.states(), str(found)))
    taken = frame.limit(most).collect()
    return list(frame.columns), [[plain(value) for value in row] for row in taken]


def _show_summary(cli: Cli, summary: list[StateDiff]) -> bool:
    if cli.json:
        cli.out.document(summary)
    else:
        heads = [Column(name, right=True) for name in _COUNTS]
        cli.out.table(("uid", "state", *heads, "problem"), [_row(cli, diff) for diff in summary])
    return not all(diff.same for diff in summary)


def _row(cli: Cli, diff: StateDiff) -> list[Value]:
    if diff.incomparable is not None:
        return [diff.uid, diff.state, *[None] * len(_COUNTS), diff.incomparable]
    counts = [cli.out.number(getattr(diff, name)) for name in _COUNTS]
    return [diff.uid, diff.state, *counts, None]


def _show_changes(cli: Cli, columns: list[str], changes: list[list[Any]]) -> bool:
    if cli.json:
        cli.out.document([dict(zip(columns, row, strict=True)) for row in changes])
        return bool(changes)
    mark = columns.index("change")
    table: list[list[Value]] = []
    for row in changes:
        cells: list[Value] = [told(v) for v in row]
        cells[mark] = cli.out.state(str(row[mark]))
        table.append(cells)
    cli.out.table(columns, table)
    return bool(changes)


VERB = Verb(
    "diff",
    diff,
    Panel.SNAPSHOTS,
    examples=(
        "turnback diff orders@chk-7 orders@latest",
        "turnback diff orders@chk-7 orders@latest --state totals/total --rows 10",
        "turnback diff /data/savepoints/a /data/savepoints/b --exit-code",
    ),
)
