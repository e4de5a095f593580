"""Waiting until a job has done what was asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode, RequestFailedError, TimedOutError
from turnback.cli.text import size
from turnback.cli.verb import flag
from turnback.core.clock import Clock, SystemClock
from turnback.core.duration import format_duration
from turnback.inspect.model import RequestRow

if TYPE_CHECKING:
    from turnback.inspect.job import Job

NoWaitOption = Annotated[bool, flag("--no-wait", help="Ask, and do not wait until it is done.")]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout", metavar="TIME", help="Wait no longer than this, such as '30 s'; else forever."
    ),
]

_ENDED = frozenset({"COMPLETED", "FAILED"})
_GONE = frozenset({"LOST", "FAILED", "FINISHED", "CANCELED"})
_POLL_S = 0.2
_LIFE_S = 2.0
_LAST_WORDS_S = 30.0
"""How long a driver may take to answer after it has said that its job has ended."""


class Waiting:
    """Waits for a request.

    Args:
        cli: What the command line says.
        job: The job that was asked.
        clock: Where time comes from.
    """

    def __init__(self, cli: Cli, job: Job, clock: Clock | None = None) -> None:
        self._cli = cli
        self._job = job
        self._clock = clock or SystemClock()
        self._ended: float | None = None

    def until_done(self, asked: RequestRow, limit_ms: int | None) -> RequestRow:
        """Wait, with a progress bar if a person watches.

        Args:
            asked: The request.
            limit_ms: How long to wait at most.

        Raises:
            RequestFailedError: It failed, or the driver died before it had an answer.
            TimedOutError: It took longer than the timeout; the request goes on.
        """
        began = looked = self._clock.monotonic()
        row = asked
        with _progress(self._cli, asked) as show:
            while row.state not in _ENDED:
                now = self._clock.monotonic()
                if limit_ms is not None and (now - began) * 1000 >= limit_ms:
                    raise TimedOutError(
                        f"{_name(asked)} of job {self._job.name!r} is not done after "
                        f"{format_duration(limit_ms)}; it goes on. {self._look()}"
                    )
                if now - looked >= _LIFE_S:
                    looked = now
                    self._require_life(asked)
                self._clock.sleep(_POLL_S)
                row = self._job.request(asked.id)
                show(row)
        if row.state == "FAILED":
            raise RequestFailedError(
                f"{_name(row)} of job {self._job.name!r} failed: {row.error or 'no reason given'}"
            )
        return row

    def interrupted(self, asked: RequestRow) -> ExitCode:
        """Say what goes on after Ctrl-C."""
        self._cli.out.say(f"\n{_name(asked)} goes on without you watching. {self._look()}")
        return ExitCode.INTERRUPTED

    def _require_life(self, asked: RequestRow) -> None:
        summary = self._job.summary()
        state, driver = summary.state, summary.driver
        if state not in _GONE or self._job.request(asked.id).state in _ENDED:
            return
        if state != "LOST" and driver is not None and driver.alive is not False:
            # The job has ended, its driver perhaps not: answering is the last that it does.
            now = self._clock.monotonic()
            self._ended = now if self._ended is None else self._ended
            if now - self._ended < _LAST_WORDS_S:
                return
        raise RequestFailedError(
            f"the driver of job {self._job.name!r} is gone ({state}) and has left {_name(asked)} "
            f"unanswered. {self._look()}"
        )

    def _look(self) -> str:
        return f"See: turnback status {self._job.name}"


@contextmanager
def _progress(cli: Cli, asked: RequestRow) -> Iterator[Callable[[RequestRow], None]]:
    """A bar on stderr if that is a terminal; the function it gives moves it."""
    console = cli.out.stderr()
    if not console.is_terminal or cli.json:
        yield lambda row: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[far]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(_name(asked), total=None, far="")

        def show(row: RequestRow) -> None:
            far = f"{row.done}/{row.total} parts, {size(row.bytes)}" if row.total else ""
            bar.update(task, total=row.total or None, completed=row.done, far=far)

        yield show


def _name(row: RequestRow) -> str:
    what = f"{row.kind} with savepoint" if row.savepoint and row.kind != "savepoint" else row.kind
    return f"the {what}"
