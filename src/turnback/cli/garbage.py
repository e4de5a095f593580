"""`turnback gc`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from turnback.cli.confirm import YesOption, confirm
from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.output import Column
from turnback.cli.text import size
from turnback.cli.verb import Panel, Verb, flag
from turnback.core.errors import StillNeededError, StorageError

if TYPE_CHECKING:
    from turnback.inspect.garbage import Findings
    from turnback.inspect.garbage_files import Garbage
    from turnback.launch.runs import Over, Runs


def gc(
    cli: Cli,
    dry_run: Annotated[bool, flag("--dry-run", help="Only show what would be removed.")] = False,
    yes: YesOption = False,
) -> ExitCode | None:
    """Remove what nothing needs any more.

    Files that no checkpoint references, files that were being written when a process died,
    savepoints that were given up, records of savepoints that are gone; and on this machine local
    stores that jobs do not use any more, and what launches that are over have left, their logs
    too. Only jobs below the root, and launches of such jobs, are looked at; a launch that never
    came to a job belongs to the root it was started with. Jobs that run, or may run, are left
    alone.
    """
    from turnback.inspect.garbage import scan
    from turnback.launch.runs import Runs

    runs = Runs(cli.runs_dir)
    savepoints_dir = cli.configuration.value("state.savepoints.dir")
    local_dir = cli.configuration.value("state.backend.local-dir")
    local_dirs = [local_dir] if local_dir is not None else []
    over = runs.over(cli.jobs.root)
    found = scan(cli.jobs, savepoints_dir, over.paths, local_dirs)
    found = _with_unclear(found, runs, over)
    if not cli.json:
        _show(cli, found)
    left: list[str] = []
    if found.garbage and not dry_run:
        confirm(cli, f"Remove {_amount(found.garbage)}?", yes)
        left = _remove(cli, found.garbage, runs)
    if cli.json:
        about = {"garbage": found.garbage, "skipped": found.skipped}
        cli.out.document(about | {"removed": not dry_run, "left": left})
    return ExitCode.FAILED if left else None


def _with_unclear(found: Findings, runs: Runs, over: Over) -> Findings:
    """Add the launches of which nobody can tell whose they are."""
    from turnback.inspect.garbage import Findings
    from turnback.inspect.garbage_files import Skipped

    if not over.unclear:
        return found
    names = ", ".join(path.name for path in over.unclear)
    reason = f"nothing tells which root these launches belong to, so remove them by hand: {names}"
    skipped = Skipped(path=str(runs.root), reason=reason)
    return Findings(garbage=found.garbage, skipped=(*found.skipped, skipped))


def _remove(cli: Cli, garbage: Sequence[Garbage], runs: Runs) -> list[str]:
    """Remove one after the other; returns the paths of those that could not be removed."""
    from turnback.inspect.garbage import remove

    left = []
    for item in garbage:
        try:
            remove(item, cli.storage_options, runs.remove)
        except (StillNeededError, StorageError) as error:
            cli.out.say(f"left alone: {item.path}: {error}", "yellow")
            left.append(item.path)
    done = [item for item in garbage if item.path not in left]
    cli.out.say(f"Removed {_amount(done)}.")
    return left


def _show(cli: Cli, found: Findings) -> None:
    rows = [
        [item.kind.value, item.job, cli.out.size(item.bytes), item.path, item.reason]
        for item in found.garbage
    ]
    if rows or not cli.out.terminal:
        cli.out.table(("what", "job", Column("size", right=True), "path", "why"), rows)
    else:
        cli.out.line("There is nothing to remove.")
    for skipped in found.skipped:
        cli.out.say(f"left alone: {skipped.path}: {skipped.reason}", "yellow")


def _amount(garbage: Sequence[Garbage]) -> str:
    things = "1 thing" if len(garbage) == 1 else f"{len(garbage)} things"
    return f"{things} of {size(sum(item.bytes for item in garbage))}"


VERB = Verb("gc", gc, Panel.TOOLS, examples=("turnback gc --dry-run", "turnback gc --yes --json"))
