"""`turnback watch`: look after all jobs of a root, and tell when something is wrong with one."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from turnback.cli.command import argument, command, flag, number_option
from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import Column
from turnback.cli.parameters import complete_job
from turnback.core.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from turnback.job.alerts import JobWatch
    from turnback.job.hooks import Hooks
    from turnback.views import model
    from turnback.views.job import Job

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
@flag("--once", help="Look once, and end with code 10 if something is wrong; for cron and timers.")
@flag("--test", "is_test", help="Call the hooks with an event of the name test, and end.")
@number_option("--interval", least=1, default=10, help="Seconds between two looks; 10 if left out.")
def watch(
    cli: Cli, job_name: str | None, once: bool, is_test: bool, interval: int
) -> ExitCode | None:
    """Watch jobs, and call alerts.command and alerts.webhook when something is wrong.

    That is when a job fails, restarts again and again, is lost or stalled, and when it has
    recovered. Each event is told once, however many watch: the supervisor of a job does so as well,
    but a job that is LOST has none. Prints what happens until Ctrl-C. With --once it prints the
    jobs that are in trouble.
    """
    from turnback.config.watchdog import AlertSettings
    from turnback.job.hooks import Hooks, check_command

    settings = AlertSettings.from_configuration(cli.configuration.raw)
    check_command(settings)
    hooks = Hooks(settings)
    if is_test:
        return _test(cli, hooks)
    if once:
        return _look_once(cli, _jobs(cli, job_name), hooks)
    if cli.json:
        raise ConfigurationError("--json prints one document: give --once as well")
    if not hooks.enabled:
        cli.out.message(
            "note: neither alerts.command nor alerts.webhook is set, so what happens is only "
            "printed here",
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
            "there is nothing to test: set alerts.command or alerts.webhook, in turnback.yaml or "
            "with -D"
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
    cli.out.records(_COLUMNS, trouble, "All is well.")
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
                cli.out.message(f"the jobs cannot be read, trying again: {error}", "red")
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
