"""`turnback inspect`, `verify` and `dispose`: what is done with a snapshot without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from turnback.cli.command import command, flag, number_option
from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import Column, Output, Value, value_text
from turnback.cli.parameters import find_state, snapshot_argument, state_option, yes_option
from turnback.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from turnback.snapshot.snapshot import Snapshot, StateRow
    from turnback.views.model import OperatorNode, SnapshotView, StatePage

_STATES: tuple[Column[StateRow], ...] = (
    Column("uid", lambda row, out: row.uid),
    Column("state", lambda row, out: row.name),
    Column("kind", lambda row, out: row.kind),
    Column("key", lambda row, out: row.key_type),
    Column("map key", lambda row, out: row.map_key_type),
    Column("value", lambda row, out: row.value_type),
    Column("ttl", lambda row, out: out.duration(row.ttl_ms), right=True),
    Column("rows", lambda row, out: out.number(row.rows), right=True),
    Column("size", lambda row, out: out.size(row.bytes), right=True),
)
_OPERATORS: tuple[Column[OperatorNode], ...] = (
    Column("uid", lambda node, out: node.uid),
    Column("name", lambda node, out: node.name),
    Column("kind", lambda node, out: node.kind),
    Column("parallelism", lambda node, out: node.parallelism, right=True),
)
_PAGE = 1_000


@command(
    "inspect",
    "turnback inspect orders@latest",
    "turnback inspect /data/savepoints/savepoint-orders-1a2b --json",
    "turnback inspect orders@chk-7 --state totals/total --key alice",
)
@snapshot_argument
@state_option
@click.option(
    "--key", metavar="KEY", help="With --state, show rows of this key; abc* matches a prefix."
)
@number_option(
    "--rows", least=1, default=50, help="With --state, show at most N rows. Default: 50."
)
@flag("--script", help="Print the script of the program that took it, with secrets masked.")
def inspect(
    cli: Cli, snapshot_name: str, state: str | None, key: str | None, rows: int, script: bool
) -> None:
    """Show what is in a checkpoint or savepoint.

    Shows who took it and when, how its job was started, its states with their types and sizes, and
    the positions of its sources. With --state, shows the rows of one state. Does not use Spark.
    """
    from turnback.views.snapshots import describe

    snapshot = cli.snapshot(snapshot_name)
    if script:
        _print_script(cli, snapshot)
        return
    if state is not None:
        _print_rows(cli, snapshot, state, key, rows)
        return
    if key is not None:
        raise ConfigurationError("--key selects rows of a state: use it with --state UID/NAME")
    if cli.json:
        cli.out.document(describe(snapshot))
    else:
        _print_snapshot(cli.out, describe(snapshot))


def _print_snapshot(out: Output, view: SnapshotView) -> None:
    from turnback.views.text import position_lines

    out.fields(_facts(out, view))
    out.section("States", _STATES, view.states)
    out.section("Operators", _OPERATORS, view.operators)
    if view.sources:
        out.head("Sources")
        sources = view.sources.items()
        rows = [(uid, line) for uid, offset in sources for line in position_lines(offset)]
        out.table(("uid", "offset"), rows)
    if view.transactions:
        out.head("Transactions of sinks")
        out.table(("uid", Column[None]("prepared", right=True)), view.transactions.items())
    if view.targets:
        out.head("Matching versions of tables")
        out.table(("uid", "version"), view.targets.items())


def _facts(out: Output, view: SnapshotView) -> list[tuple[str, Value]]:
    from turnback.storage.locations import display_path

    return [
        (view.kind, view.id),
        ("location", display_path(view.location)),
        ("job", view.job),
        ("job id", view.job_id),
        ("taken", out.time(view.created_ms)),
        ("label", view.label),
        ("note", view.note),
        ("trigger", view.trigger),
        ("attempt", view.attempt),
        ("from", f"chk-{view.checkpoint}" if view.kind == "savepoint" else None),
        ("epoch", view.epoch),
        ("format", view.format),
        ("drained", "yes" if view.drained else None),
        ("key groups", view.max_parallelism),
        ("size", out.size(view.bytes)),
        ("files", out.number(view.files)),
        ("started from", view.started_from and display_path(view.started_from)),
        *_program_facts(view),
    ]


def _program_facts(view: SnapshotView) -> list[tuple[str, Value]]:
    from shlex import join

    started = view.started
    if started is None:
        return []
    changed = {True: "changed since, see --script", False: "unchanged", None: None}
    main = ("python", "turnback", "pyspark")
    return [
        ("started with", join(started.command or started.script) or None),
        ("in", started.directory or None),
        ("script", changed[view.script_changed]),
        ("versions", " ".join(f"{n} {v}" for n in main if (v := started.versions.get(n))) or None),
    ]


def _print_script(cli: Cli, snapshot: Snapshot) -> None:
    from turnback.views.snapshots import describe

    started = describe(snapshot).started
    if started is None or started.text is None:
        raise NotFoundError(
            f"{snapshot.name} does not contain the script of its job: it was written by an older "
            "version, or the job had no script"
        )
    click.echo(started.text, nl=False)  # as it is, to be used again


def _print_rows(cli: Cli, snapshot: Snapshot, state: str, key: str | None, most: int) -> None:
    ids = [stored.id for stored in snapshot.states]
    page = _read_rows(snapshot, find_state(state, ids, snapshot.name), key, most, full=cli.json)
    if cli.json:
        cli.out.document(page)
        return
    cli.out.table(page.columns, [[value_text(value) for value in row] for row in page.rows])
    if page.next is not None:
        cli.out.hint(f"To see more rows, add --rows {most * 10}")


def _read_rows(
    snapshot: Snapshot, id: tuple[str, str], key: str | None, most: int, *, full: bool
) -> StatePage:
    """Read page after page until there are enough rows."""
    import msgspec

    from turnback.views.browse import page

    rows: list[tuple[Any, ...]] = []
    scanned = 0
    after = None
    while True:
        limit = min(most - len(rows), _PAGE)
        part = page(snapshot, *id, key=key, after=after, limit=limit, full=full)
        rows += part.rows
        scanned = scanned + part.scanned
        after = part.next
        if after is None or len(rows) >= most:
            return msgspec.structs.replace(part, rows=tuple(rows), scanned=scanned)


@command(
    "verify", "turnback verify orders@latest", "turnback verify /data/savepoints/savepoint-1a2b"
)
@snapshot_argument
def verify(cli: Cli, snapshot_name: str) -> ExitCode | None:
    """Read every file of a checkpoint or savepoint and compare it with its checksum.

    Exits with code 6 if a file is missing or damaged.
    """
    from turnback.snapshot.snapshot import verify_snapshot
    from turnback.views.snapshots import describe

    snapshot = cli.snapshot(snapshot_name)
    view = describe(snapshot)
    with cli.out.bytes_bar("reading") as show:
        problems = verify_snapshot(snapshot, show)
    if cli.json:
        rows = [{"path": p.path, "reason": p.reason} for p in problems]
        about = {"snapshot": view.location, "files": view.files, "bytes": view.bytes}
        cli.out.document(about | {"ok": not problems, "problems": rows})
    elif problems:
        cli.out.table(("path", "problem"), [[p.path, p.reason] for p in problems])
        cli.out.message(f"error: {len(problems)} of {view.files} files are damaged", "bold red")
    else:
        cli.out.line(f"ok: {view.files} files, {cli.out.size(view.bytes)}", "green")
    return ExitCode.DAMAGED if problems else None


@command(
    "dispose",
    "turnback dispose /data/savepoints/savepoint-1a2b",
    "turnback dispose orders@before-upgrade --yes",
)
@snapshot_argument
@flag("--force", help="Delete it even if a job was started from it and still needs it.")
@yes_option
def dispose(cli: Cli, snapshot_name: str, force: bool, yes: bool) -> None:
    """Permanently delete a savepoint.

    Does not delete checkpoints, which belong to their job. Requires the full name or id.
    """
    from turnback.operations.deletion import dispose as delete
    from turnback.storage.locations import display_path
    from turnback.views.snapshots import describe

    snapshot = cli.snapshot(snapshot_name, whole=True)
    view = describe(snapshot)
    name = view.id if view.label is None else f"{view.id} ({view.label})"
    location = display_path(view.location)
    cli.confirm(f"Permanently delete {view.kind} {name} of job {view.job!r} at {location}?", yes)
    delete(snapshot, cli.jobs, force=force)
    if cli.json:
        cli.out.document({"disposed": location, "id": view.id, "job": view.job})
    else:
        cli.out.line(f"deleted {location}")
