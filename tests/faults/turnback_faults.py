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
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from turnback.testing.crash_points import POINTS, Change, Countdown, Point, changes, wrapping

__all__ = ["POINTS", "SIGNALS", "Point", "install"]

SIGNALS = {"TURNBACK_KILL_AT": signal.SIGKILL, "TURNBACK_STOP_AT": signal.SIGSTOP}


def install(environment: Mapping[str, str]) -> None:
    """Prepare this process for what the environment asks for; nothing is wrapped yet.

    Raises:
        KeyError: There is no such point.
    """
    wanted: list[tuple[str, Change]] = []
    for variable, number in SIGNALS.items():
        if variable in environment:
            name, _, count = environment[variable].partition(":")
            reached = Countdown(int(count or 1), _signalling(number))
            for point in POINTS[name]:
                wanted += changes(point, reached)
    if environment.get("TURNBACK_FAULT_COMMIT_FIRST") == "1":
        wanted.append(
            wrapping("checkpoint.protocol:CommitProtocol._persist_manifest", _commit_first)
        )
    if wanted:
        sys.meta_path.insert(0, _Finder(wanted))


def _signalling(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(int(os.environ.get("TURNBACK_KILL_PID", os.getpid())), number)


def _commit_first(method: Callable[..., Any], self: Any, pending: Any) -> Any:
    self.commit_up_to(pending.epoch)
    return method(self, pending)


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
