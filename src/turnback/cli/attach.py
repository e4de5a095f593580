"""Stays with a job that was started here: shows what it prints, and ends it with Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.tail import Tail
from turnback.core.errors import JobFailedError
from turnback.job.status import JobState

if TYPE_CHECKING:
    from turnback.job.run import RunDirectory, RunEnd


class Attached:
    """The terminal of a job.

    Args:
        cli: Where to print.
        run: The launch.
    """

    def __init__(self, cli: Cli, run: RunDirectory) -> None:
        self._cli = cli
        self._run = run
        # With --json stdout is for the document at the end.
        self._tail = Tail(run.log, sys.stderr if cli.json else sys.stdout)
        self._interrupts = 0

    def follow(self) -> ExitCode | None:
        """Show the job's output until it ends; returns how it ended."""
        from turnback.launch.runs import await_end

        with self._signals():
            end = await_end(self._run, self._tail.show)
        self._tail.show()
        if self._interrupts:
            self._tell()
            return ExitCode.INTERRUPTED
        return self._outcome(end)

    def _outcome(self, end: RunEnd) -> ExitCode | None:
        from turnback.cli.run import failure
        from turnback.launch.runs import Started, why_never_run

        if self._run.running() is None or self._run.error() is not None:
            raise failure(Started(self._run.job(), why_never_run(self._run, end)))
        state = self._tell()
        if state is None:
            raise JobFailedError(f"the job has not ended, but {end.reason}: start it again")
        return ExitCode.FAILED if state is JobState.FAILED else None

    def _tell(self) -> JobState | None:
        from turnback.inspect.jobs import Jobs
        from turnback.launch.runs import final_state

        job, state = self._run.job(), final_state(self._run)
        if job is not None and self._cli.json:
            self._cli.out.document(Jobs(job.root, job.storage_options).get(job.name).summary())
        elif job is not None and state is not None:
            self._cli.out.say(f"job {job.name!r} is {state.value}")
        return state

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Cancel the job when somebody wants this program to end; kill it the second time.

        What was ignored from the beginning stays so: `nohup` is meant to outlive the terminal.
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
            self._cli.out.say("cancelling the job; once more to kill it")
            cancel(self._run)
        else:
            kill(self._run)
