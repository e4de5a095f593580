"""What is done to jobs from outside: `transactions`, `delete`, `compact` and `redrive`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from turnback.cli.command import Command, Group, argument, command, flag
from turnback.cli.context import Cli, ExitCode, RequestFailedError, TimedOutError
from turnback.cli.output import Column
from turnback.cli.parameters import (
    application_option,
    arguments_argument,
    find_job_in,
    job_argument,
    program_of_job,
    whole_job_argument,
    yes_option,
)
from turnback.core.clock import Clock, SystemClock
from turnback.core.units import format_duration, format_size, parse_duration
from turnback.errors import ConfigurationError

if TYPE_CHECKING:
    from turnback.operations.compaction import CompactedTable
    from turnback.operations.dead_letters import Redrive, RedriveRow
    from turnback.operations.transactions import TransactionRow
    from turnback.views.job import Job
    from turnback.views.model import RequestRow


_SAVEPOINT_NAMES = ("-s", "--savepoint")

label_option = click.option("--label", metavar="TEXT", help="A short name for the savepoint.")
note_option = click.option("--note", metavar="TEXT", help="A note on why the savepoint was taken.")
format_option = click.option(
    "--format",
    metavar="FORMAT",
    type=click.Choice(["canonical", "native"]),
    help="canonical: Parquet tables that any tool can read; native: faster, readable by Turnback "
    "only.",
)
# Without a directory its value is "".
savepoint_option = click.option(
    *_SAVEPOINT_NAMES,
    metavar="[DIR]",
    is_flag=False,
    flag_value="",
    help="Take a savepoint first, in DIR or, without it, in state.savepoints.dir.",
)
no_wait_option = flag("--no-wait", help="Submit the request without waiting for it to complete.")
timeout_option = click.option(
    "--timeout", metavar="TIME", help="Longest time to wait, such as '30 s'. Default: no limit."
)


class SavepointOptions(NamedTuple):
    """Where a savepoint is put, and what is written about it."""

    directory: str | None
    format: str | None = None
    label: str | None = None
    note: str | None = None


class OptionalDirectoryCommand(Command):
    """A command that understands `cancel -s JOB` as well as `cancel -s DIR JOB`, as Flink does.

    The word behind -s is a directory, unless the command would then lack its job.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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
@argument("directory", "[DIR]", help="Where to write the savepoint. Default: state.savepoints.dir.")
@label_option
@note_option
@format_option
@application_option
@no_wait_option
@timeout_option
def savepoint(
    cli: Cli,
    job_name: str,
    directory: str | None,
    label: str | None,
    note: str | None,
    format: str | None,
    application: str | None,
    no_wait: bool,
    timeout: str | None,
) -> ExitCode | None:
    """Take a savepoint of a running job.

    The job continues to run. Prints the location of the savepoint. Ctrl-C stops waiting, but does
    not stop the savepoint.
    """
    job = find_job_in(cli, job_name, application)
    options = SavepointOptions(directory, format, label, note)
    return _request(cli, job, "savepoint", no_wait, timeout, options)


@command(
    "stop",
    "turnback stop orders",
    "turnback stop orders --savepoint /data/savepoints --yes",
    "turnback stop --savepoint orders --drain",
    cls=OptionalDirectoryCommand,
)
@whole_job_argument
@savepoint_option
@flag("--no-savepoint", help="Take no savepoint, even if one is configured.")
@flag("--drain", help="Advance event time to its end first. The job is then complete.")
@label_option
@note_option
@format_option
@application_option
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
    application: str | None,
    yes: bool,
    no_wait: bool,
    timeout: str | None,
) -> ExitCode | None:
    """Stop a job after the records it has read.

    Takes a savepoint first with --savepoint, or if state.savepoints.dir is set and
    savepoints.on-stop is not false.
    """
    if savepoint is not None and no_savepoint:
        raise ConfigurationError("--savepoint and --no-savepoint cannot be used together")
    job = find_job_in(cli, job_name, application)
    options = SavepointOptions(savepoint, format, label, note)
    cli.confirm(f"Stop job {job.name!r}?", yes)
    wanted = True if savepoint is not None else (False if no_savepoint else None)
    return _request(cli, job, "stop", no_wait, timeout, options, wanted, drain)


