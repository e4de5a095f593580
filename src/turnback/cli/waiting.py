"""Waiting until a job has done what it was asked to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnback.cli.context import Cli
from turnback.cli.exit import RequestFailedError, TimedOutError
from turnback.core.units import Clock, SystemClock, format_duration, format_size

if TYPE_CHECKING:
    from turnback.inspect.job import Job
    from turnback.inspect.model import RequestRow

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
