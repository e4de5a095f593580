"""How this process was started: the options of `turnback run`, and where its log goes."""

from __future__ import annotations

import builtins
import json
import logging
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import count
from pathlib import Path
from sysconfig import get_path
from traceback import FrameSummary, StackSummary, TracebackException
from types import TracebackType
from typing import Any, TextIO

from turnback.core.errors import ConfigurationError
from turnback.core.masking import mask_text
from turnback.driver.job import ClaimMode, JobSpec
from turnback.job.run import Launch, LaunchMode, ProcessId, RunDirectory, RunError, current_run
from turnback.job.started import StartedProgram
from turnback.plan.plan import Plan

_PACKAGE = str(Path(__file__).parents[1]) + "/"
_BELOW = re.compile(re.escape(get_path("stdlib")) + r"/(?!site-packages/)|.*/(py4j|pyspark)/")
"""Files of Python's own library, and of Spark."""
_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_COLLECTING: defaultdict[tuple[str, str], count[int]] = defaultdict(lambda: count(1))
"""Numbers for jobs that only hand out their elements, by root and name."""


class TextFormatter(logging.Formatter):
    """A line of text, with stars in place of secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        return mask_text(super().format(record))


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
            "message": mask_text(record.getMessage()),
        }
        if record.exc_info:
            entry["error"] = mask_text(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(level: str, format: str, stream: TextIO | None = None) -> None:
    """Print what Turnback logs from a level on, as "text" or "json", by default to stderr.

    The program's own logging is left alone: this is about the logger "turnback" only.
    """
    logger = logging.getLogger("turnback")
    logger.setLevel(level.upper())
    for handler in logger.handlers:
        if isinstance(handler, _Handler):
            logger.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter(_TEXT))
    logger.addHandler(handler)
    logger.propagate = False


class _Handler(logging.StreamHandler[TextIO]):
    """Has a type of its own, so that handlers of the program's are not taken for it."""


class ProgramPlanned(BaseException):
    """Ends a program that was started to learn what it is, and how it would be run."""

    def __init__(self, plan: Plan, spec: JobSpec) -> None:
        super().__init__(f"the program of job {spec.name!r}")
        self.plan = plan
        self.spec = spec


class Launched:
    """How this process was launched: by which command line, under which supervisor."""

    def __init__(self, launch: Launch, run: RunDirectory) -> None:
        self.launch = launch
        self.run = run
        self._started: JobSpec | None = None

    def override(self, spec: JobSpec) -> JobSpec:
        """Let the command line win over the program.

        A driver that was started again after a crash resumes its job, wherever that began; one that
        only hands out its elements begins anew, as what it gave out is gone. When the program runs
        its job a second time, the program alone decides where that starts.

        Raises:
            ConfigurationError: The program runs another job: it is not clear which is meant.
        """
        launch = self.launch
        before = self._started
        if before and before.name != spec.name and not (before.anew and spec.anew):
            raise ConfigurationError(
                f"this program runs several jobs, {before.name!r} and {spec.name!r}: with "
                "`turnback run` it can be one. Start each with a program of its own"
            )
        self._started = spec
        resumed = self.run.running() is not None  # a driver of this launch ran the job, and died
        spec = replace(
            spec,
            name=spec.name if spec.anew else launch.name or spec.name,
            allow_non_restored_state=launch.allow_non_restored_state
            or spec.allow_non_restored_state,
            renames={**spec.renames, **dict[Any, Any](launch.renames)},
            fork=launch.fork or spec.fork,
            allow_pickled_state=launch.allow_pickled_state or spec.allow_pickled_state,
            take_over_sinks=launch.take_over_sinks or spec.take_over_sinks,
            claim_mode=ClaimMode(launch.claim_mode) if launch.claim_mode else spec.claim_mode,
            run=self.run,
            resumed=resumed,
            script=(launch.script, *launch.arguments),
            started=StartedProgram.of_launch(launch, spec.root),
        )
        if before:
            return replace(spec, take_over_sinks=False)
        if launch.mode is LaunchMode.RUN and resumed:
            spec = replace(spec, take_over_sinks=False)
            if not spec.anew:
                return replace(spec, start_from=None, fresh=False)
        if launch.start_from is not None:
            return replace(spec, start_from=launch.start_from, fresh=False)
        return replace(spec, start_from=None, fresh=True) if launch.fresh else spec


@cache
def launched() -> Launched | None:
    """How this process was launched, `None` if it was started by other means.

    The first call makes it a driver of the launch: an error that ends it is recorded in the run
    directory.
    """
    run = current_run()
    if run is None:
        return None
    launch = run.launch()
    if launch.mode is LaunchMode.RUN:
        run.set_driver(ProcessId.current())
        _record_crash(run)
    return Launched(launch, run)


def program_name(launched: Launched | None) -> str:
    """Return the name of the script that this process runs, as the name of its job.

    Raises:
        ConfigurationError: It runs none: it is a notebook, a shell, or ``python -c``.
    """
    if launched is not None:
        return launched.launch.name or Path(launched.launch.script).stem
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    module = getattr(main, "__spec__", None)
    if script is None or hasattr(builtins, "get_ipython"):
        raise ConfigurationError(
            "the job needs a name, by which it is found again: execute('my-job'). Only a script "
            "gives its own name to its job"
        )
    if module is not None:  # python -m package.module, or the package itself
        return str(module.name).removesuffix(".__main__").rpartition(".")[2]
    return Path(script).stem


def collecting_name(launched: Launched | None, root: str) -> str:
    """Return a name of its own for a job that only hands out what it collects.

    The first of a program below a root has a plain one, the others are numbered: the next run of
    the program gives each the same name again.
    """
    try:
        name = program_name(launched)
        if launched is None or not launched.launch.name:
            name = f"{name}-collect"
    except ConfigurationError:  # a notebook or a shell
        name = "collect"
    number = next(_COLLECTING[root, name])
    return name if number == 1 else f"{name}-{number}"


def error_text(error: BaseException) -> str:
    """An error with its traceback, without the frames of Turnback itself and what runs scripts."""
    summary = TracebackException.from_exception(error)
    parts: list[TracebackException | None] = [summary]
    while parts:
        part = parts.pop()
        if part is not None:
            part.stack = StackSummary.from_list(_of_users(part.stack))
            parts += [part.__cause__, part.__context__]
    return "".join(summary.format())


def _of_users(stack: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """Leave out Turnback's own frames, and those of Spark and Python itself that it has called."""
    inside = False
    for frame in stack:
        if frame.filename.startswith((_PACKAGE, "<frozen runpy>")):
            inside = True
        elif not (inside and _BELOW.match(frame.filename)):
            inside = False
            yield frame


def _record_crash(run: RunDirectory) -> None:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        run.set_error(RunError.of(error))
        print(mask_text(error_text(error)), end="", file=sys.stderr)

    sys.excepthook = hook
