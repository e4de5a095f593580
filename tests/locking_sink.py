"""A transactional system in a directory, whose transactions hold locks until they are settled."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from turnback.sinks import TwoPhaseCommitSink


class LockingSink(TwoPhaseCommitSink[str]):
    """Every element locks its row, the first value of it.

    Args:
        path: The directory.
        patience_s: How long a task waits for a lock.
        killed: A file that makes the next task that prepares die afterwards; it is removed.
    """

    transaction_type = str

    def __init__(self, path: Path, patience_s: float = 5.0, killed: Path | None = None) -> None:
        self.path, self.patience_s, self.killed = path, patience_s, killed
        self.rows: dict[str, list[Any]] = {}
        for name in ("locks", "prepared", "visible"):
            (path / name).mkdir(parents=True, exist_ok=True)

    def begin(self, ctx: Any) -> str:
        txn = f"{ctx.attempt}-{ctx.epoch}-{ctx.partition}-{ctx.task_attempt_id}"
        self.rows[txn] = []
        return txn

    def write(self, txn: str, element: Any) -> None:
        lock, deadline = self.path / "locks" / str(element[0]), time.monotonic() + self.patience_s
        while self.patience_s:
            try:
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
                lock.write_text(txn)
                break
            except FileExistsError:
                if lock.exists() and lock.read_text() == txn:
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"row {element[0]} is locked") from None
                time.sleep(0.02)
        self.rows[txn].append(list(element))

    def pre_commit(self, txn: str) -> str:
        text = json.dumps(self.rows.pop(txn))
        (self.path / "prepared" / txn).write_text(text)
        if self.killed is not None and self.killed.exists():
            self.killed.unlink()
            os._exit(9)
        return txn

    def commit(self, txn: str) -> None:
        prepared, visible = self.path / "prepared" / txn, self.path / "visible" / txn
        if prepared.exists():
            prepared.rename(visible)
        elif not visible.exists():
            raise RuntimeError(f"{txn} is lost")
        self._unlock(txn)

    def abort(self, txn: str) -> None:
        (self.path / "prepared" / txn).unlink(missing_ok=True)
        self._unlock(txn)

    def dangling(self, ctx: Any) -> Iterable[str]:
        return [name for name in self.prepared() if int(name.split("-")[0]) <= ctx.attempt]

    def prepared(self) -> list[str]:
        return sorted(path.name for path in (self.path / "prepared").iterdir())

    def visible(self) -> list[Any]:
        found = [json.loads(path.read_text()) for path in (self.path / "visible").iterdir()]
        return sorted(tuple(row) for rows in found for row in rows)

    def _unlock(self, txn: str) -> None:
        for lock in (self.path / "locks").iterdir():
            if lock.read_text() == txn:
                lock.unlink()
