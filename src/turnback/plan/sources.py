"""How far a source is behind, asked of the system it reads from."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import xxhash

from turnback.errors import PlanError
from turnback.plan.bad_records import plain_path, policy_of


@dataclass(frozen=True)
class SourceLag:
    """What a source has not processed yet; None for what is not known.

    Attributes:
        records: How many records.
        seconds: Age of the oldest of them; 0 if there is none.
    """

    records: int | None
    seconds: float | None


class LagReader(Protocol):
    """Asks one system how far a source is behind; lives on the driver, in a thread of its own.

    It keeps its connection between two questions. Whatever it raises means that the lag is not
    known now, and never fails the job.
    """

    def read(self, offset: str | None) -> SourceLag | None:
        """The lag behind a confirmed position, None as long as there is no such position.

        Answers or raises within some ten seconds. None if it cannot be told.
        """

    def close(self) -> None:
        """Give up the connection; called once, by the thread that reads."""


@runtime_checkable
class CommitsPositions(Protocol):
    """A `LagReader` that also tells the system how far the source is, for other tools to see."""

    def commit(self, offset: str) -> None:
        """Tell it the position of a complete checkpoint; what it raises fails nothing."""


@dataclass(frozen=True)
class ReplayLimit:
    """How long what comes after a position can be read.

    Attributes:
        gone: Whether some of it cannot be any more.
        until_ms: About when the first of it will be deleted; None if nothing says so.
    """

    gone: bool
    until_ms: int | None


@runtime_checkable
class KnowsReplayLimits(Protocol):
    """A `LagReader` that also knows for how long records can be read again."""

    def replay_limits(self, offsets: Collection[str]) -> dict[str, ReplayLimit]:
        """The limit for each of these positions; without those not known yet."""


OpenLagReader = Callable[[], LagReader]
"""Makes a reader, without waiting for the system to answer."""


@runtime_checkable
class ReadsIdentity(Protocol):
    """A `LagReader` that also knows which streams the source reads."""

    def identity(self, offset: str, known: str | None) -> str | None:
        """What tells the streams at a position from others with the same names, as text.

        `known` is what was returned before, or is part of the snapshot that the job goes on from.
        """


@runtime_checkable
class ChecksIdentity(Protocol):
    """A `SourceCheck` that can tell whether the streams of a position are still the same."""

    def check_identity(self, name: str, identity: str) -> None:
        """Refuse to go on in others; raises `ConfigurationError`."""


WHOLE = 0
"""The partition of what is as good as one, wherever it comes from."""

PARTITION_COLUMN = "_turnback_partition"
"""From which partition a row comes, as a number; no part of the elements."""
OFFSET_COLUMN = "_turnback_offset"
"""Where it is in its partition."""


def spark_hash(text: str) -> int:
    """What Spark's `xxhash64` gives for a text."""
    number = xxhash.xxh64_intdigest(text.encode(), seed=42)
    return number - (1 << 64) if number >> 63 else number


def partition_number(name: str) -> int:
    """The number of a partition: Spark's `shiftright(xxhash64(name), 2)`, to leave some room."""
    return spark_hash(name) >> 2


def whole_source(uid: str) -> str:
    """The name of the one partition that a source without any is; none of Kafka's has a colon."""
    return f"source:{uid}"


@dataclass(frozen=True)
class EpochLimit:
    """A limit for files; one file is read in any case, however large it is."""

    files: int | None = None
    bytes: int | None = None


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
    """What is to be looked at, as the user asks for; None for nothing."""
    policy = policy_of(ChangedFilesPolicy, "from_files: on_changed_files", given)
    if policy is ChangedFilesPolicy.IGNORE:
        return None
    if _is_remote(path):
        if policy is ChangedFilesPolicy.FAIL:
            raise PlanError(
                f"from_files: changes are only detected in local files, not in {path}; omit "
                "on_changed_files='fail'"
            )
        return None
    local = plain_path(path) if path.startswith(_LOCAL) else path
    return WatchedFiles(os.path.abspath(local), policy)  # noqa: PTH100 - as Spark: links stay


def unwatched_files(path: str, given: Any) -> str:
    """Where files are of which the user wants to know that they are changed, and nobody can tell.

    '' if there are none.
    """
    warns = given == ChangedFilesPolicy.WARN.value
    return path if warns and _is_remote(path) else ""


def unwatched_files_text(uid: str, path: str) -> str:
    """What is to be said of them at the start of a job."""
    return (
        f"source {uid!r}: if files in {path} change after they were read, the new data is never "
        "read, and no warning follows, because changes are only detected in local files. Give "
        "every file a unique name, and never append to or replace one; "
        'on_changed_files="ignore" turns this warning off'
    )


def _is_remote(path: str) -> bool:
    return "://" in path and not path.startswith(_LOCAL)


def changed_files_text(uid: str, changed: Sequence[str], count: int | None = None) -> str:
    """What is to be said of files that were changed; `count` if more than these were."""
    total = len(changed) if count is None else count
    shown = ", ".join(changed[:3]) + (f" and {total - 3:,} more" if total > 3 else "")
    what = "1 file was" if total == 1 else f"{total:,} files were"
    return (
        f"source {uid!r}: {what} changed after being read, and the new data is never read: {shown}"
    )
