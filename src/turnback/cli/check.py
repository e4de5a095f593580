"""`turnback check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from turnback.cli.complete import complete_snapshot
from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.program import (
    AllowAllOption,
    AllowOption,
    ArgumentsArgument,
    NameOption,
    RenameOption,
    ScriptArgument,
    allowed,
    renames,
    script_path,
    snapshot_location,
)
from turnback.cli.verb import Panel, Verb

if TYPE_CHECKING:
    from turnback.snapshot.preflight import CheckReport


def check(
    cli: Cli,
    script: ScriptArgument,
    start_from: Annotated[
        str,
        typer.Option(
            "-s",
            "--start-from",
            metavar="SNAPSHOT",
            help="What it would start from, as for run.",
            autocompletion=complete_snapshot,
        ),
    ],
    arguments: ArgumentsArgument = None,
    allow_all: AllowAllOption = False,
    allow: AllowOption = None,
    rename: RenameOption = None,
    name: NameOption = None,
) -> ExitCode | None:
    """Tell what would happen if a job were started from a snapshot.

    Says for each state whether it would be restored, migrated, new, unclaimed or incompatible.
    SCRIPT is run until it calls execute(); no job is started. Ends with code 5 if the job would
    refuse to start, so that it can guard an upgrade.
    """
    from turnback.launch.preflight import preflight

    report = preflight(
        script_path(script),
        arguments or (),
        snapshot_location(cli, start_from),
        allow=allowed(allow_all, allow),
        renames=renames(rename),
        settings=cli.pairs,
        name=name,
    )
    if cli.json:
        cli.out.document(report.to_dict())
    else:
        _show(cli, report)
    return None if report.ok else ExitCode.WOULD_NOT_START


def _show(cli: Cli, report: CheckReport) -> None:
    rows = [
        [cli.out.state(r.verdict.value), r.subject.value, r.uid, r.state, r.reason]
        for r in report.rows
    ]
    cli.out.table(("verdict", "what", "uid", "state", "reason"), rows)
    blocking = sum(row.blocking for row in report.rows)
    if report.ok:
        cli.out.say(f"ok: the job would start from {report.snapshot}", "green")
    else:
        things = "one thing keeps" if blocking == 1 else f"{blocking} things keep"
        cli.out.say(f"not ok: {things} the job from starting", "bold red")


VERB = Verb(
    "check",
    check,
    Panel.RUN,
    examples=(
        "turnback check -s orders@latest job.py",
        "turnback check -s /data/savepoints/savepoint-1a2b --allow old-counts job.py --input /data",
    ),
    script=True,
)
