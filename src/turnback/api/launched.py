"""What Turnback has to say of a job, as lines for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from types import TracebackType
from typing import Any, TextIO

from turnback.core.errors import ConfigurationError
from turnback.job.run import (
    Launch,
    LaunchMode,
    ProcessId,
    RunDirectory,
    RunError,
    current_run,
)
from turnback.program.plan import Plan
from turnback.snapshot.claims import Allowed, Renames
from turnback.spark.job import ClaimMode, JobSpec

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, thread, message, and error if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(level: str, format: str, stream: TextIO | None = None) -> None:
    """Print what Turnback logs, in this process.

    The program's own logging is left alone: this is about the logger "turnback" only, and is done
    once.

    Args:
        level: The least level that is printed.
        format: "text" or "json".
        stream: Where to; by default stderr.
    """
    logger = logging.getLogger("turnback")
    logger.setLevel(level.upper())
    for handler in logger.handlers:
        if isinstance(handler, _Handler):
            logger.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else logging.Formatter(_TEXT))
    logger.addHandler(handler)
    logger.propagate = False


class _Handler(logging.StreamHandler[TextIO]):
    """Told apart from handlers that the program has set up."""


@dataclass(frozen=True)
class Start:
    """What a program says of how its job starts; see `execute_async`."""

    name: str
    start_from: str | int | None
    fresh: bool
    allow_non_restored_state: Allowed
    renames: Renames
    fork: bool
    allow_pickled_state: bool
    take_over_sinks: bool
    claim_mode: ClaimMode


class ProgramFound(BaseException):
    """Ends a program that was started to learn what it is.

    Attributes:
        plan: The program.
        spec: How it would be run.
    """

    def __init__(self, plan: Plan, spec: JobSpec) -> None:
        super().__init__(f"the program of job {spec.name!r}")
        self.plan = plan
        self.spec = spec


class Launched:
    """How this process was launched.

    Args:
        launch: What the command line says.
        run: Where the driver meets its supervisor.
    """

    def __init__(self, launch: Launch, run: RunDirectory) -> None:
        self.launch = launch
        self.run = run
        self._started: str | None = None

    @property
    def resumed(self) -> bool:
        """Whether a driver of this launch has got the job to run before, and died."""
        return self.run.running() is not None

    def override(self, start: Start) -> Start:
        """Let the command line win over the program.

        A driver that is started again goes on with the job. Where that began is said and done; so
        it is when the program runs its job a second time.

        Raises:
            ConfigurationError: The program runs another job, and it is not said which is meant.
        """
        launch, again = self.launch, self._started is not None
        if self._started not in (None, start.name):
            raise ConfigurationError(
                f"this program runs several jobs, {self._started!r} and {start.name!r}: with "
                "`turnback run` it can be one. Start each with a program of its own"
            )
        self._started = start.name
        start = replace(
            start,
            name=launch.name or start.name,
            allow_non_restored_state=launch.allow_non_restored_state
            or start.allow_non_restored_state,
            renames={**start.renames, **dict[Any, Any](launch.renames)},
            fork=launch.fork or start.fork,
            allow_pickled_state=launch.allow_pickled_state or start.allow_pickled_state,
            take_over_sinks=launch.take_over_sinks or start.take_over_sinks,
            claim_mode=ClaimMode(launch.claim_mode) if launch.claim_mode else start.claim_mode,
        )
        if again:
            return replace(start, take_over_sinks=False)
        if launch.mode is LaunchMode.RUN and self.resumed:
            return replace(start, start_from=None, fresh=False, take_over_sinks=False)
        if launch.start_from is not None:
            return replace(start, start_from=launch.start_from, fresh=False)
        return replace(start, start_from=None, fresh=True) if launch.fresh else start

    def found(self, plan: Plan, spec: JobSpec) -> None:
        """End the program here, if it was started to learn what it is."""
        if self.launch.mode is LaunchMode.PLAN:
            raise ProgramFound(plan, spec)


@cache
def launched() -> Launched | None:
    """How this process was launched, `None` if it was started by other means.

    The first call makes it a driver of the launch: whatever ends it is told to whoever launched.
    """
    run = current_run()
    if run is None:
        return None
    launch = run.launch()
    if launch.mode is LaunchMode.RUN:
        run.set_driver(ProcessId.current())
        _tell_why(run)
    return Launched(launch, run)


def _tell_why(run: RunDirectory) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        run.set_error(RunError.of(error))
        before(kind, error, trace)

    sys.excepthook = hook
