"""Named points of Turnback's protocols, at which tests let a driver die.

Turnback knows nothing of them: methods are wrapped from outside. This module imports nothing of
Turnback, so that wrapping can be prepared before anything is loaded.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any, Literal

Arguments = tuple[Any, ...]
Change = Callable[[ModuleType], Callable[[], None]]
"""Changes a module; returns what undoes it."""


@dataclass(frozen=True)
class Point:
    """Where a process is when it reaches a named point.

    Attributes:
        method: As "module:Class.method", the module below `turnback`.
        when: Right before or after a call of the method; or between two calls, which is before
            each but the first within one run of `during`.
        during: Another method: only calls count that are made while it runs, by the same thread.
        only: Whether a call counts, by its arguments; without `self`.
    """

    method: str
    when: Literal["before", "after", "between"]
    during: str | None = None
    only: Callable[[Arguments], bool] = lambda arguments: True


def _is_state_file(arguments: Arguments) -> bool:
    return bool(arguments[0].startswith("state/"))


def _is_of_second_level(arguments: Arguments) -> bool:
    return re.match(r"state/\d+/1-", arguments[0]) is not None


def _holds_merged_file(arguments: Arguments) -> bool:
    return any("-merged-" in path for path in arguments[0].files())


_APPEND = "checkpoint.log:CheckpointLog.append"
_COMMIT_SINKS = "checkpoint.commits:Committers.commit"
_RUN_ATTEMPT = "driver.runner:JobRunner._run_attempt"
_CLEAN = "checkpoint.retention:Retention._delete_retired"
_PUT = "storage.local:LocalStorage.put"
_DELETE = "storage.local:LocalStorage.delete"
_PREPARED = "connectors.sql.sink:PreparedRows"
_PUBLISHED = "connectors.sql.sink:PublishedRows"
_DATABASES = ("connectors.sql.postgres:PostgresDatabase", "connectors.sql.mysql:MySqlDatabase")
_COMMITTERS = (
    "connectors.files.sink:FileCommitter",
    "sinks.memory:InlineCommitter",
    "sinks.write_ahead:WriteAheadCommitter",
)

DATABASE_POINTS: dict[str, tuple[Point, ...]] = {
    "before-prepare": (Point(f"{_PREPARED}.pre_commit", "before"),),
    "after-prepare": (Point(f"{_PREPARED}.pre_commit", "after"),),
    "before-prepared-commit": (Point(f"{_PREPARED}._commit", "before"),),
    "between-prepared-commits": (Point(f"{_PREPARED}._commit", "between", _COMMIT_SINKS),),
    "after-prepared-commit": (Point(f"{_PREPARED}._commit", "after"),),
    "between-sinks": (Point("connectors.sql.sink:SqlCommitter.commit", "between", _COMMIT_SINKS),),
    "before-publish": (Point(f"{_PUBLISHED}.publish", "before"),),
    "inside-publish": tuple(Point(f"{database}.upsert", "after") for database in _DATABASES),
    "after-publish": (Point(f"{_PUBLISHED}.publish", "after"),),
    "after-roll-back": tuple(
        Point(f"{database}.roll_back_prepared", "after") for database in _DATABASES
    ),
    # in a task
    "before-redis-write": (Point("connectors.redis:RedisSink._write", "before"),),
    "after-redis-write": (Point("connectors.redis:RedisSink._write", "after"),),
}
"""Those that only a job with sinks of databases reaches."""

POINTS: dict[str, tuple[Point, ...]] = {
    **DATABASE_POINTS,
    # a checkpoint
    "before-state-file": (Point(_PUT, "before", "worker.local_state:LocalState.snapshot"),),
    # those of the first keyed level are durable then
    "before-last-state-file": (
        Point(_PUT, "before", "worker.local_state:LocalState.snapshot", _is_of_second_level),
    ),
    "before-manifest": (Point(_APPEND, "before"),),
    "after-manifest": (Point(_APPEND, "after"),),
    "between-sink-commits": tuple(
        Point(f"{committer}.commit", "between", _COMMIT_SINKS) for committer in _COMMITTERS
    ),
    "after-sink-commit": (Point(_COMMIT_SINKS, "after"),),
    # what is done beside checkpoints
    "during-cleanup": (Point(_DELETE, "before", _CLEAN),),
    "during-merge": (Point(_PUT, "after", "driver.epochs:MergeTask.run"),),
    "after-merged-manifest": (Point(_APPEND, "after", only=_holds_merged_file),),
    "before-merged-files-go": (Point(_DELETE, "before", _CLEAN, only=_is_state_file),),
    # a start
    "after-fence": (Point("checkpoint.log:CheckpointLog.fence", "after"),),
    # the first sink has committed what is promised
    "during-recovery": tuple(
        Point(f"{committer}.commit", "after", _RUN_ATTEMPT) for committer in _COMMITTERS
    ),
    # what is promised is committed; nothing is rolled back yet
    "before-start-record": (Point("job.directory:JobDirectory.record_attempt", "before"),),
    "after-start-record": (Point("job.directory:JobDirectory.record_attempt", "after"),),
    "before-first-epoch": (Point("driver.attempt:Attempt._drive", "before"),),
    "during-intake": (Point(_PUT, "before", "worker.state_import:IntakeTask.run"),),
    # a savepoint
    "during-savepoint": (
        Point("snapshot.parts:PartsWriter.finish", "before", "snapshot.writer:ExportTask.run"),
        Point(_PUT, "before", "snapshot.writer:CopyTask.run"),
    ),
    "after-savepoint": (
        Point(
            "job.catalog:SavepointCatalog.add",
            "before",
            "driver.savepoints:JobSavepoints.take",
        ),
    ),
    # a stop, or a cancel with savepoint
    "before-decision": (Point("job.requests:Requests.record_stop_point", "before"),),
    "after-decision": (Point("job.requests:Requests.record_stop_point", "after"),),
    "before-answer": (
        Point("job.requests:Requests.finish", "before", "driver.service:RequestService.close"),
    ),
}


class Countdown:
    """Calls a function when it is called for the last time."""

    def __init__(self, count: int, reached: Callable[[], None]) -> None:
        self._left = count
        self._reached = reached
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            due = self._left == 0
        if due:
            self._reached()


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


def changes(point: Point, reached: Callable[[], None]) -> Iterator[tuple[str, Change]]:
    """The modules that have to be changed so that a function is called at a point, and how."""
    runs = _Runs()

    def counts(arguments: Arguments) -> bool:
        if not point.only(arguments):
            return False
        if point.during is None:
            return True
        return runs.count() > (1 if point.when == "between" else 0)

    def inner(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        due = counts(arguments[1:])
        if due and point.when != "after":
            reached()
        result = method(*arguments, **named)
        if due and point.when == "after":
            reached()
        return result

    def outer(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with runs.entered():
            return method(*arguments, **named)

    yield wrapping(point.method, inner)
    if point.during is not None:
        yield wrapping(point.during, outer)


def wrapping(method: str, wrapper: Callable[..., Any]) -> tuple[str, Change]:
    """The module of a method, and the change that puts a wrapper around the method."""
    module, _, qualified = method.partition(":")
    *classes, name = qualified.split(".")

    def change(loaded: ModuleType) -> Callable[[], None]:
        owner: Any = loaded
        for each in classes:
            owner = getattr(owner, each)
        original = vars(owner)[name]

        @wraps(original)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            return wrapper(original, *arguments, **named)

        setattr(owner, name, wrapped)
        return lambda: setattr(owner, name, original)

    return f"turnback.{module}", change
