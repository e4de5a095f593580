"""Defects of table sinks to plant, see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from turnback.connectors.tables import delta
from turnback.connectors.tables.sink import Mark, TableCommitter


def _commits_without_looking_how_far_the_table_is() -> Any:
    look = TableCommitter._look

    def hasty(self: Any, identity: Any) -> Any:
        return replace(look(self, identity), version=0)

    return mock.patch.object(TableCommitter, "_look", hasty)


def _files_are_noted_until_after_the_commit() -> Any:
    """So the next attempt takes what the table refers to for left over, and removes it."""
    return mock.patch.object(TableCommitter, "_forget_notes", lambda self, transactions: None)


def _marks_are_written_in_a_commit_of_their_own() -> Any:
    append = delta.DeltaTarget.append

    def twice(self: Any, files: Any, mark: Mark, join: str = "") -> None:
        append(self, files, replace(self.remembered(mark.identity) or mark, fence=mark.fence), join)
        self.mark(mark)

    return mock.patch.object(delta.DeltaTarget, "append", twice)


TABLES = ("delta", "delta-joined")
TABLE_PLANTS: dict[str, Callable[[], Any]] = {
    "table-no-look": _commits_without_looking_how_far_the_table_is,
    "table-notes-stay": _files_are_noted_until_after_the_commit,
    "table-two-commits": _marks_are_written_in_a_commit_of_their_own,
}
