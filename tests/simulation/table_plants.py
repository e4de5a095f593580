"""Defects of table sinks to plant, see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from turnback.connectors.tables import delta, iceberg
from turnback.connectors.tables.sink import Mark, TableCommitter


def _commits_without_looking_how_far_the_table_is() -> Any:
    look = TableCommitter._look

    def hasty(self: Any, identity: Any) -> Any:
        return replace(look(self, identity), version=0)

    return mock.patch.object(TableCommitter, "_look", hasty)


def _files_are_noted_until_after_the_commit() -> Any:
    """So the next attempt takes what the table refers to for left over, and removes it."""
    return mock.patch.object(TableCommitter, "_forget_notes", lambda self, transactions: None)


def _nobody_is_kept_from_committing() -> Any:
    """An attempt rolls back what a driver before it may still be about to commit."""

    def look(self: Any, identity: Any, newest: int = 0) -> int:
        return int(self._look(identity).version)

    return mock.patch.object(TableCommitter, "_fence_out", look)


def _files_are_dropped_that_the_table_may_have() -> Any:
    """Whoever aborts takes for granted that no commit was begun."""
    return mock.patch.object(TableCommitter, "_may_be_published", lambda *_: False)


def _marks_are_written_in_a_commit_of_their_own() -> Any:
    append = delta.DeltaTarget.append

    def twice(self: Any, files: Any, mark: Mark, join: str = "") -> None:
        append(self, files, replace(self.remembered(mark.identity) or mark, fence=mark.fence), join)
        self.mark(mark)

    return mock.patch.object(delta.DeltaTarget, "append", twice)


def _iceberg_marks_are_properties_alone() -> Any:
    """So what rolls back does not conflict with a commit that is under way."""
    return mock.patch.object(
        iceberg.IcebergTarget, "_add_empty_snapshot", lambda self, transaction, told: None
    )


def _iceberg_puts_commits_behind_those_of_others() -> Any:
    """As PyIceberg does by itself unless it is told not to."""
    look = iceberg.IcebergTarget.look

    def careless(self: Any) -> None:
        look(self)
        del self._table.metadata.properties["commit.retry.num-retries"]

    return mock.patch.object(iceberg.IcebergTarget, "look", careless)


DELTA = ("delta", "delta-joined")
ICEBERG = ("iceberg", "iceberg-joined")
TABLES = (*DELTA, *ICEBERG)
TABLE_PLANTS: dict[str, Callable[[], Any]] = {
    "table-no-look": _commits_without_looking_how_far_the_table_is,
    "table-notes-stay": _files_are_noted_until_after_the_commit,
    "table-two-commits": _marks_are_written_in_a_commit_of_their_own,
    "table-no-fence": _nobody_is_kept_from_committing,
    "table-aborts-blindly": _files_are_dropped_that_the_table_may_have,
    "iceberg-marks-alone": _iceberg_marks_are_properties_alone,
    "iceberg-rebases": _iceberg_puts_commits_behind_those_of_others,
}
