"""`turnback dispose`."""

from __future__ import annotations

from typing import Annotated

from turnback.cli.arguments import SnapshotArgument
from turnback.cli.confirm import YesOption, confirm
from turnback.cli.context import Cli
from turnback.cli.verb import Panel, Verb, flag


def dispose(
    cli: Cli,
    snapshot: SnapshotArgument,
    force: Annotated[
        bool, flag("--force", help="Even if a job was started from it and still needs it.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete a savepoint for good.

    Checkpoints are refused: their job keeps and deletes them. Names and ids have to be whole.
    """
    from turnback.inspect.jobs import dispose as delete
    from turnback.inspect.locations import shown
    from turnback.inspect.snapshots import view

    found = cli.snapshot(snapshot, whole=True)
    seen = view(found)
    name = seen.id if seen.label is None else f"{seen.id} ({seen.label})"
    place = shown(seen.location)
    confirm(cli, f"Delete {seen.kind} {name} of job {seen.job!r} at {place} for good?", yes)
    delete(found, cli.jobs, force=force)
    if cli.json:
        cli.out.document({"disposed": place, "id": seen.id, "job": seen.job})
    else:
        cli.out.line(f"deleted {place}")


VERB = Verb(
    "dispose",
    dispose,
    Panel.SNAPSHOTS,
    examples=(
        "turnback dispose /data/savepoints/savepoint-1a2b",
        "turnback dispose orders@before-upgrade --yes",
    ),
)
