"""`turnback run` and `turnback check`: start a job, or tell whether it would start."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING

import click

from turnback.cli.command import command, flag, number_option
from turnback.cli.context import AlreadyPrintedError, Cli, ExitCode, exit_code
from turnback.cli.parameters import (
    allow_all_option,
    allow_option,
    arguments_argument,
    complete_snapshot,
    droppable,
    name_option,
    parse_renames,
    rename_option,
    script_argument,
    script_path,
    snapshot_location,
)
from turnback.cli.restoring import restore_bar
from turnback.errors import (
    ConfigurationError,
    IncompatibleStateError,
    JobFailedError,
    TurnbackError,
)

if TYPE_CHECKING:
    from turnback.job.run import Launch, RunDirectory, RunEnd, RunningJob
    from turnback.snapshot.preflight import CheckReport
    from turnback.views.job import Job
    from turnback.views.model import JobSummary

_TAIL = 40
_NO_INPUT_S = 8.0
_FIRST_EPOCH_S = 60.0
_POLL_S = 0.1
"""For how long a detached start waits for the first epoch to begin, which it never does without
input; for how long until it is over; and how often it looks."""
_ADVICE = (
    "On the command line, use --rename OLD=NEW, --allow STATE, or -n to drop all of it. To find "
    "out before a start, run turnback check."
)


@command(
    "run",
    "turnback run job.py",
    "turnback run -d -p 4 -D execution.checkpointing.interval=10s job.py --input /data",
    "turnback run -d -s /savepoints/launch-day --name social-media-b job.py --out /data/b",
    "turnback run -s 2026-01-31T12:00 job.py",
    script=True,
)
@script_argument
@arguments_argument
@flag("-d", "--detached", help="Return once the job has completed an epoch, or runs without input.")
@click.option(
    "-s",
    "--start-from",
    metavar="SNAPSHOT",
    shell_complete=complete_snapshot,
    help="Start from a savepoint's directory, a checkpoint's file, chk-7, latest, a time such as "
    "2026-01-31T12:00, or another job's JOB@latest.",
)
@allow_all_option
@allow_option
@rename_option
@click.option(
    "--claim-mode",
    metavar="MODE",
    type=click.Choice(["no_claim", "claim"]),
    help="no_claim: the savepoint stays as it is; claim: the job owns it and can delete it.",
)
@number_option(
    "-p", "--parallelism", least=1, help="Number of parallel instances of every operator."
)
@flag("--fresh", help="Start with empty state even if there are checkpoints.")
@name_option
@flag("--fork", help="Allow a snapshot of another job. Implied by --name with -s.")
@flag(
    "--allow-pickled-state",
    help="Read pickled objects in the snapshot. This can run code that the snapshot contains.",
)
@flag(
    "--take-over-sinks",
    help="Take over sink targets that belong to another job, which can then no longer write to "
    "them.",
)
@flag(
    "--standby",
    help="Wait while another driver runs the job, and take over when it is silent for "
    "run.standby-timeout.",
)
def run(
    cli: Cli,
    script: str,
    arguments: Sequence[str],
    detached: bool,
    start_from: str | None,
    allow_all: bool,
    allow: Sequence[str],
    rename: Sequence[str],
    claim_mode: str | None,
    parallelism: int | None,
    fresh: bool,
    name: str | None,
    fork: bool,
    allow_pickled_state: bool,
    take_over_sinks: bool,
    standby: bool,
) -> ExitCode | None:
    """Run a job, and restart it when its driver dies.

    SCRIPT is a plain Python file that calls execute(). The job resumes from its latest checkpoint.
    Options given here override those in the script. Without -d, the job's output is printed here,
    and Ctrl-C cancels the job.
    """
    from turnback.job.run import ClaimMode, Launch

    if fresh and start_from is not None:
        raise ConfigurationError("--fresh and -s cannot be used together")
    if standby and (fresh or start_from is not None):
        raise ConfigurationError(
            "--standby resumes the job from its newest checkpoint: start the job with "
            f"{'--fresh' if fresh else '-s'} first, and then the drivers that stand by"
        )
    settings = dict(cli.pairs)
    if parallelism is not None:
        settings["parallelism.default"] = str(parallelism)
    launch = Launch(
        # Read first: what is wrong with the configuration belongs here and not into a log.
        log_bytes=cli.configuration.value("run.log.max-size"),
        class_archive=cli.configuration.value("run.class-archive"),
        script=script_path(script),
        arguments=tuple(arguments),
        directory=str(Path.cwd()),
        name=name,
        start_from=None
        if start_from is None
        else snapshot_location(cli, start_from, whole=claim_mode == "claim"),
        fresh=fresh,
        allow_non_restored_state=droppable(allow_all, allow),
        renames=parse_renames(rename),
        claim_mode=None if claim_mode is None else ClaimMode(claim_mode),
        fork=fork or (name is not None and start_from is not None) or "@" in (start_from or ""),
        allow_pickled_state=allow_pickled_state,
        take_over_sinks=take_over_sinks,
        standby=standby,
        root=cli.root,
        settings=settings,
        detached=detached,
    )
    _warn_of_misplaced(cli, script, arguments)
    return _start(cli, launch, detached)


def _warn_of_misplaced(cli: Cli, script: str, arguments: Sequence[str]) -> None:
    """Say which arguments of the script look as if they were meant for this command."""
    ours = {name for option in run.params for name in (*option.opts, *option.secondary_opts)}
    names = [word.partition("=")[0] for word in arguments]
    meant = [name for name in names if name.startswith("-") and name in ours]
    if meant:
        words = " ".join(dict.fromkeys(meant))
        cli.out.message(
            f"note: arguments after the script are passed to the script, including {words}. To "
            f"pass them to turnback instead: turnback run {words} ... {script}",
            "yellow",
        )


def _start(cli: Cli, launch: Launch, detached: bool) -> ExitCode | None:
    from turnback.launch.runs import Runs, await_running, last_lines

    directory = Runs(cli.runs_dir).create(launch)
    directory.start_supervisor()
    if not detached:
        return AttachedJob(cli, directory).follow()
    with restore_bar(cli, directory) as show:
        end = await_running(directory, show)
    if end is not None:
        printed = last_lines(directory.log, _TAIL)[0] if directory.log.is_file() else ""
        raise _failure(directory, end, printed)
    job = directory.job()
    assert job is not None
    if directory.is_standby():
        cli.out.message(f"standing by for the driver that runs job {job.name!r}")
        _print_started(cli, job)
        return None
    failed = _failed_at_once(directory, job)
    _print_started(cli, job)
    if failed is None:
        return None
    why = (failed.cause or failed.problem or "see its log for the reason").partition("\n")[0]
    again = "; it is being restarted" if failed.state == "RESTARTING" else ""
    cli.out.message(f"job {job.name!r} failed before its first epoch{again}: {why}", "red")
    return ExitCode.FAILED


def _failed_at_once(directory: RunDirectory, job: RunningJob) -> JobSummary | None:
    """Wait for the first epoch; returns how the job is if it has failed before that."""
    now = time.monotonic()
    end = now + _FIRST_EPOCH_S
    idle_end = now + _NO_INPUT_S
    while directory.epoch() is None and time.monotonic() < end:
        seen = _job(job).observe()
        if seen.alive.state not in ("CREATED", "RUNNING", "STALLED"):
            return seen.summary if seen.alive.state in ("RESTARTING", "FAILED", "LOST") else None
        progress = seen.metrics.progress
        if (progress is None or progress.epoch is None) and time.monotonic() > idle_end:
            return None
        time.sleep(_POLL_S)
    return None


def _failure(directory: RunDirectory, end: RunEnd, printed: str = "") -> TurnbackError:
    """Return why a job does not run, as the error it was in the driver."""
    from turnback.launch.runs import why_never_run

    reason = why_never_run(directory, end)
    error = reason.rebuilt()
    message = reason.message
    if isinstance(error, IncompatibleStateError):
        return IncompatibleStateError(f"{message}\n{_ADVICE}")
    return error or JobFailedError("\n  ".join([message, *printed.splitlines()]))


def _print_started(cli: Cli, job: RunningJob) -> None:
    summary = _summary(job)
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
    root = "" if job.root == cli.root else f" --root {quote(job.root)}"
    name = quote(summary.name)
    cli.out.hint(f"turnback{root} status {name} · turnback{root} logs -f {name}")


def _summary(job: RunningJob) -> JobSummary:
    return _job(job).summary()


def _job(job: RunningJob) -> Job:
    from turnback.views.jobs import Jobs

    return Jobs(job.root, job.storage_options).get(job.name)


class AttachedJob:
    """A job that was started from this terminal: shows what it prints, and ends it with Ctrl-C."""

    def __init__(self, cli: Cli, directory: RunDirectory) -> None:
        from turnback.launch.runs import LogFollower

        self._cli = cli
        self._directory = directory
        # With --json stdout is for the document at the end.
        self._log = LogFollower(directory.log, sys.stderr if cli.json else sys.stdout)
        self._interrupts = 0

    def follow(self) -> ExitCode | None:
        """Show the job's output until it ends; returns how it ended."""
        from turnback.launch.runs import await_end

        with self._signals():
            end = await_end(self._directory, self._log.print_new)
        self._log.print_new()
        if self._interrupts:
            self._print_end()
            return ExitCode.INTERRUPTED
        has_run = self._directory.running() is not None or self._directory.is_standby()
        if not has_run or self._directory.error() is not None:
            raise self._failure(end)
        state = self._print_end()
        if state is None:
            raise JobFailedError(f"the job has not ended, but {end.reason}: start the job again")
        return ExitCode.FAILED if state == "FAILED" else None

    def _failure(self, end: RunEnd) -> TurnbackError:
        """Return why it failed; what the driver has printed above is not repeated."""
        error = _failure(self._directory, end)
        told = self._directory.error()
        if told is None or self._cli.json or not self._log.has_printed(told.message):
            return error
        advice = str(error).removeprefix(told.message).strip()
        return AlreadyPrintedError(advice, exit_code(error))

    def _print_end(self) -> str | None:
        from turnback.launch.runs import final_state

        job = self._directory.job()
        state = final_state(self._directory)
        if job is not None and self._cli.json:
            self._cli.out.document(_summary(job))
        elif job is not None and state is not None:
            self._cli.out.message(f"job {job.name!r} is {state.value}")
        return None if state is None else state.value

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Cancel the job when this program is told to end; kill it the second time.

        A signal that was ignored from the beginning stays so: `nohup` is meant to outlive the
        terminal.
        """
        before = {
            number: signal.signal(number, self._interrupted)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        from turnback.launch.runs import cancel, kill

        self._interrupts += 1
        if self._interrupts == 1:
            self._cli.out.message("cancelling the job; interrupt again to kill it")
            cancel(self._directory)
        else:
            kill(self._directory)


@command(
    "check",
    "turnback check -s orders@latest job.py",
    "turnback check -s /data/savepoints/savepoint-1a2b --allow old-counts job.py --input /data",
    script=True,
)
@script_argument
@arguments_argument
@click.option(
    "-s",
    "--start-from",
    metavar="SNAPSHOT",
    required=True,
    shell_complete=complete_snapshot,
    help="Snapshot to start from, as for run.",
)
@allow_all_option
@allow_option
@rename_option
@name_option
def check(
    cli: Cli,
    script: str,
    arguments: Sequence[str],
    start_from: str,
    allow_all: bool,
    allow: Sequence[str],
    rename: Sequence[str],
    name: str | None,
) -> ExitCode | None:
    """Check whether a job can start from a snapshot.

    Shows for each state whether it would be restored, migrated, new, unclaimed or incompatible.
    SCRIPT runs until it calls execute(); no job is started. Exits with code 5 if the job would
    refuse to start, so an upgrade can be checked in a script.
    """
    from turnback.job.run import Launch, LaunchMode
    from turnback.launch.preflight import with_program
    from turnback.snapshot.preflight import CheckReport

    launch = Launch(
        script=script_path(script),
        arguments=tuple(arguments),
        directory=str(Path.cwd()),
        mode=LaunchMode.PLAN,
        name=name,
        start_from=snapshot_location(cli, start_from),
        allow_non_restored_state=droppable(allow_all, allow),
        renames=parse_renames(rename),
        settings=cli.pairs,
    )
    report = with_program(launch, "check", CheckReport)
    if cli.json:
        cli.out.document(report.to_dict())
    else:
        _print_report(cli, report)
    return None if report.ok else ExitCode.WOULD_NOT_START


def _print_report(cli: Cli, report: CheckReport) -> None:
    rows = [
        [cli.out.state(r.verdict.value), r.subject.value, r.uid, r.state, r.reason]
        for r in report.rows
    ]
    cli.out.table(("verdict", "what", "uid", "state", "reason"), rows)
    blocking = sum(row.blocking for row in report.rows)
    if report.ok:
        cli.out.message(f"ok: the job would start from {report.snapshot}", "green")
    else:
        things = "1 problem prevents" if blocking == 1 else f"{blocking} problems prevent"
        cli.out.message(f"not ok: {things} the job from starting", "bold red")
