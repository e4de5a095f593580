"""`turnback inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnback.cli.arguments import SnapshotArgument
from turnback.cli.context import Cli
from turnback.cli.output import Column, Value
from turnback.cli.states import StateOption, which_state
from turnback.cli.text import told
from turnback.cli.verb import Panel, Verb
from turnback.core.errors import ConfigurationError
from turnback.inspect.locations import shown
from turnback.inspect.model import SnapshotView, StatePage

if TYPE_CHECKING:
    from turnback.snapshot.snapshot import Snapshot, StateRow

_STATES = (
    "uid",
    "state",
    "kind",
    "key",
    "map key",
    "value",
    Column("rows", right=True),
    Column("size", right=True),
)
_PAGE = 1_000


def inspect(
    cli: Cli,
    snapshot: SnapshotArgument,
    state: StateOption = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Of the state, rows of this key; abc* works."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="Of the state, at most N rows.")
    ] = 50,
) -> None:
    """Show what is in a checkpoint or savepoint.

    Who took it and when, its states with their types and sizes, and where its sources go on. With
    --state the rows of one state. Needs no Spark.
    """
    found = cli.snapshot(snapshot)
    if state is not None:
        _show_rows(cli, found, state, key, rows)
        return
    if key is not None:
        raise ConfigurationError("--key is about the rows of a state: give --state UID/NAME too")
    from turnback.inspect.snapshots import view

    seen = view(found)
    if cli.json:
        cli.out.document(seen)
    else:
        _show(cli, seen)


def _show(cli: Cli, seen: SnapshotView) -> None:
    out = cli.out
    out.fields(_facts(cli, seen))
    if seen.states:
        out.head("States")
        out.table(_STATES, [_state(cli, row) for row in seen.states])
    if seen.operators:
        out.head("Operators")
        table = [[o.uid, o.name, o.kind, o.parallelism] for o in seen.operators]
        out.table(("uid", "name", "kind", Column("parallelism", right=True)), table)
    if seen.sources:
        out.head("Sources")
        out.table(("uid", "offset"), [[uid, at] for uid, at in seen.sources.items()])
    if seen.transactions:
        out.head("Transactions of sinks")
        table = [[uid, count] for uid, count in seen.transactions.items()]
        out.table(("uid", Column("prepared", right=True)), table)


def _facts(cli: Cli, seen: SnapshotView) -> list[tuple[str, Value]]:
    out = cli.out
    return [
        (seen.kind, seen.id),
        ("location", shown(seen.location)),
        ("job", seen.job),
        ("job id", seen.job_id),
        ("taken", out.time(seen.created_ms)),
        ("label", seen.label),
        ("note", seen.note),
        ("trigger", seen.trigger),
        ("attempt", seen.attempt),
        ("from", f"chk-{seen.checkpoint}" if seen.kind == "savepoint" else None),
        ("epoch", seen.epoch),
        ("format", seen.format),
        ("drained", "yes" if seen.drained else None),
        ("key groups", seen.max_parallelism),
        ("size", out.size(seen.bytes)),
        ("files", out.number(seen.files)),
        ("started from", seen.started_from and shown(seen.started_from)),
    ]


def _state(cli: Cli, row: StateRow) -> list[Value]:
    return [
        row.uid,
        row.name,
        row.kind,
        row.key_type,
        row.map_key_type,
        row.value_type,
        cli.out.number(row.rows),
        cli.out.size(row.bytes),
    ]


def _show_rows(cli: Cli, found: Snapshot, text: str, key: str | None, most: int) -> None:
    ids = [stored.id for stored in found.states]
    page = _collect(found, which_state(text, ids, found.name), key, most, cli.json)
    if cli.json:
        cli.out.document(page)
        return
    cli.out.table(page.columns, [[told(value) for value in row] for row in page.rows])
    if page.next is not None:
        cli.out.hint(f"There is more: --rows {most * 10}")


def _collect(
    found: Snapshot, id: tuple[str, str], key: str | None, most: int, full: bool
) -> StatePage:
    """Read page after page until there are enough rows."""
    import msgspec

    from turnback.inspect.browse import page

    rows: list[tuple[Any, ...]] = []
    scanned, after = 0, None
    while True:
        part = page(found, *id, key=key, after=after, limit=min(most - len(rows), _PAGE), full=full)
        rows += part.rows
        scanned, after = scanned + part.scanned, part.next
        if after is None or len(rows) >= most:
            return msgspec.structs.replace(part, rows=tuple(rows), scanned=scanned)


VERB = Verb(
    "inspect",
    inspect,
    Panel.SNAPSHOTS,
    examples=(
        "turnback inspect orders@latest",
        "turnback inspect /data/savepoints/savepoint-orders-1a2b --json",
        "turnback inspect orders@chk-7 --state totals/total --key alice",
    ),
)
