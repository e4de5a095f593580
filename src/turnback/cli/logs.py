"""`turnback logs`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from turnback.cli.arguments import JobArgument
from turnback.cli.context import Cli
from turnback.cli.tail import Tail, last_lines
from turnback.cli.verb import Panel, Verb, flag
from turnback.core.errors import NotFoundError
from turnback.inspect.model import JobSummary

_POLL_S = 0.3


def logs(
    cli: Cli,
    job: JobArgument,
    follow: Annotated[bool, flag("-f", "--follow", help="Go on as the job prints more.")] = False,
    lines: Annotated[
        int, typer.Option("-l", "--lines", metavar="N", min=0, help="How many lines to begin with.")
    ] = 200,
) -> None:
    """Show what the driver of a job has printed.

    It is kept on the machine where the job was started with turnback run, over all lives of the
    driver.
    """
    found = cli.job(job)
    path = _log_of(found.summary())
    if cli.json:
        text, _ = last_lines(path, lines)
        cli.out.document({"job": found.name, "path": str(path), "lines": text.splitlines()})
    else:
        show(path, lines, follow=follow)


def show(path: Path, lines: int, *, follow: bool) -> None:
    """Print the end of a file, and go on until Ctrl-C if asked to."""
    text, end = last_lines(path, lines)
    sys.stdout.write(text)
    sys.stdout.flush()
    tail = Tail(path, sys.stdout, end)
    with suppress(KeyboardInterrupt):
        while follow:
            tail.show()
            time.sleep(_POLL_S)


def _log_of(summary: JobSummary) -> Path:
    if summary.log is None:
        raise NotFoundError(
            f"job {summary.name!r} has no log that Turnback knows of: it was not started with "
            "turnback run, so its output is where it was started"
        )
    path = Path(summary.log)
    if not path.is_file():
        where = summary.driver.host if summary.driver is not None else "another machine"
        raise NotFoundError(
            f"the log of job {summary.name!r} is {summary.log} on {where}: it is not on this "
            "machine, or was removed"
        )
    return path


VERB = Verb(
    "logs",
    logs,
    Panel.LOOK,
    examples=("turnback logs clicks", "turnback logs -f clicks", "turnback logs -l 20 clicks"),
)
