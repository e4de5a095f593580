"""Files of a source that were changed after they were read, and are never read again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from turnback.core.errors import PlanError
from turnback.program.malformed import plain_path

_LOCAL = "file:"


class ChangedFilesPolicy(Enum):
    """What becomes of a job if files were changed after it has read them."""

    WARN = "warn"
    """It goes on, and says so wherever its status is shown."""
    FAIL = "fail"
    """It ends, with an error that names them."""
    IGNORE = "ignore"
    """Nobody looks."""


@dataclass(frozen=True)
class WatchedFiles:
    """Files of this machine that are looked at now and then: one, or all in a directory."""

    path: str
    policy: ChangedFilesPolicy


def watched_files(path: str, given: Any) -> WatchedFiles | None:
    """What is to be looked at, as the user asks for; None for nothing.

    Raises:
        PlanError: There is no such policy, or it is more than can be done.
    """
    try:
        policy = ChangedFilesPolicy(given)
    except ValueError:
        known = ", ".join(repr(each.value) for each in ChangedFilesPolicy)
        raise PlanError(
            f"from_files: on_changed_files takes one of {known}, got {given!r:.80}"
        ) from None
    if policy is ChangedFilesPolicy.IGNORE:
        return None
    if "://" in path and not path.startswith(_LOCAL):
        if policy is ChangedFilesPolicy.FAIL:
            raise PlanError(
                f"from_files: nobody looks whether files in {path} are changed, only local ones "
                "are looked at; leave out on_changed_files='fail'"
            )
        return None
    local = plain_path(path) if path.startswith(_LOCAL) else path
    return WatchedFiles(os.path.abspath(local), policy)  # noqa: PTH100 - as Spark: links stay


def changed_files_text(uid: str, changed: Sequence[str], count: int | None = None) -> str:
    """What is to be said of files that were changed; `count` if more than these were."""
    total = len(changed) if count is None else count
    shown = ", ".join(changed[:3]) + (f" and {total - 3:,} more" if total > 3 else "")
    what = "1 file was" if total == 1 else f"{total:,} files were"
    return (
        f"source {uid!r}: {what} changed after being read, and what is new in there is never read: "
        f"{shown}"
    )
