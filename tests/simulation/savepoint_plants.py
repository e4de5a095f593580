"""Defects of savepoints, and of starts from them or anew, to plant; see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

from turnback.checkpoint.retention import PinnedFiles
from turnback.connectors.sql import sink as sql_rows
from turnback.driver.attempt import Attempt
from turnback.driver.restore_plan import RestorePlanner
from turnback.job.directory import JobDirectory
from turnback.snapshot import directory as savepoint_directory


def _files_are_not_kept() -> Any:
    """Retention deletes what a savepoint is being written from."""
    return mock.patch.object(PinnedFiles, "paths", lambda self: frozenset())


def _writers_have_the_same_name() -> Any:
    """A driver that gives up deletes what the one that has replaced it has written."""
    alike = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="0" * 32))
    return mock.patch.object(savepoint_directory, "uuid", alike)


def _the_stream_goes_on_before_a_stop() -> Any:
    patches = ExitStack()
    for name in ("pause", "resume"):
        patches.enter_context(mock.patch.object(Attempt, name, lambda self: None))
    return patches


def _positions_are_left_out() -> Any:
    """A start from a savepoint takes its state and reads the input from the beginning."""
    return mock.patch.object(RestorePlanner, "_positions", lambda self, *args, **named: {})


def _fresh_starts_go_on() -> Any:
    return mock.patch.object(JobDirectory, "renew", JobDirectory.open)


def _fresh_starts_leave_prepared_rows() -> Any:
    """Only what the job has prepared under its present id is rolled back."""
    honest = sql_rows._is_dangling

    def is_dangling(txn: Any, ctx: Any) -> bool:
        return honest(txn, ctx) and ctx.job_id in txn.sink

    return mock.patch.object(sql_rows, "_is_dangling", is_dangling)


SAVEPOINT_PLANTS: dict[str, Callable[[], Any]] = {
    "savepoint-files-deleted": _files_are_not_kept,
    "savepoint-writers-alike": _writers_have_the_same_name,
    "savepoint-without-positions": _positions_are_left_out,
    "stop-goes-on": _the_stream_goes_on_before_a_stop,
}
FRESH_PLANTS: dict[str, Callable[[], Any]] = {
    "fresh-goes-on": _fresh_starts_go_on,
    "fresh-leaves-prepared": _fresh_starts_leave_prepared_rows,
}
