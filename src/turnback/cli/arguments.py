"""Arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from turnback.cli.complete import complete_job, complete_snapshot

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Name, id, the beginning of either, or a job directory.",
        autocompletion=complete_job,
    ),
]
WholeJobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Its whole name or id, or a job directory.",
        autocompletion=complete_job,
    ),
]
SnapshotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A savepoint's directory, a checkpoint's file, JOB@latest, JOB@chk-7, "
        "JOB@2026-11-01T12:00, or JOB@ and a savepoint's id or label.",
        autocompletion=complete_snapshot,
    ),
]
