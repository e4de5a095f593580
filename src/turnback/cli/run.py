"""`turnback run`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

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
from turnback.cli.verb import Panel, Verb, flag
from turnback.core.errors import (
    ConfigurationError,
    IncompatibleStateError,
    JobFailedError,
    TurnbackError,
)

if TYPE_CHECKING:
    from turnback.job.run import Launch
    from turnback.launch.runs import Started

_WHAT_TO_SAY = (
    "On the command line that is --rename OLD=NEW, --allow STATE, or -n for whatever it is. "
    "turnback check tells beforehand."
)


def run(
    cli: Cli,
    script: ScriptArgument,
    arguments: ArgumentsArgument = None,
    detached: Annotated[
        bool, flag("-d", "--detached", help="Return as soon as the job runs.")
    ] = False,
    start_from: Annotated[
        str | None,
        typer.Option(
            "-s",
            "--start-from",
            metavar="SNAPSHOT",
            help="Start from a savepoint's directory, a checkpoint's file, chk-7, latest, a time "
            "such as 2026-01-31T12:00, or another job's JOB@latest.",
        ),
    ] = None,
    allow_all: AllowAllOption = False,
    allow: AllowOption = None,
    rename: RenameOption = None,
    claim_mode: Annotated[
        Literal["no_claim", "claim"] | None,
        typer.Option(
            "--claim-mode",
            metavar="MODE",
            help="no_claim: the savepoint stays as it is; claim: the job may delete it.",
        ),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(
            "-p", "--parallelism", metavar="N", min=1, help="Number of instances of every operator."
        ),
    ] = None,
    fresh: Annotated[
        bool, flag("--fresh", help="Start empty although there are checkpoints.")
    ] = False,
    name: NameOption = None,
    fork: Annotated[
        bool,
        flag("--fork", help="The snapshot may be another job's; --name with -s says so as well."),
    ] = False,
    allow_pickled_state: Annotated[
        bool,
        flag(
            "--allow-pickled-state",
            help="Read pickled objects in the snapshot, which runs code that is in it.",
        ),
    ] = False,
    take_over_sinks: Annotated[
        bool,
        flag(
            "--take-over-sinks",
            help="Write to targets of sinks that belong to another job, which may not any more.",
        ),
    ] = False,
) -> ExitCode | None:
    """Run a job, and start it again when its driver dies.

    SCRIPT is a plain Python file that calls execute(). The job goes on from its latest
    checkpoint. What is said here wins over what the script says. Without -d its output is shown
    here, and Ctrl-C cancels it.
    """
    from turnback.core.ids import check_job_name
    from turnback.job.run import Launch

    if fresh and start_from is not None:
        raise ConfigurationError("--fresh and -s contradict each other: give one of them")
    _ = cli.configuration  # what is wrong with it is better said here than in a log
    launch = Launch(
        script=script_path(script),
        arguments=tuple(arguments or ()),
        directory=str(Path.cwd()),
        name=None if name is None else check_job_name(name),
        start_from=None
        if start_from is None
        else snapshot_location(cli, start_from, whole=claim_mode == "claim"),
        fresh=fresh,
        allow_non_restored_state=allowed(allow_all, allow),
        renames=renames(rename),
        claim_mode=claim_mode,
        fork=fork or (name is not None and start_from is not None) or "@" in (start_from or ""),
        allow_pickled_state=allow_pickled_state,
        take_over_sinks=take_over_sinks,
        root=cli.root,
        settings=_settings(cli, parallelism),
        log_bytes=cli.configuration.value("run.log.max-size"),
    )
    return _launch(cli, launch, detached)


def _launch(cli: Cli, launch: Launch, detached: bool) -> ExitCode | None:
    from turnback.cli.attach import Attached
    from turnback.launch.runs import Runs, await_running

    handle = Runs(cli.runs_dir).create(launch)
    handle.start_supervisor()
    if not detached:
        return Attached(cli, handle).follow()
    started = await_running(handle)
    if started.error is not None:
        raise failure(started)
    _tell(cli, started)
    return None


def failure(started: Started) -> TurnbackError:
    """Why a job does not run, as the error it was in the driver."""
    assert started.error is not None
    error, message = started.error.rebuilt(), started.error.message
    if isinstance(error, IncompatibleStateError):
        return IncompatibleStateError(f"{message}\n{_WHAT_TO_SAY}")
    lines = "\n".join(f"  {line}" for line in started.tail)
    return error or JobFailedError(f"{message}\n{lines}" if lines else message)


def _tell(cli: Cli, started: Started) -> None:
    from turnback.inspect.jobs import Jobs

    assert started.job is not None
    job = Jobs(started.job.root, started.job.storage_options).get(started.job.name)
    summary = job.summary()
    if cli.json:
        cli.out.document(summary)
        return
    cli.out.fields(
        [
            ("job", summary.name),
            ("id", summary.job_id),
            ("state", cli.out.state(summary.state)),
            ("attempt", summary.attempt),
            ("directory", summary.directory),
            ("log", summary.log),
        ]
    )
    # The script may have named another root than these commands would look in.
    there = "" if started.job.root == cli.root else f" --root {quote(started.job.root)}"
    name = quote(summary.name)
    cli.out.hint(f"turnback{there} status {name} · turnback{there} logs -f {name}")


def _settings(cli: Cli, parallelism: int | None) -> dict[str, str]:
    settings = dict(cli.pairs)
    if parallelism is not None:
        settings["parallelism.default"] = str(parallelism)
    return settings


VERB = Verb(
    "run",
    run,
    Panel.RUN,
    examples=(
        "turnback run job.py",
        "turnback run -d -p 4 -D execution.checkpointing.interval=10s job.py --input /data",
        "turnback run -d -s /savepoints/launch-day --name social-media-b job.py --out /data/b",
        "turnback run -s 2026-01-31T12:00 job.py",
    ),
    script=True,
)
