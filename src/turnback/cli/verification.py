"""`turnback verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from turnback.cli.arguments import SnapshotArgument
from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.verb import Panel, Verb


def verify(cli: Cli, snapshot: SnapshotArgument) -> ExitCode | None:
    """Read every file of a checkpoint or savepoint and compare it with its checksum.

    Ends with code 6 if a file is missing or damaged.
    """
    from turnback.inspect.snapshots import view
    from turnback.snapshot.snapshot import verify_snapshot

    found = cli.snapshot(snapshot)
    seen = view(found)
    with _progress(cli) as show:
        problems = verify_snapshot(found, show)
    if cli.json:
        rows = [{"path": p.path, "reason": p.reason} for p in problems]
        about = {"snapshot": seen.location, "files": seen.files, "bytes": seen.bytes}
        cli.out.document(about | {"ok": not problems, "problems": rows})
    elif problems:
        cli.out.table(("path", "problem"), [[p.path, p.reason] for p in problems])
        cli.out.say(f"error: {len(problems)} of {seen.files} files are damaged", "bold red")
    else:
        cli.out.line(f"ok: {seen.files} files, {cli.out.size(seen.bytes)}", "green")
    return ExitCode.DAMAGED if problems else None


@contextmanager
def _progress(cli: Cli) -> Iterator[Callable[[int, int], None] | None]:
    console: Any = cli.out.stderr()
    if not console.is_terminal or cli.json:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


VERB = Verb(
    "verify",
    verify,
    Panel.SNAPSHOTS,
    examples=("turnback verify orders@latest", "turnback verify /data/savepoints/savepoint-1a2b"),
)
