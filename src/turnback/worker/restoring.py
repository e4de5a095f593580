"""How far a task is with restoring state, told to the driver.

restoring/<attempt>/<task> holds as many bytes as percent are done: the driver asks for the sizes of
all of them in one request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from turnback.core.errors import StorageError
from turnback.state.files import StorageRef, storage_of

_LOG = logging.getLogger(__name__)
DIRECTORY = "restoring"
REPORT_S = 2.0
"""What takes less time is not worth a report."""
WHOLE = 100


class RestoreReport:
    """Tells now and then how much of the state of one task is restored; never fails the task."""

    def __init__(self, storage: StorageRef, attempt: int, task: str) -> None:
        self._storage = storage
        self._path = f"{DIRECTORY}/{attempt}/{task}"
        self._told_s = time.monotonic()
        self._percent = 0

    def report(self, done: float, total: float) -> None:
        """So much of all is done, in whatever unit."""
        now = time.monotonic()
        if self._storage.inline or now - self._told_s < REPORT_S:
            return
        percent = min(WHOLE, int(WHOLE * done / total)) if total > 0 else WHOLE
        if percent > self._percent:
            self._told_s = now
            self._percent = percent
            try:
                storage_of(self._storage).put(self._path, b"." * percent)
            except StorageError as error:
                _LOG.warning("how much is restored could not be told: %s", error)


class IntakeReport(RestoreReport):
    """Counts entries that are taken in: half of the work is to read them, half to write them."""

    def __init__(self, storage: StorageRef, attempt: int, task: str, entries: float) -> None:
        super().__init__(storage, attempt, task)
        self._entries = entries
        self._passed = 0

    def add(self, entries: int) -> None:
        """So many more are read, or written."""
        self._passed += entries
        self.report(self._passed / 2, self._entries)

    def counted(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The same tables, counted as they are read."""
        for table in tables:
            self.add(len(table))
            yield table


def store_task(level: int, partition: int) -> str:
    """The task that fills the local store of a partition."""
    return f"store-{level}-{partition}"


def intake_task(level: int, partition: int) -> str:
    """The task that takes in the state of a partition."""
    return f"intake-{level}-{partition}"
