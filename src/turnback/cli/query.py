"""`turnback query`, `diff` and `get`: in this process if that is enough, else in Spark."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from turnback.cli.command import argument, command, flag, number_option
from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import Column, Value, json_value, time_ago, value_text
from turnback.cli.parameters import (
    complete_snapshot,
    find_state,
    job_argument,
    snapshot_argument,
    state_option,
)
from turnback.errors import ConfigurationError, JobFailedError, TurnbackError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from turnback.api.savepoint import StateDiff
    from turnback.snapshot.snapshot import Snapshot
    from turnback.views.model import KeyView

_COUNTS = ("added", "removed", "changed", "unchanged")

_spark_option = flag("--spark", help="Use Spark regardless of size.")
_UNKNOWN = re.compile(r"TABLE_OR_VIEW_NOT_FOUND\].*? `([^`]+)`")

# -- query


@command(
    "query",
    "turnback query orders@latest",
    'turnback query orders@latest "SELECT key, value FROM totals_total ORDER BY value DESC"',
    'turnback query orders@chk-7 "SELECT count(*) FROM totals_total" --format csv',
)
@snapshot_argument
@argument("sql", "[SQL]", help="The query. Without it, the tables are listed.")
@number_option("--limit", least=1, default=1_000, help="Print at most N rows. Default: 1000.")
@click.option(
    "--format",
    metavar="FORMAT",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    help="Output format: table, csv or json.",
)
@_spark_option
def query(
    cli: Cli, snapshot_name: str, sql: str | None, limit: int, format: str, spark: bool
) -> None:
    """Query the states of a checkpoint or savepoint with SQL.

    Read-only. Every state is a table, named after its operator's uid and its own name; without a
    query, the tables are listed. Most queries of states that fit on this machine run in DuckDB,
    which is fast (pip install 'turnback[query]'); others run in Spark, on this machine or on
    SPARK_MASTER.
    """
    snapshot = cli.snapshot(snapshot_name)
    if sql is None:
        _list_tables(cli, snapshot)
        return
    from turnback.views.snapshots import reading

    with reading(snapshot):
        columns, rows = _run(cli, snapshot, sql, limit + 1, spark)
    more = len(rows) > limit
    del rows[limit:]
    if cli.json or format == "json":
        cli.out.document([dict(zip(columns, row, strict=True)) for row in rows])
    elif format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([[value_text(value) or "" for value in row] for row in rows])
    else:
        cli.out.table(columns, [[value_text(value) for value in row] for row in rows])
    if more:
        cli.out.message(f"There are more than {limit} rows: use --limit to see more.")


def _run(
    cli: Cli, snapshot: Snapshot, sql: str, most: int, spark: bool
) -> tuple[list[str], list[list[Any]]]:
    from turnback.snapshot.writer import view_names
    from turnback.views.local_sql import LeftToSpark, query, unknown_table

    if not spark:
        try:
            columns, rows = query(snapshot, sql, most)
            return columns, [[json_value(value) for value in row] for row in rows]
        except LeftToSpark as reason:
            cli.out.hint(f"Spark runs this query: {reason}")
    check_read_only(sql)
    from turnback.api.savepoint import Savepoint
    from turnback.spark.state_frames import check_only_reads

    try:
        with spark_session(cli) as session:
            check_only_reads(session, sql)
            return _collect(Savepoint(snapshot, session).sql(sql), most)
    except ConfigurationError as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is None:
            raise
        raise unknown_table(unknown[1], [*view_names(snapshot.state_ids).values()]) from error


def _list_tables(cli: Cli, snapshot: Snapshot) -> None:
    from turnback.snapshot.writer import view_names

    kinds = {stored.id: stored.schema.kind for stored in snapshot.states}
    tables = [
        {"table": view, "uid": id[0], "state": id[1], "kind": kinds[id]}
        for id, view in view_names(list(kinds)).items()
    ]
    if cli.json:
        cli.out.document(tables)
    else:
        cli.out.table(("table", "uid", "state", "kind"), [list(t.values()) for t in tables])


def _collect(frame: DataFrame, most: int) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows."""
    rows = [[json_value(value) for value in row] for row in frame.limit(most).collect()]
    return list(frame.columns), rows