@command(
    "cancel",
    "turnback cancel orders",
    "turnback cancel -s orders",
    "turnback cancel -s /data/savepoints orders --yes",
    cls=OptionalDirectoryCommand,
)
@whole_job_argument
@savepoint_option
@application_option
@yes_option
@no_wait_option
@timeout_option
def cancel(
    cli: Cli,
    job_name: str,
    savepoint: str | None,
    application: str | None,
    yes: bool,
    no_wait: bool,
    timeout: str | None,
) -> ExitCode | None:
    """Cancel a job immediately.

    Records read since the newest checkpoint are read again on the next start. With -s, the job
    takes a savepoint first.
    """
    job = find_job_in(cli, job_name, application)
    options = SavepointOptions(savepoint)
    cli.confirm(f"Cancel job {job.name!r}?", yes)
    return _request(cli, job, "cancel", no_wait, timeout, options, savepoint is not None)


def _request(
    cli: Cli,
    job: Job,
    kind: str,
    no_wait: bool,
    timeout: str | None,
    options: SavepointOptions,
    savepoint: bool | None = None,
    drain: bool = False,
) -> ExitCode | None:
    """Submit a request, wait until the job has done it, and print the result."""
    from turnback.config.checkpointing import SavepointFormat
    from turnback.job.request import RequestKind

    # Checked first: a request cannot be taken back.
    if no_wait and timeout is not None:
        raise ConfigurationError("--no-wait and --timeout cannot be used together")
    limit_ms = None if timeout is None else parse_duration(timeout, "--timeout")
    request = job.submit(
        RequestKind(kind),
        target=_target(job, options.directory),
        savepoint=savepoint,
        drain=drain,
        format=None if options.format is None else SavepointFormat(options.format),
        label=options.label,
        note=options.note,
    )
    if not no_wait:
        try:
            request = RequestWaiter(cli, job).wait(request, limit_ms)
        except KeyboardInterrupt:
            goes_on = f"\n{_name(request)} continues in the background."
            cli.out.message(f"{goes_on} See: turnback status {job.name}")
            return ExitCode.INTERRUPTED
    if cli.json:
        cli.out.document(request)
    elif request.state != "COMPLETED":
        cli.out.line(request.id)
        cli.out.hint(f"Submitted. See: turnback status {job.name}")
    else:
        if request.path is not None:
            cli.out.line(request.path)
        if request.kind != "savepoint":
            ended = {"stop": "stopped", "cancel": "canceled"}[request.kind]
            cli.out.message(f"Job {job.name!r} is {ended}.")
    return None


def _target(job: Job, directory: str | None) -> str | None:
    """Return where to put a savepoint, absolute if the driver is on this machine too."""
    if not directory:
        return None
    driver = job.summary().driver
    if driver is None or driver.alive is None:
        return directory
    from turnback.config.configuration import location

    return location(directory)


# -- waiting for the answer

_DONE = frozenset({"COMPLETED", "FAILED"})
_ENDED = frozenset({"FAILED", "FINISHED", "CANCELED"})
_POLL_S = 0.2
_LIVENESS_POLL_S = 2.0
_ANSWER_GRACE_S = 30.0
"""How long a driver may take to answer after its job has ended: answering is the last it does."""
_RESTART_GRACE_S = 10.0
"""How long a job may seem LOST: a new supervisor takes a moment to register."""


