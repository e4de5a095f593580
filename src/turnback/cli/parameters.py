"""Arguments and options that several commands have, and what their values mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnback.cli.command import argument, flag, make_cli
from turnback.cli.context import Cli
from turnback.core.ids import check_job_name
from turnback.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    JobNotFoundError,
    NotFoundError,
    StateError,
    StorageError,
    TurnbackError,
)

if TYPE_CHECKING:
    from turnback.job.run import Launch
    from turnback.views.job import Job

_AT_ONCE = {"timeout": "2 s", "connect_timeout": "1 s", "max_retries": "0"}
"""So long an object store may take where its answer can be done without."""

# -- completion; a shell cannot report an error, so nothing is offered then


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer names of jobs."""
    try:
        names = make_cli(ctx).jobs.names()
    except TurnbackError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def complete_snapshot(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer ``JOB@latest``, ``JOB@chk-7`` and the labels of savepoints."""
    name, at, _ = incomplete.partition("@")
    if not at:
        return [f"{job}@latest" for job in complete_job(ctx, param, incomplete)]
    try:
        job = make_cli(ctx).jobs.get(name)
        offered = ["latest"]
        offered += [f"chk-{row.number}" for row in job.checkpoints().rows if row.path]
        offered += [row.label or row.id for row in job.savepoints()]
    except TurnbackError:
        return []
    return [text for text in (f"{name}@{part}" for part in offered) if text.startswith(incomplete)]


# -- jobs, snapshots and their states

job_argument = argument(
    "job_name",
    "JOB",
    help="Name or id of a job, a unique prefix of either, or a job directory.",
    complete=complete_job,
)
whole_job_argument = argument(
    "job_name", "JOB", help="Full name or id of a job, or a job directory.", complete=complete_job
)
snapshot_argument = argument(
    "snapshot_name",
    "SNAPSHOT",
    help="A savepoint's directory, a checkpoint's file, JOB@latest, JOB@chk-7, "
    "JOB@2026-11-01T12:00, or JOB@ followed by a savepoint's id or label.",
    complete=complete_snapshot,
)
state_option = click.option(
    "--state", metavar="UID/NAME", help="One state. NAME alone is enough if it is unique."
)
yes_option = flag("--yes", "-y", help="Do not ask.")
application_option = click.option(
    "-yid",
    "--yarnapplicationId",
    "application",
    metavar="APPLICATION",
    help="Only a job whose newest attempt ran in this application of YARN. As in Flink, but never "
    "needed: the name of a job is enough.",
)


def find_job_in(cli: Cli, name: str, application: str | None) -> Job:
    """Return the job with this full name or id; in this application, if one is given.

    Raises:
        JobNotFoundError: There is no such job, or it runs elsewhere.
    """
    job = cli.job(name, whole=True)
    ran = job.summary().application
    if application is not None and application != ran:
        where = f"its newest attempt is in {ran}" if ran else "it has not run on a cluster"
        raise JobNotFoundError(
            f"job {job.name!r} is not in application {application}: {where}. "
            "Leave -yid out, or see which jobs are there: turnback list -a -yid " + application
        )
    return job


def find_state(text: str, ids: Collection[tuple[str, str]], where: str) -> tuple[str, str]:
    """Return uid and name of the state that is meant.

    The text is ``uid/name``, or the name alone if only one operator has such a state; `where` is
    what they are the states of, for the error message.
    """
    matching = [id for id in ids if "/".join(id) == text] or [id for id in ids if id[1] == text]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(sorted("/".join(id) for id in matching))
        raise StateError(f"{where} has several states {text!r}: use one of {names}")
    uid, slash, name = text.rpartition("/")
    if slash:
        from turnback.snapshot.snapshot import check_state

        return check_state(where, ids, uid, name)
    names = ", ".join(sorted("/".join(id) for id in ids)) or "none"
    raise StateError(f"{where} has no state {text!r}; available: {names}")


# -- programs and what they start from

script_argument = argument("script", "SCRIPT", help="A Python file.")
arguments_argument = argument("arguments", "[ARGUMENTS]...", help="Arguments of the script.")
allow_all_option = flag(
    "-n",
    "--allow-non-restored-state",
    "allow_all",
    help="Drop everything in the snapshot that the program does not have.",
)
allow_option = click.option(
    "--allow",
    metavar="STATE",
    multiple=True,
    help="Drop this if the program does not have it: UID/STATE, or UID for all state, the position "
    "or the in-doubt output of an operator. Can be repeated.",
)
rename_option = click.option(
    "--rename",
    metavar="OLD=NEW",
    multiple=True,
    help="Map a name in the snapshot to a new one: UID=UID or UID/STATE=UID/STATE. Can be "
    "repeated.",
)


def _job_name(text: str) -> str:
    try:
        return check_job_name(text)
    except ConfigurationError as error:
        raise click.BadParameter(f"{error}.") from None


name_option = click.option(
    "--name",
    metavar="NAME",
    type=_job_name,
    help="Name of the job, overriding the name in the script.",
)


def program_of_job(cli: Cli, name: str, script: str, arguments: Sequence[str]) -> Launch:
    """What runs the program of a job as far as its `execute()`, for what only the program knows."""
    from turnback.job.run import Launch, LaunchMode

    return Launch(
        script=script_path(script),
        arguments=tuple(arguments),
        directory=str(Path.cwd()),
        mode=LaunchMode.PLAN,
        name=name,
        settings=cli.pairs | {"state.checkpoints.dir": cli.root},
    )


def script_path(text: str) -> str:
    """Return the absolute path of a script, which has to be a file."""
    path = Path(text).expanduser()
    if not path.is_file():
        reason = "is a directory" if path.is_dir() else "does not exist"
        raise ConfigurationError(f"the script {text} {reason}: specify the path of a Python file")
    return str(path.absolute())


def snapshot_location(cli: Cli, text: str, *, whole: bool = False) -> str:
    """Return a snapshot to start from, written so that it means the same in the driver."""
    from turnback.config.configuration import location

    if not text.strip():
        raise ConfigurationError("-s needs a snapshot: a path, chk-7, latest or a time")
    if "/" in text or Path(text).is_dir():
        path = location(text)
        if "://" not in path:
            cli.snapshot(path, whole=whole)  # refused here, before Spark starts
        elif cli.storage_options:
            _refuse_if_missing(path, cli.storage_options)
        return path
    if "@" in text:
        return cli.snapshot(text, whole=whole).origin.uri
    return text


def _refuse_if_missing(path: str, options: Mapping[str, str]) -> None:
    """Refuse a snapshot in an object store that is certainly not there.

    The program may have credentials of its own, so any other error is left to it.
    """
    from turnback.snapshot.find import load_snapshot

    try:
        load_snapshot(path, {**options, **_AT_ONCE})
    except (StorageError, CheckpointError) as error:
        if isinstance(error, CheckpointNotFoundError | NotFoundError):
            raise


def droppable(everything: bool, named: Sequence[str]) -> bool | tuple[str, ...]:
    """Return which state may be dropped: all of it, or what is named."""
    if everything and named:
        raise ConfigurationError("-n and --allow cannot be used together")
    return everything or tuple(named)


def parse_renames(pairs: Sequence[str]) -> dict[str, str]:
    """Return names in the snapshot with their names in the program."""
    renames: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not equals or not old.strip() or not new.strip():
            raise ConfigurationError(f"--rename {pair!r}: expected OLD=NEW, such as counts=totals")
        renames[old.strip()] = new.strip()
    return renames
