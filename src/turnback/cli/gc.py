"""`turnback gc`: remove what nothing needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnback.cli.command import command, flag
from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.output import Column
from turnback.cli.parameters import yes_option
from turnback.core.errors import StillNeededError, StorageError
from turnback.core.units import format_size

if TYPE_CHECKING:
    from turnback.inspect.garbage import Findings
    from turnback.inspect.garbage_files import Garbage
    from turnback.launch.runs import Runs

_COLUMNS: tuple[Column[Garbage], ...] = (
    Column("what", lambda item, out: item.kind.value),
    Column("job", lambda item, out: item.job),
    Column("size", lambda item, out: out.size(item.bytes), right=True),
    Column("path", lambda item, out: item.path),
    Column("why", lambda item, out: item.reason),
)


@command("gc", "turnback gc --dry-run", "turnback gc --yes --json")
@flag("--dry-run", help="Only show what would be removed.")
@yes_option
def gc(cli: Cli, dry_run: bool, yes: bool) -> ExitCode | None:
    """Remove what nothing needs any more.

    Files that no checkpoint references, files that were being written when a process died,
    savepoints that were given up, records of savepoints that are gone; and on this machine local
    stores that jobs do not use any more, and what launches that are over have left, their logs
    too. Only jobs below the root, and launches of such jobs, are looked at; a launch that never
    came to a job belongs to the root it was started with. Jobs that run, or may run, are left
    alone.
    """
    from turnback.launch.runs import Runs

    runs = Runs(cli.runs_dir)
    findings = _scan(cli, runs)
    if not cli.json:
        _print_findings(cli, findings)
    left: list[str] = []
    if findings.garbage and not dry_run:
        cli.confirm(f"Remove {_amount(findings.garbage)}?", yes)
        left = _remove(cli, findings.garbage, runs)
    if cli.json:
        about = {"garbage": findings.garbage, "skipped": findings.skipped}
        cli.out.document(about | {"removed": not dry_run, "left": left})
    return ExitCode.FAILED if left else None


def _scan(cli: Cli, runs: Runs) -> Findings:
    from turnback.inspect.garbage import Findings, scan
    from turnback.inspect.garbage_files import Skipped

    local_dir = cli.configuration.value("state.backend.local-dir")
    over = runs.over(cli.jobs.root)
    findings = scan(
        cli.jobs,
        cli.configuration.value("state.savepoints.dir"),
        over.paths,
        [local_dir] if local_dir is not None else [],
    )
    if not over.unclear:
        return findings
    names = ", ".join(path.name for path in over.unclear)
    reason = f"nothing tells which root these launches belong to, so remove them by hand: {names}"
    skipped = Skipped(path=str(runs.root), reason=reason)
    return Findings(garbage=findings.garbage, skipped=(*findings.skipped, skipped))


def _remove(cli: Cli, garbage: Sequence[Garbage], runs: Runs) -> list[str]:
    """Remove one after the other; returns the paths of those that could not be removed."""
    from turnback.inspect.garbage import remove

    left = []
    for item in garbage:
        try:
            remove(item, cli.storage_options, runs.remove)
        except (StillNeededError, StorageError) as error:
            cli.out.message(f"left alone: {item.path}: {error}", "yellow")
            left.append(item.path)
    removed = [item for item in garbage if item.path not in left]
    cli.out.message(f"Removed {_amount(removed)}.")
    return left


def _print_findings(cli: Cli, findings: Findings) -> None:
    if findings.garbage or not cli.out.terminal:
        cli.out.records(_COLUMNS, findings.garbage)
    else:
        cli.out.line("There is nothing to remove.")
    for skipped in findings.skipped:
        cli.out.message(f"left alone: {skipped.path}: {skipped.reason}", "yellow")


def _amount(garbage: Sequence[Garbage]) -> str:
    things = "1 thing" if len(garbage) == 1 else f"{len(garbage)} things"
    return f"{things} of {format_size(sum(item.bytes for item in garbage))}"