# -- diff


@command(
    "diff",
    "turnback diff orders@chk-7 orders@latest",
    "turnback diff orders@chk-7 orders@latest --state totals/total --rows 10",
    "turnback diff /data/savepoints/a /data/savepoints/b --exit-code",
)
@argument("a", "A", help="The earlier SNAPSHOT.", complete=complete_snapshot)
@argument("b", "B", help="The later SNAPSHOT.", complete=complete_snapshot)
@state_option
@number_option(
    "--rows", least=1, default=50, help="With --state, show at most N rows. Default: 50."
)
@flag("--exit-code", help="Exit with code 1 if anything differs.")
@_spark_option
def diff(
    cli: Cli, a: str, b: str, state: str | None, rows: int, exit_code: bool, spark: bool
) -> ExitCode | None:
    """Compare two checkpoints or savepoints, key by key.

    Counts the keys added, removed and changed in every state; with --state, shows the keys of one.
    The snapshots can belong to different jobs. Spark compares large ones, on this machine or on
    SPARK_MASTER.
    """
    from turnback.snapshot.diff import state_ids
    from turnback.views.compare import fits_here

    old = cli.snapshot(a)
    new = cli.snapshot(b)
    where = f"<diff of {old.name} and {new.name}>"
    id = None if state is None else find_state(state, state_ids(old, new), where)
    here = not spark and fits_here(old, new, id)
    if id is None:
        summary = _summary(cli, old, new, here)
        _print_summary(cli, summary)
        differs = not all(each.same for each in summary)
    else:
        columns, changes = _changes(cli, old, new, id, rows, here)
        _print_changes(cli, columns, changes)
        differs = bool(changes)
    return ExitCode.FAILED if exit_code and differs else None


def _summary(cli: Cli, old: Snapshot, new: Snapshot, here: bool) -> list[StateDiff]:
    from turnback.views.compare import summary
    from turnback.views.snapshots import reading

    if here:
        return summary(old, new)
    with reading(old, new), spark_session(cli) as session:
        from turnback.api.savepoint import SavepointDiff

        return SavepointDiff(old, new, session).summary()


def _changes(
    cli: Cli, old: Snapshot, new: Snapshot, id: tuple[str, str], most: int, here: bool
) -> tuple[list[str], list[list[Any]]]:
    from turnback.views.compare import differences
    from turnback.views.snapshots import reading

    if here:
        columns, rows = differences(old, new, *id, most)
        return columns, [[json_value(value) for value in row] for row in rows]
    with reading(old, new), spark_session(cli) as session:
        from turnback.api.savepoint import SavepointDiff

        return _collect(SavepointDiff(old, new, session).state(*id), most)


def _print_summary(cli: Cli, summary: list[StateDiff]) -> None:
    if cli.json:
        cli.out.document(summary)
        return
    rows: list[list[Value]] = []
    for each in summary:
        comparable = each.incomparable is None
        counts = [cli.out.number(getattr(each, n)) if comparable else None for n in _COUNTS]
        rows.append([each.uid, each.state, *counts, each.incomparable, each.note])
    heads = [Column[None](name, right=True) for name in _COUNTS]
    cli.out.table(("uid", "state", *heads, "problem", "note"), rows)


def _print_changes(cli: Cli, columns: list[str], changes: list[list[Any]]) -> None:
    if cli.json:
        cli.out.document([dict(zip(columns, row, strict=True)) for row in changes])
        return
    kind = columns.index("change")
    table: list[list[Value]] = [[value_text(value) for value in row] for row in changes]
    for row, change in zip(table, changes, strict=True):
        row[kind] = cli.out.state(str(change[kind]))
    cli.out.table(columns, table)


# -- Spark


@contextmanager
def spark_session(cli: Cli) -> Iterator[SparkSession]:
    """Start a session that ends with the block, with Spark's errors as ours.

    What is printed in the block is lost.
    """
    cli.out.hint("Starting Spark ...")
    with _silenced(cli.debug):
        from pyspark.errors import PySparkException

        from turnback.config.configuration import spark_options
        from turnback.spark.session import spark_session

        try:
            archive = cli.configuration.value("run.class-archive")
            options = {**spark_options(cli.configuration), "spark.sql.runSQLOnFiles": "false"}
            session = spark_session(class_archive=archive, **options)
            try:
                yield session
            finally:
                session.stop()
        except PySparkException as error:
            raise _translated(error) from error


