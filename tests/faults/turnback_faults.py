"""Lets a process die, or pause, at a named point of Turnback's protocols.

Turnback knows nothing of it. Environment variables say what is wanted, and methods are wrapped as
soon as their module is loaded; processes that a process starts, such as Spark's Python workers,
inherit both the variables and the path:

- ``TURNBACK_KILL_AT=name`` or ``name:k`` kills the process with SIGKILL when it reaches the point
  (for the k-th time).
- ``TURNBACK_STOP_AT`` does the same with SIGSTOP, which turns the process into a paused zombie.
- ``TURNBACK_KILL_PID`` names the process to signal instead, so that a point in a task can end the
  driver.
- ``TURNBACK_FAULT_COMMIT_FIRST=1`` commits sinks before the manifest is written. It is wrong on
  purpose: it proves that the tests notice.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Literal

Arguments = tuple[Any, ...]
Change = Callable[[ModuleType], None]

SIGNALS = {"TURNBACK_KILL_AT": signal.SIGKILL, "TURNBACK_STOP_AT": signal.SIGSTOP}


@dataclass(frozen=True)
class Point:
    """Where a process is when it reaches a named point.

    Attributes:
        method: As "module:Class.method", the module below `turnback`; or "module:function", the
            module being the one that calls the function.
        when: Right before or after a call of the method; or between two calls, which is before
            each but the first within one run of `during`.
        during: Another method: only calls count that are made while it runs, by the same thread.
        only: Whether a call counts, by its arguments; without `self`.
    """

    method: str
    when: Literal["before", "after", "between"]
    during: str | None = None
    only: Callable[[Arguments], bool] = lambda arguments: True

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods it depends on."""
        return (self.method, self.during) if self.during else (self.method,)


def _is_state_file(arguments: Arguments) -> bool:
    return bool(arguments[0].startswith("state/"))


def _is_of_second_level(arguments: Arguments) -> bool:
    return re.match(r"state/\d+/1-", arguments[0]) is not None


def _holds_merged_file(arguments: Arguments) -> bool:
    return any("-merged-" in path for path in arguments[0].files())


_APPEND = "checkpoint.log:CheckpointLog.append"
_COMMIT_SINKS = "checkpoint.commits:Committers.commit"
_CLEAN = "checkpoint.retention:Retention._delete_retired"
_PUT, _DELETE = "storage.local:LocalStorage.put", "storage.local:LocalStorage.delete"

POINTS: dict[str, tuple[Point, ...]] = {
    # a checkpoint
    "before-state-file": (Point(_PUT, "before", "worker.local_state:LocalState.snapshot"),),
    # those of the first keyed level are durable then
    "before-last-state-file": (
        Point(_PUT, "before", "worker.local_state:LocalState.snapshot", _is_of_second_level),
    ),
    "before-manifest": (Point(_APPEND, "before"),),
    "after-manifest": (Point(_APPEND, "after"),),
    "between-sink-commits": (Point("sinks.files:FileCommitter.commit", "between", _COMMIT_SINKS),),
    "after-sink-commit": (Point(_COMMIT_SINKS, "after"),),
    # what is done beside checkpoints
    "during-cleanup": (Point(_DELETE, "before", _CLEAN),),
    "during-merge": (Point(_PUT, "after", "spark.merger:MergeTask.run"),),
    "after-merged-manifest": (Point(_APPEND, "after", only=_holds_merged_file),),
    "before-merged-files-go": (Point(_DELETE, "before", _CLEAN, only=_is_state_file),),
    # a start
    "after-fence": (Point("checkpoint.log:CheckpointLog.fence", "after"),),
    "during-recovery": (Point("sinks.files:FileCommitter.recover", "after"),),
    "before-first-epoch": (Point("spark.attempt:Attempt._drive", "before"),),
    "during-intake": (Point(_PUT, "before", "worker.intake:IntakeTask.run"),),
    # a savepoint
    "during-savepoint": (
        Point("snapshot.table:PartsWriter.finish", "before", "snapshot.writer:ExportTask.run"),
        Point(_PUT, "before", "snapshot.writer:CopyTask.run"),
    ),
    "after-savepoint": (
        Point(
            "job.catalog:SavepointCatalog.add",
            "before",
            "spark.savepoints:Savepoints.take",
        ),
    ),
    # a stop, or a cancel with savepoint
    "before-decision": (Point("job.decisions:Decisions.add", "before"),),
    "after-decision": (Point("job.decisions:Decisions.add", "after"),),
    "before-answer": (
        Point("job.requests:Requests.finish", "before", "spark.service:Service.close"),
    ),
}


def install(environment: Mapping[str, str]) -> None:
    """Prepare this process for what the environment asks for; nothing is imported yet.

    Raises:
        KeyError: There is no such point.
    """
    changes: list[tuple[str, Change]] = []
    for variable, number in SIGNALS.items():
        if variable in environment:
            name, _, count = environment[variable].partition(":")
            reach = _Countdown(int(count or 1), number)
            for point in POINTS[name]:
                changes += _changes(point, reach)
    if environment.get("TURNBACK_FAULT_COMMIT_FIRST") == "1":
        changes.append(
            _wrapping("checkpoint.protocol:CommitProtocol._persist_manifest", _commit_first)
        )
    if changes:
        sys.meta_path.insert(0, _Finder(changes))


class _Countdown:
    """Signals a process when it is called for the last time."""

    def __init__(self, count: int, number: signal.Signals) -> None:
        self._left, self._number = count, number
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            due = self._left == 0
        if due:
            os.kill(int(os.environ.get("TURNBACK_KILL_PID", os.getpid())), self._number)


class _Runs(threading.local):
    """The calls so far in each run of a method that is under way in this thread."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.calls.append(0)
        try:
            yield
        finally:
            self.calls.pop()

    def count(self) -> int:
        """Count a call; returns how many there were, 0 if the method is not running."""
        if not self.calls:
            return 0
        self.calls[-1] += 1
        return self.calls[-1]


def _changes(point: Point, reach: Callable[[], None]) -> Iterator[tuple[str, Change]]:
    runs = _Runs()

    def counts(arguments: Arguments) -> bool:
        if not point.only(arguments):
            return False
        if point.during is None:
            return True
        return runs.count() > (1 if point.when == "between" else 0)

    def inner(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        due = counts(arguments[1:] if "." in point.method else arguments)
        if due and point.when != "after":
            reach()
        result = method(*arguments, **named)
        if due and point.when == "after":
            reach()
        return result

    def outer(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with runs.entered():
            return method(*arguments, **named)

    yield _wrapping(point.method, inner)
    if point.during is not None:
        yield _wrapping(point.during, outer)


def _commit_first(method: Callable[..., Any], self: Any, pending: Any) -> Any:
    self.commit_up_to(pending.epoch)
    return method(self, pending)


def _wrapping(method: str, wrapper: Callable[..., Any]) -> tuple[str, Change]:
    """The module of a method, and the change that puts a wrapper around the method."""
    module, _, qualified = method.partition(":")
    *classes, name = qualified.split(".")

    def change(loaded: ModuleType) -> None:
        owner: Any = loaded
        for each in classes:
            owner = getattr(owner, each)
        original = getattr(owner, name)

        @wraps(original)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            return wrapper(original, *arguments, **named)

        setattr(owner, name, wrapped)

    return f"turnback.{module}", change


class _Finder(MetaPathFinder):
    """Changes modules right after they are loaded."""

    def __init__(self, changes: Sequence[tuple[str, Change]]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        changes = [change for module, change in self._changes if module == name]
        spec = PathFinder.find_spec(name, path, target) if changes else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for change in changes:
                change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
