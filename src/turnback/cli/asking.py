"""`turnback savepoint`, `turnback stop` and `turnback cancel`: what is asked of a running job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnback.cli.arguments import WholeJobArgument
from turnback.cli.confirm import YesOption, confirm
from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.optional import OPTIONAL, OptionalValueCommand
from turnback.cli.verb import Panel, Verb, flag
from turnback.cli.waiting import NoWaitOption, TimeoutOption, Waiting
from turnback.core.duration import parse_duration
from turnback.core.errors import ConfigurationError
from turnback.inspect.model import RequestRow

if TYPE_CHECKING:
    from turnback.inspect.job import Job

LabelOption = Annotated[
    str | None, typer.Option("--label", metavar="TEXT", help="A short name for the savepoint.")
]
NoteOption = Annotated[
    str | None, typer.Option("--note", metavar="TEXT", help="Why the savepoint is taken.")
]
FormatOption = Annotated[
    Literal["canonical", "native"] | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="canonical: Parquet tables that anyone can read; native: faster, for Turnback only.",
    ),
]
SavepointOption = Annotated[
    str | None,
    typer.Option(
        "-s",
        "--savepoint",
        metavar=OPTIONAL,
        help="Take a savepoint first, in DIR or else where state.savepoints.dir says.",
    ),
]


def savepoint(
    cli: Cli,
    job: WholeJobArgument,
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]", help="Where to put it; by default what state.savepoints.dir says."
        ),
    ] = None,
    label: LabelOption = None,
    note: NoteOption = None,
    format: FormatOption = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = None,
) -> ExitCode | None:
    """Take a savepoint of a running job.

    The job goes on meanwhile. Prints where the savepoint is. Ctrl-C ends the waiting, not the
    savepoint.
    """
    found = cli.job(job, whole=True)
    fields = {"target": _target(found, directory), "label": label, "note": note, "format": format}
    return _ask(cli, found, "savepoint", fields, no_wait, timeout)


def stop(
    cli: Cli,
    job: WholeJobArgument,
    savepoint: SavepointOption = None,
    no_savepoint: Annotated[
        bool, flag("--no-savepoint", help="Take none, whatever the configuration says.")
    ] = False,
    drain: Annotated[
        bool, flag("--drain", help="Let event time run to its end first: the job is complete then.")
    ] = False,
    label: LabelOption = None,
    note: NoteOption = None,
    format: FormatOption = None,
    yes: YesOption = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = None,
) -> ExitCode | None:
    """Stop a job after the records it has read.

    Takes a savepoint first if you say so, or if state.savepoints.dir is set and
    savepoints.on-stop is not false.
    """
    if savepoint is not None and no_savepoint:
        raise ConfigurationError("--savepoint and --no-savepoint contradict each other")
    found = cli.job(job, whole=True)
    confirm(cli, f"Stop job {found.name!r}?", yes)
    fields = {
        "target": _target(found, savepoint),
        "savepoint": True if savepoint is not None else (False if no_savepoint else None),
        "drain": drain,
        "label": label,
        "note": note,
        "format": format,
    }
    return _ask(cli, found, "stop", fields, no_wait, timeout)


def cancel(
    cli: Cli,
    job: WholeJobArgument,
    savepoint: SavepointOption = None,
    yes: YesOption = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = None,
) -> ExitCode | None:
    """Cancel a job at once.

    What it has read since its newest checkpoint is read again when it is started again. With -s it
    takes a savepoint first.
    """
    found = cli.job(job, whole=True)
    confirm(cli, f"Cancel job {found.name!r}?", yes)
    fields = {"target": _target(found, savepoint), "savepoint": savepoint is not None}
    return _ask(cli, found, "cancel", fields, no_wait, timeout)


def _ask(
    cli: Cli, job: Job, kind: str, fields: dict[str, Any], no_wait: bool, timeout: str | None
) -> ExitCode | None:
    from turnback.job.request import RequestKind

    if no_wait and timeout is not None:
        raise ConfigurationError("--no-wait and --timeout contradict each other: give one of them")
    # Before anything is asked: a request cannot be taken back.
    limit = None if timeout is None else parse_duration(timeout, "--timeout")
    row = job.ask(RequestKind(kind), **_with_format(fields))
    if not no_wait:
        waiting = Waiting(cli, job)
        try:
            row = waiting.until_done(row, limit)
        except KeyboardInterrupt:
            return waiting.interrupted(row)
    _tell(cli, job, row)
    return None


def _with_format(fields: dict[str, Any]) -> dict[str, Any]:
    from turnback.config.savepoints import SavepointFormat

    given = {name: value for name, value in fields.items() if name != "format"}
    if fields.get("format") is not None:
        given["format"] = SavepointFormat(fields["format"])
    return given


def _tell(cli: Cli, job: Job, row: RequestRow) -> None:
    if cli.json:
        cli.out.document(row)
    elif row.state != "COMPLETED":
        cli.out.line(row.id)
        cli.out.hint(f"Asked. See: turnback status {job.name}")
    else:
        if row.path is not None:
            cli.out.line(row.path)
        if row.kind != "savepoint":
            cli.out.say(f"Job {job.name!r} is {_ENDED[row.kind]}.")


_ENDED = {"stop": "stopped", "cancel": "canceled"}


def _target(job: Job, directory: str | None) -> str | None:
    """The directory for a savepoint; a relative one says something on the driver's machine only."""
    if not directory:
        return None
    driver = job.summary().driver
    if driver is None or driver.alive is None:
        return directory
    from turnback.config.configuration import location

    return location(directory)


SAVEPOINT = Verb(
    "savepoint",
    savepoint,
    Panel.ACT,
    examples=(
        "turnback savepoint orders",
        "turnback savepoint orders s3://bucket/savepoints --label before-upgrade",
        "turnback savepoint orders --format native --timeout '5 min'",
    ),
)
STOP = Verb(
    "stop",
    stop,
    Panel.ACT,
    examples=(
        "turnback stop orders",
        "turnback stop orders --savepoint /data/savepoints --yes",
        "turnback stop --savepoint orders --drain",
    ),
    cls=OptionalValueCommand,
)
CANCEL = Verb(
    "cancel",
    cancel,
    Panel.ACT,
    examples=(
        "turnback cancel orders",
        "turnback cancel -s orders",
        "turnback cancel -s /data/savepoints orders --yes",
    ),
    cls=OptionalValueCommand,
)
