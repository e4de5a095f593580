"""Joining small files that a table has already, by a commit that changes no row.

A compaction is a commit like that of any other writer: it knows nothing of epochs, leaves alone
what the table remembers of sinks, and starts again if somebody has changed the same files. Old
files stay for readers of older versions, until the user removes them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from turnback.core.errors import SinkError, TurnbackError

_LOG = logging.getLogger(__name__)
_TRIES = 8
_CLOSE_S = 30.0


class ConflictError(Exception):
    """Somebody else has changed the table meanwhile; nothing was committed."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What was done with a table, or would be done.

    Attributes:
        files_before: Data files of the table.
        files_after: Data files of it afterwards; an estimate if nothing was done.
        joined: Small files that are, or would be, in larger ones now.
        bytes: Their size.
        version: Of the table, afterwards.
    """

    files_before: int
    files_after: int
    joined: int
    bytes: int
    version: str


class CompactTarget(Protocol):
    """A table that can be compacted; `TableTarget` has the contract."""

    def plan_compaction(self) -> Compaction:
        """Look at the table anew, and say what a compaction would do."""

    def compact(self, alone: AbstractContextManager[Any]) -> int:
        """Join small files of the table; returns how many.

        Within `alone` this process commits nothing else to the table. To be held for as short as
        possible, and only where the commit of a sink would stand in the way.

        Raises:
            ConflictError: The table was changed meanwhile.
        """


def compact_table(
    target: CompactTarget,
    name: str,
    place: str,
    *,
    dry_run: bool,
    alone: AbstractContextManager[Any] | None = None,
) -> Compaction:
    """Join the small files of a table; `name` is what messages call the sink that writes it.

    Raises:
        SinkError: It cannot be done, or others change the same files all the time.
    """
    reason = ""
    for tried in range(_TRIES):
        before = target.plan_compaction()
        if dry_run or not before.joined:
            return before
        try:
            joined = target.compact(alone or nullcontext())
        except ConflictError as error:
            reason = str(error)
            _LOG.info("%s: %s; compacting again", name, reason)
            time.sleep(0.1 * 2**tried * random.uniform(0.5, 1))
            continue
        after = target.plan_compaction()
        return msgspec.structs.replace(
            after, files_before=before.files_before, joined=joined, bytes=before.bytes
        )
    raise SinkError(
        f"{name}: {place} was changed by others {_TRIES} times while it was compacted: {reason}. "
        "Nothing was done; try again when less is written, or give the sink compact_files"
    )


class BackgroundCompaction:
    """Compacts a table beside the job, once commits have added so many files.

    What fails is tried again after as many more. Not thread-safe, but for its own thread.

    Attributes:
        alone: To be held by whoever commits to the table.
    """

    def __init__(
        self, every: int, compact: Callable[[AbstractContextManager[Any]], Compaction], name: str
    ) -> None:
        self._every = every
        self._compact = compact
        self._name = name
        self.alone = threading.Lock()
        self._added = 0
        self._thread: threading.Thread | None = None

    def added(self, files: int) -> None:
        """Note that a commit has added files to the table."""
        self._added += files
        running = self._thread is not None and self._thread.is_alive()
        if self._added >= self._every and not running:
            self._added = 0
            self._thread = threading.Thread(target=self._run, name="turnback-compact", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait a while for a compaction under way; if it takes longer, it may go on."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            done = self._compact(self.alone)
        except TurnbackError as error:
            _LOG.warning("%s: its table was not compacted: %s", self._name, error)
        else:
            _LOG.info(
                "%s: compacted %d files into %d",
                self._name,
                done.joined,
                done.joined - (done.files_before - done.files_after),
            )
