"""`turnback query`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnback.cli.arguments import SnapshotArgument
from turnback.cli.context import Cli
from turnback.cli.text import told
from turnback.cli.verb import Panel, Verb

if TYPE_CHECKING:
    from turnback.snapshot.snapshot import Snapshot


def query(
    cli: Cli,
    snapshot: SnapshotArgument,
    sql: Annotated[
        str | None,
        typer.Argument(metavar="[SQL]", help="The query; without one the tables are listed."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Print at most N rows.")
    ] = 1_000,
    format: Annotated[
        Literal["table", "csv", "json"],
        typer.Option("--format", metavar="FORMAT", help="table, csv or json."),
    ] = "table",
) -> None:
    """Query the states of a checkpoint or savepoint with SQL.

    Every state is a table, named after its operator's uid and its own name; without a query the
    tables are listed. Queries run in Spark on this machine, or where SPARK_MASTER says.
    """
    found = cli.snapshot(snapshot)
    if sql is None:
        _list_tables(cli, found)
        return
    columns, rows, more = _run(cli, found, sql, limit)
    if cli.json or format == "json":
        cli.out.document([dict(zip(columns, row, strict=True)) for row in rows])
    elif format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([[told(v) or "" for v in row] for row in rows])
    else:
        table = [[told(v) for v in row] for row in rows]
        cli.out.table(columns, table)
    if more:
        cli.out.say(f"There are more than {limit} rows: give --limit to see more.")


def _list_tables(cli: Cli, found: Snapshot) -> None:
    from turnback.snapshot.draft import view_names

    kinds = {stored.id: stored.schema.kind for stored in found.states}
    tables = [
        {"table": view, "uid": id[0], "state": id[1], "kind": kinds[id]}
        for id, view in view_names(list(kinds)).items()
    ]
    if cli.json:
        cli.out.document(tables)
    else:
        cli.out.table(("table", "uid", "state", "kind"), [list(t.values()) for t in tables])


def _run(
    cli: Cli, found: Snapshot, sql: str, limit: int
) -> tuple[list[str], list[list[Any]], bool]:
    """Columns and rows of the answer, and whether there are more."""
    from turnback.api.savepoint import Savepoint
    from turnback.cli.spark import spark
    from turnback.inspect.snapshots import while_kept

    with while_kept(found), spark(cli) as session:
        frame = Savepoint(found, session).sql(sql)
        columns = list(frame.columns)
        taken = frame.limit(limit + 1).collect()
    rows = [[plain(value) for value in row] for row in taken[:limit]]
    return columns, rows, len(taken) > limit


def plain(value: Any) -> Any:
    """A value of Spark's in a form that JSON can hold."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if hasattr(value, "asDict"):
        return {name: plain(part) for name, part in value.asDict(recursive=False).items()}
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, Sequence):
        return [plain(part) for part in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _mapping(value: Mapping[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {key: plain(part) for key, part in value.items()}
    return [[plain(key), plain(part)] for key, part in value.items()]


VERB = Verb(
    "query",
    query,
    Panel.SNAPSHOTS,
    examples=(
        "turnback query orders@latest",
        'turnback query orders@latest "SELECT key, value FROM totals_total ORDER BY value DESC"',
        'turnback query orders@chk-7 "SELECT count(*) FROM totals_total" --format csv',
    ),
)
