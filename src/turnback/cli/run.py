"""`turnback run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.verb import Panel, Verb, flag
from turnback.core import errors
from turnback.core.errors import ConfigurationError, JobFailedError, TurnbackError

if TYPE_CHECKING:
    from turnback.config.launch import Launch
    from turnback.launch.start import Started

_WHAT_TO_SAY = (
    "On the command line that is --rename OLD=NEW, --allow STATE, or -n for whatever it is. "
    "turnback check tells beforehand."
)


def run(
    cli: Cli,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="What the script is given.")
    ] = None,
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
    allow_all: Annotated[
        bool,
        flag("-n", "--allow-non-restored-state", help="Drop all state that no operator claims."),
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="STATE",
            help="Drop this state if no operator claims it: UID or UID/STATE; may be repeated.",
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="What had another name in the snapshot: UID=UID or UID/STATE=UID/STATE; may be "
            "repeated.",
        ),
    ] = None,
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
        typer.Option("-p", "--parallelism", metavar="N", min=1, help="parallelism.default"),
    ] = None,
    fresh: Annotated[
        bool, flag("--fresh", help="Start empty although there are checkpoints.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the job, instead of the script's."),
    ] = None,
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
) -> ExitCode | None:
    """Run a job, and start it again when its driver dies.

    SCRIPT is a plain Python file that calls execute(). The job goes on from its latest
    checkpoint. What is said here wins over what the script says. Without -d its output is shown
    here, and Ctrl-C cancels it.
    """
    from turnback.config.launch import Launch
    from turnback.core.ids import check_job_name

    if fresh and start_from is not None:
        raise ConfigurationError("--fresh and -s contradict each other: give one of them")
    if allow_all and allow:
        raise ConfigurationError("-n and --allow contradict each other: give one of them")
    _ = cli.configuration  # what is wrong with it is better said here than in a log
    launch = Launch(
        script=_script(script),
        arguments=tuple(arguments or ()),
        directory=str(Path.cwd()),
        name=None if name is None else check_job_name(name),
        start_from=None if start_from is None else _snapshot(cli, start_from),
        fresh=fresh,
        allow_non_restored_state=allow_all or tuple(allow or ()),
        renames=_renames(rename or []),
        claim_mode=claim_mode,
        fork=fork or (name is not None and start_from is not None) or "@" in (start_from or ""),
        allow_pickled_state=allow_pickled_state,
        settings=_settings(cli, parallelism),
    )
    return _launch(cli, launch, detached)


def _launch(cli: Cli, launch: Launch, detached: bool) -> ExitCode | None:
    from turnback.cli.attach import Attached
    from turnback.launch.runs import Runs
    from turnback.launch.start import await_running

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
    kind = getattr(errors, started.error.kind, None)
    message = started.error.message
    if kind is errors.IncompatibleStateError:
        message += f"\n{_WHAT_TO_SAY}"
    if isinstance(kind, type) and issubclass(kind, TurnbackError):
        return kind(message)
    lines = "\n".join(f"  {line}" for line in started.tail)
    return JobFailedError(f"{message}\n{lines}" if lines else message)


def _tell(cli: Cli, started: Started) -> None:
    from turnback.ops.jobs import Jobs

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
    cli.out.hint(f"turnback status {summary.name} · turnback logs -f {summary.name}")


def _script(text: str) -> str:
    path = Path(text).expanduser()
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise ConfigurationError(f"the script {text} {what}: give the path of a Python file")
    return str(path.absolute())


def _snapshot(cli: Cli, text: str) -> str:
    from turnback.api.arguments import location

    if not text.strip():
        raise ConfigurationError("-s names no snapshot: give a path, chk-7, latest or a time")
    if "/" in text or Path(text).is_dir():
        return location(text)
    if "@" in text:
        return cli.snapshot(text).origin.uri
    return text


def _renames(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not equals or not old.strip() or not new.strip():
            raise ConfigurationError(f"--rename {pair!r}: write OLD=NEW, such as counts=totals")
        found[old.strip()] = new.strip()
    return found


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
        "turnback run -d -s /savepoints/launch-day --name social-media-b job.py",
        "turnback run -s 2026-01-31T12:00 job.py",
    ),
    script=True,
)
