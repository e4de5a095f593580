"""Spark's checkpoint directory: scratch, local to the driver, one per attempt.

It is seeded from a snapshot's positions, and read after every batch to learn the new
ones. It is never the truth: the manifest is.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from turnback.spark.internals import CheckpointLogs
from turnback.storage.directory import DirectoryLock, locked_directory

_LOG = logging.getLogger(__name__)
_PREFIX = "turnback-spark-"


class Scratch(CheckpointLogs):
    """One attempt's Spark checkpoint directory, locked until the attempt ends."""

    def __init__(self, leaves: Mapping[str, str]) -> None:
        self._lock = _lock_new()
        super().__init__(self._lock.directory, leaves)

    def remove(self) -> None:
        self._lock.remove()
        self._lock.release()


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can read; it goes at the end of the block.

    If this process is killed before, it goes when the next driver starts on this machine.
    """
    lock = _lock_new()
    try:
        yield lock.directory
    finally:
        lock.remove()
        lock.release()


def _lock_new() -> DirectoryLock:
    """Make a new directory, locked before it exists, so that no other driver sweeps it away."""
    _sweep()
    while True:
        path = Path(tempfile.gettempdir(), f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
        lock = DirectoryLock.take(path)
        if lock is not None:
            path.mkdir(mode=0o700)
            return lock


def _sweep() -> None:
    """Remove what drivers that were killed on this machine left behind.

    Only what can be locked: containers may share the directory of temporary files, and a driver
    in another one has no process here.
    """
    for lock_file in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*.lock")):
        directory = locked_directory(lock_file)
        try:
            # The directory of temporary files is open to all users.
            paths = [path for path in (lock_file, directory) if os.path.lexists(path)]
            if any(path.lstat().st_uid != os.getuid() for path in paths):
                continue
            lock = DirectoryLock.take(directory)
        except OSError as error:
            _LOG.debug("%s is left alone: %s", directory, error)
            continue
        if lock is not None:
            lock.remove()
            lock.release()
