"""`turnback list`, `status`, `logs`, `checkpoints` and `savepoints`: what jobs do and have done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from turnback.cli.command import argument, command, flag, number_option
from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import Cell, Column, Output, Value
from turnback.cli.parameters import application_option, complete_job, job_argument
from turnback.cli.restoring import restore_text
from turnback.core.units import format_age
from turnback.errors import ConfigurationError, NotFoundError, StorageError

if TYPE_CHECKING:
    from turnback.job.alerts import Hooks, JobWatch
    from turnback.job.catalog import SavepointReplay
    from turnback.job.liveness import Process
    from turnback.job.status import Lag, OperatorLoad
    from turnback.views import model
    from turnback.views.job import Job


def short_lag(lag: Lag | None, out: Output) -> str | None:
    """How far behind, as a table has room for it: `1,200 (40 s)`."""
    if lag is None or (lag.records is None and lag.seconds is None):
        return None
    age = None if lag.seconds is None else format_age(round(lag.seconds * 1000))
    if lag.records is None:
        return age
    return f"{out.number(lag.records)} ({age})" if lag.records and age else out.number(lag.records)


def lag_text(lag: Lag | None, out: Output) -> str | None:
    """How far behind, and when that will be over."""
    if lag is None:
        return None
    if lag.records == 0:
        return "none"
    parts = [] if lag.records is None else [f"{out.number(lag.records)} records"]
    if lag.seconds is not None:
        parts.append(f"the oldest is {format_age(round(lag.seconds * 1000))} old")
    if lag.catch_up_s is not None:
        parts.append(f"caught up in about {format_age(round(lag.catch_up_s * 1000))} at this rate")
    elif lag.change_per_s is not None:
        parts.append("not shrinking")
    return ", ".join(parts) or "unknown"


def percent(share: float | None) -> str | None:
    """A share from 0 to 1 as `62%`."""
    return None if share is None else f"{share:.0%}"


def skew_text(load: OperatorLoad | None) -> str | None:
    """How unevenly work is divided: `4.1 (task 3)`."""
    if load is None or load.skew is None:
        return None
    return f"{load.skew:.1f} (task {load.skewed})"


def busy_text(detail: model.JobDetail) -> str | None:
    """For how much of the time the job works, and where."""
    if detail.busy is None:
        return None
    text = f"{detail.busy:.0%} of the last minute"
    loads = {node.uid: node.load for node in detail.operators}
    load = loads.get(detail.bottleneck or "")
    return text if load is None else f"{text}, busiest: {detail.bottleneck} ({load.busiest:.0%})"


_TROUBLE = frozenset({"FAILED", "LOST", "STALLED", "UNREADABLE"})
_COLUMNS: tuple[Column[model.JobSummary], ...] = (
    Column("name", lambda job, out: job.name),
    Column("state", lambda job, out: out.state(job.state)),
    Column("restarts", lambda job, out: job.recent_restarts, right=True),
    Column("problem", lambda job, out: job.problem or job.cause),
)


@command(
    "watch",
    "turnback watch",
    "turnback watch --once --json",
    "turnback watch -D alerts.webhook=https://example.com/hook --test",
)
@argument("job_name", "[JOB]", help="Only this job.", complete=complete_job)
@flag(
    "--once", help="Check once, and exit with code 10 if something is wrong. For cron and timers."
)
@flag("--test", "is_test", help="Call the hooks with an event named test, and exit.")
@number_option("--interval", least=1, default=10, help="Seconds between checks. Default: 10.")
def watch(
    cli: Cli, job_name: str | None, once: bool, is_test: bool, interval: int
) -> ExitCode | None:
    """Watch jobs, and call alerts.command and alerts.webhook when something is wrong.

    Events are: a job fails, keeps restarting, is lost, stalls, or recovers. Each event is reported
    once, however many watchers run: a job's supervisor is one too, but a LOST job has no
    supervisor. Prints events until Ctrl-C. With --once, prints the jobs that have a problem.
    """
    from turnback.config.watchdog import AlertSettings
    from turnback.job.alerts import Hooks, check_command

    settings = AlertSettings.from_configuration(cli.configuration.raw)
    check_command(settings)
    hooks = Hooks(settings)
    if is_test:
        return _test(cli, hooks)
    if once:
        return _look_once(cli, _jobs(cli, job_name), hooks)
    if cli.json:
        raise ConfigurationError("--json prints a single document: use it with --once")
    if not hooks.enabled:
        cli.out.message(
            "note: neither alerts.command nor alerts.webhook is set, so events are only printed "
            "here",
            "yellow",
        )
    with suppress(KeyboardInterrupt):
        _watch(cli, job_name, hooks, interval)
    return None


def _jobs(cli: Cli, job_name: str | None) -> list[Job]:
    return cli.jobs.all() if job_name is None else [cli.job(job_name)]


def _test(cli: Cli, hooks: Hooks) -> ExitCode | None:
    import msgspec

    from turnback.job.alerts import example_alert

    if not hooks.enabled:
        raise ConfigurationError(
            "nothing to test: set alerts.command or alerts.webhook in turnback.yaml or with -D"
        )
    alert = example_alert(cli.root)
    problems = hooks.call(alert.event, alert.job, alert.text, msgspec.json.encode(alert))
    if cli.json:
        cli.out.document({"event": alert, "problems": problems})
    for problem in () if cli.json else problems or ["all hooks were called"]:
        cli.out.line(problem, "red" if problems else "green")
    return ExitCode.FAILED if problems else None


def _look_once(cli: Cli, jobs: list[Job], hooks: Hooks) -> ExitCode | None:
    from turnback.job.alerts import JobWatch

    if hooks.enabled:
        for job in jobs:
            JobWatch(job.directory, hooks).look(once=True)
    summaries = [job.summary() for job in jobs]
    trouble = [job for job in summaries if job.state in _TROUBLE or job.problem is not None]
    cli.out.records(_COLUMNS, trouble, "No problems.")
    return ExitCode.PROBLEM if trouble else None


def _watch(cli: Cli, job_name: str | None, hooks: Hooks, interval: int) -> None:
    from turnback.job.alerts import AlertLog, JobWatch, RememberedAlerts

    watches: dict[str, JobWatch] = {}
    is_failing = False
    while True:
        try:
            jobs = _jobs(cli, job_name)
            is_failing = False
        except StorageError as error:
            jobs = []
            if not is_failing:
                cli.out.message(f"cannot read the jobs, retrying: {error}", "red")
            is_failing = True
        for job in jobs:
            if job.name not in watches:
                alerts = AlertLog(job.directory.storage) if hooks.enabled else RememberedAlerts()
                watches[job.name] = JobWatch(job.directory, hooks, alerts=alerts)
            _print_event(cli, watches[job.name])
        time.sleep(interval)


def _print_event(cli: Cli, watched: JobWatch) -> None:
    alert = watched.look()
    if alert is not None:
        cli.out.line(f"{cli.out.time(alert.at_ms)}  {alert.event}  {alert.text}")


# -- list

_ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})
_ACTIVE = frozenset({"RUNNING", "STALLED"})
_JOBS: tuple[Column[model.JobSummary], ...] = (
    Column("name", lambda job, out: job.name),
    Column("state", lambda job, out: out.state(job.state)),
    Column("attempt", lambda job, out: job.attempt, right=True, extra=True),
    Column("checkpoint", lambda job, out: job.checkpoint, right=True),
    Column("restarts", lambda job, out: job.restarts, right=True, extra=True),
    Column("records/s", lambda job, out: out.number(_rate(job)), right=True),
    Column("lag", lambda job, out: short_lag(job.lag, out), right=True),
    Column("started", lambda job, out: out.time(job.started_ms or job.created_ms)),
    Column("id", lambda job, out: out.id(job.job_id), extra=True),
    Column("problem", lambda job, out: job.problem or job.cause),
)


@command(
    "list", "turnback list", "turnback list -a --json", "turnback --root s3://bucket/jobs list"
)
@flag("-r", "--running", help="Only running jobs.")
@flag("-a", "--all", "every", help="Also jobs that have ended.")
@application_option
def list_jobs(cli: Cli, running: bool, every: bool, application: str | None) -> None:
    """List jobs.

    By default, jobs that have not ended: running, stalled, restarting, lost and unreadable ones.
    """
    if running and every:
        raise ConfigurationError("-r and -a cannot be used together")
    missing = _missing_root(cli)
    if missing and cli.is_root_given:
        raise NotFoundError(missing)
    jobs = cli.jobs.list()
    if application is not None:
        jobs = [job for job in jobs if job.application == application]
    listed = [job for job in jobs if every or _is_listed(job, running)]
    cli.out.records(_JOBS, listed)
    others = len(jobs) - len(listed)
    if not jobs and not cli.json:
        of = "" if application is None else f" of {application}"
        none = missing or f"There are no jobs{of} in {cli.root}."
        cli.out.message(f"{none} To look in another directory, use --root DIR.")
    elif others:
        text = "1 more job is" if others == 1 else f"{others} more jobs are"
        cli.out.hint(f"{text} in {cli.root}: turnback list -a")


def _missing_root(cli: Cli) -> str | None:
    """Return that there is no such directory; None if there is, or if it is no directory."""
    if "://" in cli.root or Path(cli.root).exists():
        return None
    return f"{cli.root} does not exist: no job has run there yet."


def _is_listed(job: model.JobSummary, running: bool) -> bool:
    return job.state in _ACTIVE if running else job.state not in _ENDED


def _rate(job: model.JobSummary) -> float | None:
    running = job.state in _ACTIVE and job.records_per_s is not None
    return round(job.records_per_s or 0, 1) if running else None


# -- status

_OPERATORS: tuple[Column[model.OperatorNode], ...] = (
    Column("uid", lambda node, out: node.uid),
    Column("kind", lambda node, out: node.kind),
    Column("parallelism", lambda node, out: node.parallelism, right=True),
    Column("in", lambda node, out: out.number(node.records_in), right=True),
    Column("out", lambda node, out: out.number(node.records_out), right=True),
    Column("left out", lambda node, out: out.number(node.left_out or None), right=True, extra=True),
    Column("malformed", lambda node, out: out.number(node.malformed or None), right=True),
    Column("state", lambda node, out: out.size(node.state_bytes), right=True),
    Column("busy", lambda node, out: percent(node.load.busiest if node.load else None), right=True),
    Column("skew", lambda node, out: skew_text(node.load), right=True, extra=True),
    Column("watermark", lambda node, out: out.time(node.watermark_ms)),
    Column("lag", lambda node, out: short_lag(node.lag, out), right=True),
    Column("inputs", lambda node, out: ",".join(node.inputs)),
)
_REQUESTS: tuple[Column[model.RequestRow], ...] = (
    Column("id", lambda row, out: row.id),
    Column("kind", lambda row, out: row.kind),
    Column("state", lambda row, out: out.state(row.state)),
    Column("submitted", lambda row, out: out.time(row.created_ms)),
    Column("parts", lambda row, out: f"{row.done}/{row.total}" if row.total else None, right=True),
    Column("error", lambda row, out: row.error),
)


@command("status", "turnback status orders", "turnback status ord --json")
@job_argument
def status(cli: Cli, job_name: str) -> None:
    """Show the status of a job.

    Shows its state, driver, newest checkpoint, operators and current requests. Also works for jobs
    that have ended.
    """
    detail = cli.job(job_name).detail()
    if cli.json:
        cli.out.document(detail)
        return
    cli.out.fields(_job_facts(cli.out, detail))
    cli.out.section("Operators", _OPERATORS, detail.operators)
    cli.out.section("Requests", _REQUESTS, detail.requests)
    for warning in detail.warnings:
        cli.out.message(f"warning: {warning}", "yellow")


def _job_facts(out: Output, detail: model.JobDetail) -> list[tuple[str, Value]]:
    job = detail.summary
    versions = ", ".join(f"{name} {version}" for name, version in detail.versions.items())
    rate = _rate(job)
    speed = "" if rate is None else f", {rate:.1f} a second"
    return [
        ("name", job.name),
        ("id", job.job_id),
        ("state", out.state(job.state)),
        ("cause", job.cause),
        ("problem", job.problem),
        ("created", out.time(job.created_ms)),
        ("started", out.time(job.started_ms)),
        ("last heartbeat", out.time(job.updated_ms)),
        ("attempt", job.attempt),
        ("restarts", job.restarts),
        ("restoring", restore_text(job.restore, out)),
        ("epoch", job.epoch),
        ("checkpoint", None if job.checkpoint is None else f"chk-{job.checkpoint}"),
        ("records", job.attempt and f"{out.number(job.records_in)} read{speed}"),
        ("lag", lag_text(job.lag, out)),
        ("busy", busy_text(detail)),
        ("key groups", detail.max_parallelism),
        ("driver", _process(job.driver)),
        ("supervisor", _process(job.supervisor)),
        ("script", " ".join(detail.script) or None),
        ("log", job.log),
        ("application", job.application),
        ("versions", versions or None),
        ("directory", job.directory),
    ]


def _process(process: Process | None) -> str | None:
    if process is None:
        return None
    alive = {True: "alive", False: "gone", None: "elsewhere"}[process.alive]
    return f"pid {process.pid} on {process.host} ({alive})"


# -- logs

_POLL_S = 0.3


@command("logs", "turnback logs clicks", "turnback logs -f clicks", "turnback logs -l 20 clicks")
@job_argument
@flag("-f", "--follow", help="Keep printing as the job writes more.")
@number_option(
    "-l", "--lines", least=0, default=200, help="Number of lines to start with. Default: 200."
)
def logs(cli: Cli, job_name: str, follow: bool, lines: int) -> None:
    """Show the log of a job's driver.

    The log is kept on the machine where the job was started with turnback run, and continues when
    the driver is restarted.
    """
    from turnback.launch.runs import last_lines

    job = cli.job(job_name)
    path = _log_path(job.summary())
    if cli.json:
        text, _ = last_lines(path, lines)
        cli.out.document({"job": job.name, "path": str(path), "lines": text.splitlines()})
    else:
        print_log(path, lines, follow=follow)


def print_log(path: Path, lines: int, *, follow: bool) -> None:
    """Print the end of a file; with `follow`, also what is added, until Ctrl-C."""
    from turnback.launch.runs import LogFollower, last_lines

    text, end = last_lines(path, lines)
    sys.stdout.write(text)
    sys.stdout.flush()
    follower = LogFollower(path, sys.stdout, end)
    with suppress(KeyboardInterrupt):
        while follow:
            follower.print_new()
            time.sleep(_POLL_S)


def _log_path(summary: model.JobSummary) -> Path:
    if summary.log is None:
        where = "wherever it was started"
        if (summary.application or "").startswith("application_"):
            where = f"the logs of YARN: yarn logs -applicationId {summary.application}"
        raise NotFoundError(
            f"job {summary.name!r} has no log known to Turnback: it was not started with "
            f"turnback run, so its output went to {where}"
        )
    path = Path(summary.log)
    if not path.is_file():
        where = summary.driver.host if summary.driver is not None else "another machine"
        raise NotFoundError(
            f"the log of job {summary.name!r} is {summary.log} on {where}: it is on another "
            "machine or was removed"
        )
    return path


# -- checkpoints

_CHECKPOINTS: tuple[Column[model.CheckpointRow], ...] = (
    Column("checkpoint", lambda row, out: None if row.number is None else f"chk-{row.number}"),
    Column("status", lambda row, out: out.state(row.status.value)),
    Column("attempt", lambda row, out: row.attempt, right=True, extra=True),
    Column("epoch", lambda row, out: row.epoch, right=True, extra=True),
    Column("trigger", lambda row, out: row.trigger, extra=True),
    Column("triggered", lambda row, out: out.time(row.triggered_ms)),
    Column("duration", lambda row, out: out.duration(row.duration_ms), right=True),
    Column("sync", lambda row, out: out.duration(row.sync_ms), right=True, extra=True),
    Column("async", lambda row, out: out.duration(row.async_ms), right=True, extra=True),
    Column("delta", lambda row, out: out.size(row.delta_bytes), right=True),
    Column("full", lambda row, out: out.size(row.full_bytes), right=True),
    Column("acks", lambda r, _: r.tasks and f"{r.acknowledged}/{r.tasks}", right=True, extra=True),
    Column("note", lambda row, out: row.reason or ("retained" if row.path else None)),
)
_QUANTILES = ("min", "p50", "p90", "p99", "max")


@command(
    "checkpoints",
    "turnback checkpoints orders",
    "turnback checkpoints orders --retained --paths -n 1",
)
@job_argument
@number_option("-n", "--limit", least=1, help="Show only the newest N.")
@flag("--retained", help="Only checkpoints that a job can start from.")
@flag("--paths", help="Print only the paths of the files.")
def checkpoints(cli: Cli, job_name: str, limit: int | None, retained: bool, paths: bool) -> None:
    """Show the checkpoints of a job, newest first.

    Shows when and why each was taken, how long it took, and its size: the files it added, and all
    files it needs. On a terminal, shows a summary and the newest 20, unless --limit is given.
    """
    history = cli.job(job_name).checkpoints()
    limit = limit or (20 if cli.out.terminal else None)
    rows = [r for r in history.rows if not (retained or paths) or r.path is not None][:limit]
    if cli.json:
        import msgspec

        cli.out.document(msgspec.structs.replace(history, rows=tuple(rows)))
    elif paths:
        for row in rows:
            cli.out.line(str(row.path))
    else:
        cli.out.records(_CHECKPOINTS, rows)
        if cli.out.terminal:
            _print_checkpoint_summary(cli.out, history)


def _remembered(out: Output, history: model.CheckpointHistory) -> str:
    newest = out.number(len(history.rows))
    return f"; of the newest {newest}:" if history.forgotten else ""


def _print_checkpoint_summary(out: Output, history: model.CheckpointHistory) -> None:
    out.head(
        f"{out.number(history.completed)} completed, {out.number(history.failed)} failed, "
        f"{history.in_progress} in progress, {history.restored} restored"
        f"{_remembered(out, history)}"
    )
    measured: tuple[tuple[str, model.Distribution | None, Callable[[int], str | None]], ...] = (
        ("duration", history.duration_ms, out.duration),
        ("sync", history.sync_ms, out.duration),
        ("async", history.async_ms, out.duration),
        ("delta", history.delta_bytes, out.size),
        ("full", history.full_bytes, out.size),
    )
    table: list[list[Value]] = [
        [name, *(text(round(getattr(numbers, quantile))) for quantile in _QUANTILES)]
        for name, numbers, text in measured
        if numbers is not None
    ]
    if table:
        out.table(("", *(Column[None](name, right=True) for name in _QUANTILES)), table)


# -- savepoints


def _replayable(replay: SavepointReplay | None, out: Output) -> Value:
    """Whether what comes after a savepoint can be read again, and until about when."""
    if replay is None or (replay.until_ms is None and not replay.gone):
        return None
    if replay.gone:
        return Cell("no longer", "red")
    at = out.time(replay.until_ms)
    soon = replay.until_ms is not None and replay.until_ms < time.time() * 1000 + _SOON_MS
    return Cell(f"until about {at}", "yellow" if soon else "")


_SOON_MS = 7 * 86_400_000
_EXISTS = {True: "yes", False: "gone", None: "unknown"}
_SAVEPOINTS: tuple[Column[model.SavepointRow], ...] = (
    Column("job", lambda row, out: row.job),
    Column("id", lambda row, out: row.id),
    Column("label", lambda row, out: row.label),
    Column("taken", lambda row, out: out.time(row.created_ms)),
    Column("checkpoint", lambda row, out: f"chk-{row.checkpoint}", right=True, extra=True),
    Column("size", lambda row, out: out.size(row.bytes), right=True),
    Column("there", lambda row, out: _EXISTS[row.exists], extra=True),
    Column("replayable", lambda row, out: _replayable(row.replay, out)),
    Column("path", lambda row, out: row.path),
    Column("note", lambda row, out: row.note, extra=True),
)


@command("savepoints", "turnback savepoints", "turnback savepoints orders --restore")
@argument("job_name", "[JOB]", help="Only savepoints of this job.", complete=complete_job)
@flag("--restore", help="Print the commands that start a job from each savepoint.")
def savepoints(cli: Cli, job_name: str | None, restore: bool) -> None:
    """List savepoints, newest first.

    Lists savepoints of the jobs in the root, wherever they are stored. REPLAYABLE is the
    approximate time until which the sources keep all records after a savepoint, as far as the
    driver could find out.
    """
    rows = cli.jobs.savepoints() if job_name is None else cli.job(job_name).savepoints()
    if restore and not cli.json:
        for row in rows:
            cli.out.line(row.restore)
            if row.script_changed:
                cli.out.message(
                    f"{row.job}@{row.label or row.id}: the script has changed since; to see the "
                    f"old one: turnback inspect {row.job}@{row.label or row.id} --script"
                )
    else:
        cli.out.records(_SAVEPOINTS, rows, "There are no savepoints.")