class RequestWaiter:
    """Waits for the answer to a request."""

    def __init__(self, cli: Cli, job: Job, clock: Clock | None = None) -> None:
        self._cli = cli
        self._job = job
        self._clock = clock or SystemClock()
        self._ended_at: float | None = None
        self._lost_at: float | None = None

    def wait(self, request: RequestRow, limit_ms: int | None) -> RequestRow:
        """Wait, with a progress bar if a person watches; after the limit the request goes on."""
        began = checked = self._clock.monotonic()
        row = request
        with _progress_bar(self._cli, request) as show:
            while row.state not in _DONE:
                now = self._clock.monotonic()
                if limit_ms is not None and (now - began) * 1000 >= limit_ms:
                    raise TimedOutError(
                        f"{_name(request)} of job {self._job.name!r} is not complete after "
                        f"{format_duration(limit_ms)} and continues. {self._advice()}"
                    )
                if now - checked >= _LIVENESS_POLL_S:
                    checked = now
                    self._check_liveness(request, now)
                self._clock.sleep(_POLL_S)
                row = self._job.request(request.id)
                show(row)
        if row.state == "FAILED":
            raise RequestFailedError(
                f"{_name(row)} of job {self._job.name!r} failed: {row.error or 'no reason given'}"
            )
        return row

    def _check_liveness(self, request: RequestRow, now: float) -> None:
        """Raise an error if nobody is left who could answer."""
        summary = self._job.summary()
        lost = summary.state == "LOST"
        ended = summary.state in _ENDED
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
            f"the driver of job {self._job.name!r} is gone ({summary.state}) and did not "
            f"complete {_name(request)}. {self._advice()}"
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

    title = TextColumn("{task.description}")
    written = TextColumn("{task.fields[written]}")
    columns = (SpinnerColumn(), title, BarColumn(), written, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(_name(request), total=None, written="")

        def show(row: RequestRow) -> None:
            text = f"{row.done}/{row.total} parts, {format_size(row.bytes)}" if row.total else ""
            bar.update(task, total=row.total or None, completed=row.done, written=text)

        yield show


def _name(row: RequestRow) -> str:
    with_savepoint = row.savepoint and row.kind != "savepoint"
    return f"the {row.kind} with savepoint" if with_savepoint else f"the {row.kind}"


_TRANSACTIONS: tuple[Column[TransactionRow], ...] = (
    Column("sink", lambda row, out: row.sink),
    Column("kind", lambda row, out: row.kind),
    Column("state", lambda row, out: row.state.value),
    Column("epoch", lambda row, out: row.epoch, right=True),
    Column("rows", lambda row, out: row.rows, right=True),
    Column("size", lambda row, out: out.size(row.bytes), right=True),
    Column("what", lambda row, out: row.what),
    Column("path", lambda row, out: row.path),
    Column("held up", lambda row, out: row.waiting),
    Column("problem", lambda row, out: row.problem),
)

script_option = click.option(
    "--script",
    metavar="FILE",
    help="The job's program. Needed if Turnback cannot recreate its sinks.",
)
force_option = flag(
    "--force", help="Proceed even if this machine cannot tell whether the job's driver is dead."
)


@click.group("transactions", cls=Group)
def transactions() -> None:
    """List and resolve in-doubt sink transactions of a dead job."""


@transactions.command("list", examples=("turnback transactions list orders",))
@job_argument
def list_transactions(cli: Cli, job_name: str) -> None:
    """List unresolved transactions of sinks.

    In-doubt transactions are in the job's newest checkpoint, and its next start commits them.
    Orphaned transactions are in no checkpoint, and its next start rolls them back.
    """
    from turnback.operations.transactions import list_transactions

    cli.out.records(_TRANSACTIONS, list_transactions(cli.job(job_name)))


@transactions.command(
    "commit",
    examples=(
        "turnback transactions commit orders",
        "turnback transactions commit orders --script job.py -- --input /data",
    ),
)
@whole_job_argument
@arguments_argument
@script_option
@force_option
@yes_option
def commit(
    cli: Cli, job_name: str, arguments: Sequence[str], script: str | None, force: bool, yes: bool
) -> None:
    """Commit the in-doubt transactions of a dead job, as its next start would.

    Orphaned transactions are rolled back.
    """
    job = cli.job(job_name, whole=True)
    cli.confirm(f"Commit the in-doubt transactions of job {job.name!r}?", yes)
    _settle(cli, job, "commit", script, arguments, force)


@transactions.command("abort", examples=("turnback transactions abort orders --yes",))
@whole_job_argument
@arguments_argument
@script_option
@force_option
@yes_option
def abort(
    cli: Cli, job_name: str, arguments: Sequence[str], script: str | None, force: bool, yes: bool
) -> None:
    """Abort the in-doubt transactions of a dead job.

    The records in these transactions are lost: the job continues after them.
    """
    job = cli.job(job_name, whole=True)
    cli.confirm(
        f"Abort the in-doubt transactions of job {job.name!r}? Their records are permanently "
        "lost, because the job continues after them.",
        yes,
    )
    _settle(cli, job, "abort", script, arguments, force)


def _settle(
    cli: Cli,
    job: Job,
    action: Literal["commit", "abort"],
    script: str | None,
    arguments: Sequence[str],
    force: bool,
) -> None:
    from turnback.launch.preflight import with_program
    from turnback.operations.transactions import Action, Settled, settle

    if script is not None:  # the program itself makes its sinks
        launch = program_of_job(cli, job.name, script, arguments)
        settled = with_program(launch, action, Settled, force=force)
    elif arguments:
        raise ConfigurationError("arguments are passed to a program: specify it with --script")
    else:
        settled = settle(job, Action(action), force=force)
    if cli.json:
        cli.out.document(settled)
        return
    if settled.checkpoint is None:
        cli.out.line("no in-doubt transactions")
    for uid, count in settled.transactions.items():
        cli.out.line(f"{uid}: {count} {'committed' if action == 'commit' else 'aborted'}")


@command("delete", "turnback delete orders", "turnback delete orders --savepoints --yes")
@whole_job_argument
@flag("--savepoints", help="Also delete its savepoints.")
@flag(
    "--force",
    help="Delete it even if its driver cannot be reached or its sinks have in-doubt transactions.",
)
@yes_option
def delete(cli: Cli, job_name: str, savepoints: bool, force: bool, yes: bool) -> None:
    """Permanently delete a job that is not running, with all its checkpoints.

    Keeps its savepoints, which jobs can still start from, unless --savepoints is given. Output of
    sinks stays. Requires the full name or id.
    """
    from turnback.operations.deletion import delete_job, refuse_to_delete

    job = cli.job(job_name, whole=True)
    refuse_to_delete(job, force=force)
    there = sum(row.exists is not False for row in job.savepoints())
    also = f" and {there} savepoints" if savepoints and there else ""
    cli.confirm(f"Permanently delete job {job.name!r} with all its checkpoints{also}?", yes)
    deleted = delete_job(job, cli.jobs, savepoints=savepoints, force=force)
    if cli.json:
        cli.out.document(deleted)
        return
    cli.out.line(
        f"deleted {deleted.directory}: {deleted.files} files, {cli.out.size(deleted.bytes)}"
    )
    for path in deleted.savepoints:
        cli.out.line(f"deleted {path}")
    for path in deleted.kept:
        cli.out.message(f"kept the savepoint {path}")


_COMPACTED: tuple[Column[CompactedTable], ...] = (
    Column("sink", lambda row, out: row.sink),
    Column("files", lambda row, out: row.files_before, right=True),
    Column("now", lambda row, out: row.files_after, right=True),
    Column("joined", lambda row, out: row.joined, right=True),
    Column("size", lambda row, out: out.size(row.bytes), right=True),
    Column("version", lambda row, out: row.version),
    Column("table", lambda row, out: row.table),
)


@command(
    "compact",
    "turnback compact orders",
    "turnback compact orders to-payments --dry-run",
    "turnback compact orders --script job.py -- --input /data",
)
@job_argument
@argument("uid", "[UID]", help="Sink whose table to compact. Default: all tables of the job.")
@arguments_argument
@flag("--dry-run", help="Show what would be compacted, and change nothing.")
@click.option(
    "--script",
    metavar="FILE",
    help="The job's program. Needed if only the program defines the catalog of an Iceberg table.",
)
def compact(
    cli: Cli,
    job_name: str,
    uid: str | None,
    arguments: Sequence[str],
    dry_run: bool,
    script: str | None,
) -> None:
    """Merge small files of the Delta and Iceberg tables that a job writes.

    The job can be running: no row changes, nothing is committed twice, and its own commits
    continue. Old files stay for readers of older versions until you vacuum the table.
    """
    from turnback.launch.preflight import with_program
    from turnback.operations.compaction import CompactedTables, compact

    job = cli.job(job_name)
    if script is not None:
        launch = program_of_job(cli, job.name, script, arguments)
        words = (*(("--dry-run",) if dry_run else ()), *((uid,) if uid is not None else ()))
        done = with_program(launch, "compact", CompactedTables, words=words)
    elif arguments:
        raise ConfigurationError("arguments are passed to a program: specify it with --script")
    else:
        done = compact(
            job,
            uid,
            dry_run=dry_run,
            on_table=lambda name: cli.out.message(f"Reading the table of sink {name!r} ..."),
        )
    if cli.json:
        cli.out.document(done)
        return
    cli.out.records(_COMPACTED, list(done.tables))
    if dry_run:
        cli.out.message("Dry run: nothing was changed. Run again without --dry-run to compact.")


@command(
    "redrive",
    "turnback redrive orders dead-letters/",
    "turnback redrive orders dead-letters/ --operator parsed --dry-run",
    "turnback redrive orders - < letters.json",
)
@whole_job_argument
@argument(
    "places",
    "LETTERS...",
    help="Files, directories or Delta tables, or - for JSON lines from stdin.",
)
@click.option("--operator", metavar="UID", help="Only dead letters of this operator.")
@flag("--dry-run", help="Only count the dead letters.")
@flag("--no-wait", help="Do not wait until a checkpoint of the job includes them.")
@timeout_option
def redrive(
    cli: Cli,
    job_name: str,
    places: Sequence[str],
    operator: str | None,
    dry_run: bool,
    no_wait: bool,
    timeout: str | None,
) -> ExitCode | None:
    """Feed dead letters back to the operators whose functions failed on them.

    Each is redriven exactly once, however often it is submitted. One that fails again becomes a
    dead letter again. A job that is not running processes them when it is started.
    """
    from turnback.operations.dead_letters import Redrive, read_letters

    if no_wait and timeout is not None:
        raise ConfigurationError("--no-wait and --timeout cannot be used together")
    limit_ms = None if timeout is None else parse_duration(timeout, "--timeout")
    job = cli.job(job_name, whole=True)
    work = Redrive(job, read_letters(places, sys.stdin), operator)
    row = work.count() if dry_run else work.give()
    waits = not (dry_run or no_wait or row.done) and job.liveness().takes_requests
    if waits:
        try:
            row = _wait(job, work, limit_ms)
        except KeyboardInterrupt:
            cli.out.message(
                "\nThe dead letters are submitted; the job processes them in the background."
            )
            return ExitCode.INTERRUPTED
    if cli.json:
        cli.out.document(row)
    else:
        _print(cli, row, dry_run=dry_run)
    return ExitCode.FAILED if row.refused else None


def _wait(job: Job, work: Redrive, limit_ms: int | None) -> RedriveRow:
    """Wait until a checkpoint of the job has them, or it ends."""
    clock = SystemClock()
    began = clock.monotonic()
    while not (row := work.look()).done and job.liveness().takes_requests:
        if limit_ms is not None and (clock.monotonic() - began) * 1000 >= limit_ms:
            raise TimedOutError(
                f"job {job.name!r} has not confirmed the dead letters after "
                f"{format_duration(limit_ms)}; they are submitted, and the job continues with "
                "them"
            )
        clock.sleep(_POLL_S)
    return row


def _print(cli: Cli, row: RedriveRow, *, dry_run: bool) -> None:
    will = "would be submitted" if dry_run else "submitted"
    cli.out.line(
        f"{row.letters:,} dead letters: {row.given:,} {will}, {row.before:,} already submitted"
    )
    if row.done and row.given:
        cli.out.line(f"{row.fed:,} redriven by job {row.job!r}")
    elif row.given and not dry_run:
        cli.out.message(f"Job {row.job!r} processes them with its next checkpoint, once it runs.")
    if row.coming:
        cli.out.line(
            f"{row.coming:,} not redriven: the job was reset to a point before them and reads "
            "their elements again"
        )
    for why, count in row.refused.items():
        cli.out.line(f"{count:,} not redriven: {why}", "red")