def _translated(error: PySparkException) -> TurnbackError:
    from pyspark.errors import AnalysisException

    from turnback.worker.message import decode_error

    cause = decode_error(error)
    if isinstance(cause, TurnbackError):
        return cause
    lines = [line for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    kind = ConfigurationError if isinstance(error, AnalysisException) else JobFailedError
    return kind(f"Spark: {first}")


@contextmanager
def _silenced(debug: bool) -> Iterator[None]:
    """Keep what Spark, its JVM and its workers print away from the results.

    It goes to stderr with --debug, else nowhere: what went wrong is in the exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        target = 2 if debug else nowhere.fileno()
        os.dup2(target, 1)
        os.dup2(target, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in enumerate(saved, 1):
            os.dup2(copy, descriptor)
            os.close(copy)


_QUOTED = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`""",
    re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_READING = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"}
_WRITING = re.compile(
    r"\b(INSERT\s+(INTO|OVERWRITE)|MERGE\s+(INTO|WITH)|DELETE\s+FROM|UPDATE\s+\S+\s+SET)\b"
)
_CALLING = re.compile(r"\b(REFLECT|TRY_REFLECT|JAVA_METHOD)\s*\(")


def check_read_only(sql: str) -> None:
    """Refuse a statement that might change something."""
    plain = _QUOTED.sub(lambda match: " " if match["comment"] else " x ", sql).upper()
    first = _WORD.search(plain)
    word = first[0] if first else ""
    writing = _WRITING.search(plain) or _CALLING.search(plain)
    if word in _READING and writing is None:
        return
    what = writing[0].strip(" (") if writing else word or "nothing"
    raise ConfigurationError(
        f"turnback query only reads, and this is {what}: use SELECT ...; to change state, use "
        "SavepointWriter"
    )


@command(
    "get",
    "turnback get orders totals total alice",
    "turnback get orders totals by_day '[\"alice\", 7]' --json",
    "turnback get orders visits pages alice --rows 100",
)
@job_argument
@argument("uid", "UID", help="The operator.")
@argument("state", "STATE", help="Name of a state of the operator.")
@argument(
    "key",
    "KEY",
    help="Text, a number, true, a date or time in ISO format, or bytes as 0x00ff; a JSON array for "
    "several columns or a row.",
)
@number_option(
    "--rows", least=1, default=50, help="Show at most N list elements or map entries. Default: 50."
)
@click.option("--after", metavar="NEXT", help="Continue after the page that ended with NEXT.")
def get(
    cli: Cli, job_name: str, uid: str, state: str, key: str, rows: int, after: str | None
) -> ExitCode | None:
    """Show the value of a state for one key.

    Reads the newest checkpoint, from which the job would resume if it failed now. A running job is
    not affected. Does not use Spark. Exits with code 3 if there is no value.
    """
    from turnback.views.browse import look_up

    job = cli.job(job_name)
    found = look_up(job, uid, state, key, after=after, limit=rows)
    if cli.json:
        cli.out.document(found)
    elif found.found:
        _print(cli, found, job.now_ms())
    else:
        cli.out.message(
            f"{job.name}: state {state!r} of operator {uid!r} has no value for {key!r} in "
            f"{found.snapshot}, epoch {found.epoch}"
        )
    return None if found.found else ExitCode.NOT_FOUND


def _print(cli: Cli, found: KeyView, now_ms: int) -> None:
    if found.columns[0] == "value":
        cli.out.line(value_text(found.rows[0][0]) or "null")
    else:
        cli.out.table(found.columns, [[value_text(value) for value in row] for row in found.rows])
    cli.out.hint(f"{found.snapshot}, epoch {found.epoch}, {time_ago(found.created_ms, now_ms)}")
    if found.next is not None:
        cli.out.message(f"For the next page, add --after {found.next}")
