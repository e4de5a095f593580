"""Compares the counts that Flink hands out after a start with those it must come to."""

# PyFlink is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyflink.common import RowKind
from pyflink.table import TableResult

from benchmarks.result import WrongAnswerError

TIMEOUT_S = 300


class FlinkCheck:
    """Expects every key of the check batch to come to its count, and no further.

    A count that is too high is seen only when all has been read. So one more record follows then,
    and when its row is there, all others are.

    Args:
        directory: The check batch; the job reads whatever is added there.
        known: Whether all keys were in the state already.
        wait_until_idle: Returns when the job has read what there is.
    """

    def __init__(
        self, directory: Path, *, known: bool, wait_until_idle: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._known = known
        self._wait_until_idle = wait_until_idle
        rows = [row for path in directory.iterdir() for row in csv.reader(path.open())]
        # The record that checks a key is itself counted.
        self._expected = {post: int(amount) + 1 for post, _, amount in rows}

    def run(self, result: TableResult) -> float:
        """Read the rows; returns the time at which the first came."""
        client = result.get_job_client()
        assert client is not None
        too_late = threading.Timer(TIMEOUT_S, client.cancel)
        too_late.daemon = True
        too_late.start()
        first = None
        pending, last = set(self._expected), None
        with result.collect() as rows:
            for row in rows:
                first = first or time.monotonic()
                if row.get_row_kind() is RowKind.UPDATE_BEFORE:
                    continue
                if self._reached(*row, inserted=row.get_row_kind() is RowKind.INSERT):
                    pending.discard(row[0])
                if pending:
                    continue
                if last is not None:
                    break
                last = self._add_last()
                pending = {last}
        too_late.cancel()
        if first is None or pending:
            raise WrongAnswerError(f"{len(pending)} keys have not come to their counts")
        return first

    def _reached(self, post: str, n: int, *, inserted: bool) -> bool:
        expected = self._expected.get(post)
        if inserted and self._known:
            raise WrongAnswerError(f"{post} is not in the state")
        if expected is not None and n > expected:
            raise WrongAnswerError(f"{post} counted {n} times, expected {expected}")
        return n == expected

    def _add_last(self) -> str:
        self._wait_until_idle()
        last = min(self._expected)
        self._expected[last] += 1
        hidden = self._directory / ".last.csv"  # not read before it is complete
        hidden.write_text(f"{last},view,1\n")
        hidden.rename(self._directory / "last.csv")
        return last
