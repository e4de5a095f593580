"""Notes when a program has come how far, in a file that outlives it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any


class Point(StrEnum):
    """How far a driver has come, in this order."""

    PROCESS = "process"
    FIRST_LINE = "first line"
    IMPORTS = "imports"
    JVM = "JVM"
    SESSION = "session"
    RESTORED = "restored"
    INPUT = "input"
    EPOCH = "epoch"
    FAILED = "failed"
    DELAY = "delay"
    DELAYED = "delayed"
    AGAIN = "again"


@dataclass(frozen=True)
class Mark:
    """A process has come to a point for the first time; `at` is the wall clock's time."""

    pid: int
    point: Point
    at: float


class Marks:
    """The marks of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: set[Point] = set()

    def note(self, point: Point, at: float | None = None) -> None:
        """Note `point`, unless that has been done."""
        if point in self._noted:
            return
        self._noted.add(point)
        mark = Mark(os.getpid(), point, time.time() if at is None else at)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(mark)) + "\n")

    def around(
        self,
        owner: Any,
        function: str,
        *,
        before: Point | None = None,
        after: Point | None = None,
        failed: Point | None = None,
        again: Point | None = None,
    ) -> None:
        """Note when `owner.function` is first called, returns, fails, and is called after that."""
        original: Callable[..., Any] = getattr(owner, function)

        @wraps(original)
        def noting(*arguments: Any, **named: Any) -> Any:
            if failed in self._noted and again is not None:
                self.note(again)
            if before is not None:
                self.note(before)
            try:
                result = original(*arguments, **named)
            except Exception:
                if failed is not None:
                    self.note(failed)
                raise
            if after is not None:
                self.note(after)
            return result

        setattr(owner, function, noting)


def read(path: Path) -> list[Mark]:
    """All marks that are there by now; a line that is being written counts as missing."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    saved = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Mark(each["pid"], Point(each["point"]), each["at"]) for each in saved]
