"""`turnback savepoint`, `stop` and `cancel`: ask something of a running job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from turnback.cli.command import Command, argument, command, flag
from turnback.cli.context import Cli, ExitCode, RequestFailedError, TimedOutError
from turnback.cli.parameters import whole_job_argument, yes_option
from turnback.core.clock import Clock, SystemClock
from turnback.core.errors import ConfigurationError
from turnback.core.units import format_duration, format_size, parse_duration

if TYPE_CHECKING:
    from turnback.config.savepoints import SavepointFormat
    from turnback.inspect.job import Job
    from turnback.inspect.model import RequestRow

_SAVEPOINT_NAMES = ("-s", "--savepoint")

label_option = click.option("--label", metavar="TEXT", help="A short name for the savepoint.")
note_option = click.option("--note", metavar="TEXT", help="Why the savepoint is taken.")
format_option = click.option(
    "--format",
    metavar="FORMAT",
    type=click.Choice(["canonical", "native"]),
    help="canonical: Parquet tables that anyone can read; native: faster, for Turnback only.",
)
# Without a directory its value is "".
savepoint_option = click.option(
    *_SAVEPOINT_NAMES,
    metavar="[DIR]",
    is_flag=False,
    flag_value="",
    help="Take a savepoint first, in DIR or else where state.savepoints.dir says.",
)
no_wait_option = flag("--no-wait", help="Ask, and do not wait until it is done.")
timeout_option = click.option(
    "--timeout", metavar="TIME", help="Wait no longer than this, such as '30 s'; else forever."
)


class OptionalDirectoryCommand(Command):
    """A command that understands `cancel -s JOB` as well as `cancel -s DIR JOB`, as Flink does.

    The word behind -s is a directory, unless the command would then lack its job.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the word behind -s for a directory first, then for the job."""
        try:
            return super().parse_args(ctx, list(args))
        except click.MissingParameter:
            ctx.params.clear()
            without = ["--savepoint=" if word in _SAVEPOINT_NAMES else word for word in args]
            return super().parse_args(ctx, without)


@command(
    "savepoint",
    "turnback savepoint orders",
    "turnback savepoint orders s3://bucket/savepoints --label before-upgrade",
    "turnback savepoint orders --format native --timeout '5 min'",
)
@whole_job_argument
@argument("directory", "[DIR]", help="Where to put it; by default what state.savepoints.dir says.")
@label_option
@note_option
@format_option
@no_wait_option
@timeout_option
def savepoint(
    cli: Cli,
    job_name: str,
    directory: str | None,
    label: str | None,
    note: str | None,
    format: str | None,
    no_wait: bool,
    timeout: str | None,
) -> ExitCode | None:
    """Take a savepoint of a running job.

    The job goes on meanwhile. Prints where the savepoint is. Ctrl-C ends the waiting, not the
    savepoint.
    """
    from turnback.job.request import RequestKind

    job = cli.job(job_name, whole=True)
    limit_ms = _wait_limit(no_wait, timeout)
    request = job.ask(
        RequestKind.SAVEPOINT,
        target=_target(job, directory),
        format=_format(format),
        label=label,
        note=note,
    )
    return _finish(cli, job, request, no_wait, limit_ms)


@command(
    "stop",
    "turnback stop orders",
    "turnback stop orders --savepoint /data/savepoints --yes",
    "turnback stop --savepoint orders --drain",
    cls=OptionalDirectoryCommand,
)
@whole_job_argument
@savepoint_option
@flag("--no-savepoint", help="Take none, whatever the configuration says.")
@flag("--drain", help="Let event time run to its end first: the job is complete then.")
@label_option
@note_option
@format_option
@yes_option
@no_wait_option
@timeout_option
def stop(
    cli: Cli,
    job_name: str,
    savepoint: str | None,
    no_savepoint: bool,
    drain: bool,
    label: str | None,
    note: str | None,
    format: str | None,
    yes: bool,
    no_wait: bool,
    timeout: str | None,
) -> ExitCode | None:
    """Stop a job after the records it has read.

    Takes a savepoint first if you say so, or if state.savepoints.dir is set and
    savepoints.on-stop is not false.
    """
    from turnback.job.request import RequestKind

    if savepoint is not None and no_savepoint:
        raise ConfigurationError("--savepoint and --no-savepoint contradict each other")
    job = cli.job(job_name, whole=True)
    cli.confirm(f"Stop job {job.name!r}?", yes)
    limit_ms = _wait_limit(no_wait, timeout)
    request = job.ask(
        RequestKind.STOP,
        target=_target(job, savepoint),
        savepoint=True if savepoint is not None else (False if no_savepoint else None),
        drain=drain,
        format=_format(format),
        label=label,
        note=note,
    )
    return _finish(cli, job, request, no_wait, limit_ms)


@command(
    "cancel",
    "turnback cancel orders",
    "turnback cancel -s orders",
    "turnback cancel -s /data/savepoints orders --yes",
    cls=OptionalDirectoryCommand,
)
@whole_job_argument
@savepoint_option
@yes_option
@no_wait_option
@timeout_option
def cancel(
    cli: Cli, job_name: str, savepoint: str | None, yes: bool, no_wait: bool, timeout: str | None
) -> ExitCode | None:
    """Cancel a job at once.

    What it has read since its newest checkpoint is read again when it is started again. With -s it
    takes a savepoint first.
    """
    from turnback.job.request import RequestKind

    job = cli.job(job_name, whole=True)
    cli.confirm(f"Cancel job {job.name!r}?", yes)
    limit_ms = _wait_limit(no_wait, timeout)
    request = job.ask(
        RequestKind.CANCEL, target=_target(job, savepoint), savepoint=savepoint is not None
    )
    return _finish(cli, job, request, no_wait, limit_ms)


def _wait_limit(no_wait: bool, timeout: str | None) -> int | None:
    """Return how long to wait; checked before anything is asked, which cannot be taken back."""
    if no_wait and timeout is not None:
        raise ConfigurationError("--no-wait and --timeout contradict each other: give one of them")
    return None if timeout is None else parse_duration(timeout, "--timeout")


def _format(name: str | None) -> SavepointFormat | None:
    from turnback.config.savepoints import SavepointFormat

    return None if name is None else SavepointFormat(name)


def _target(job: Job, directory: str | None) -> str | None:
    """Return where to put a savepoint, absolute if the driver is on this machine too."""
    if not directory:
        return None
    driver = job.summary().driver
    if driver is None or driver.alive is None:
        return directory
    from turnback.config.configuration import location

    return location(directory)


def _finish(
    cli: Cli, job: Job, request: RequestRow, no_wait: bool, limit_ms: int | None
) -> ExitCode | None:
    """Wait until the job has done what it was asked, and print the result."""
    if not no_wait:
        waiter = RequestWaiter(cli, job)
        try:
            request = waiter.wait(request, limit_ms)
        except KeyboardInterrupt:
            waiter.print_interrupted(request)
            return ExitCode.INTERRUPTED
    if cli.json:
        cli.out.document(request)
    elif request.state != "COMPLETED":
        cli.out.line(request.id)
        cli.out.hint(f"Asked. See: turnback status {job.name}")
    else:
        if request.path is not None:
            cli.out.line(request.path)
        if request.kind != "savepoint":
            ended = {"stop": "stopped", "cancel": "canceled"}[request.kind]
            cli.out.message(f"Job {job.name!r} is {ended}.")
    return None


# -- waiting for the answer

_DONE = frozenset({"COMPLETED", "FAILED"})
_ENDED = frozenset({"FAILED", "FINISHED", "CANCELED"})
_POLL_S = 0.2
_LIVENESS_POLL_S = 2.0
_ANSWER_GRACE_S = 30.0
"""How long a driver may take to answer after its job has ended: answering is the last it does."""
_RESTART_GRACE_S = 10.0
"""How long a job may look lost: a new supervisor takes a moment to show itself."""


class RequestWaiter:
    """Waits for the answer to a request."""

    def __init__(self, cli: Cli, job: Job, clock: Clock | None = None) -> None:
        self._cli = cli
        self._job = job
        self._clock = clock or SystemClock()
        self._ended_at: float | None = None
        self._lost_at: float | None = None

    def wait(self, request: RequestRow, limit_ms: int | None) -> RequestRow:
        """Wait, with a progress bar if a person watches.

        Raises:
            RequestFailedError: It failed, or nobody is left to answer it.
            TimedOutError: It took longer than the limit; the request goes on.
        """
        began = looked = self._clock.monotonic()
        row = request
        with _progress_bar(self._cli, request) as show:
            while row.state not in _DONE:
                now = self._clock.monotonic()
                if limit_ms is not None and (now - began) * 1000 >= limit_ms:
                    raise TimedOutError(
                        f"{_name(request)} of job {self._job.name!r} is not done after "
                        f"{format_duration(limit_ms)}; it goes on. {self._advice()}"
                    )
                if now - looked >= _LIVENESS_POLL_S:
                    looked = now
                    self._check_liveness(request, now)
                self._clock.sleep(_POLL_S)
                row = self._job.request(request.id)
                show(row)
        if row.state == "FAILED":
            raise RequestFailedError(
                f"{_name(row)} of job {self._job.name!r} failed: {row.error or 'no reason given'}"
            )
        return row

    def print_interrupted(self, request: RequestRow) -> None:
        self._cli.out.message(f"\n{_name(request)} goes on without you watching. {self._advice()}")

    def _check_liveness(self, request: RequestRow, now: float) -> None:
        """Raise an error if nobody is left who could answer."""
        summary = self._job.summary()
        lost, ended = summary.state == "LOST", summary.state in _ENDED
        if not lost:
            self._lost_at = None
        if not (lost or ended) or self._job.request(request.id).state in _DONE:
            return
        if lost:
            self._lost_at = now if self._lost_at is None else self._lost_at
            if now - self._lost_at < _RESTART_GRACE_S:
                return
        elif summary.driver is not None and summary.driver.alive is not False:
            self._ended_at = now if self._ended_at is None else self._ended_at
            if now - self._ended_at < _ANSWER_GRACE_S:
                return
        raise RequestFailedError(
            f"the driver of job {self._job.name!r} is gone ({summary.state}) and has left "
            f"{_name(request)} unanswered. {self._advice()}"
        )

    def _advice(self) -> str:
        return f"See: turnback status {self._job.name}"


@contextmanager
def _progress_bar(cli: Cli, request: RequestRow) -> Iterator[Callable[[RequestRow], None]]:
    """Show a bar if stderr is a terminal; the function it gives moves it."""
    console = cli.out.stderr()
    if not console.is_terminal or cli.json:
        yield lambda row: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[written]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(_name(request), total=None, written="")

        def show(row: RequestRow) -> None:
            written = f"{row.done}/{row.total} parts, {format_size(row.bytes)}" if row.total else ""
            bar.update(task, total=row.total or None, completed=row.done, written=written)

        yield show


def _name(row: RequestRow) -> str:
    with_savepoint = row.savepoint and row.kind != "savepoint"
    return f"the {row.kind} with savepoint" if with_savepoint else f"the {row.kind}"
