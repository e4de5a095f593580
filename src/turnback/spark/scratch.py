"""Spark's checkpoint directory: scratch, local to the driver, one per attempt.

It is seeded from a snapshot's positions, and read after every batch to learn the new
ones. It is never the truth: the manifest is.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.spark.internals import CheckpointLogs
from turnback.storage.base import Storage
from turnback.storage.directory import DirectoryLock, locked_directory
from turnback.storage.envelope import check, digest

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


EntryReader = Callable[[str, int, int], list[str] | None]
"""(leaf, after, upto) -> entries of its list of files seen, or None if it keeps none."""


class Positions:
    """The positions of all sources, kept so that a checkpoint costs what is new.

    A file source's position is the list of files it has seen. It is kept as segments that are
    merged like a binary counter: few of them at any time, each entry rewritten rarely.
    """

    def __init__(self, storage: Storage, attempt: int) -> None:
        self._storage = storage
        self._attempt = attempt
        self._segments: dict[str, list[LogFile]] = {}
        self._upto: dict[str, int] = {}

    def restore(self, sources: Mapping[str, SourcePosition]) -> dict[str, list[str]]:
        """Go on from a snapshot; returns the entries of each list of files seen."""
        entries: dict[str, list[str]] = {}
        for leaf, position in sources.items():
            if position.log:
                self._segments[leaf] = list(position.log)
                self._upto[leaf] = 0  # the scratch directory is seeded with one entry, number 0
                entries[leaf] = [e for segment in position.log for e in self._read(segment)]
        return entries

    def advance(
        self, offsets: Mapping[str, str | None], read: EntryReader
    ) -> dict[str, SourcePosition]:
        """The positions after an epoch; new entries are durable when this returns."""
        positions: dict[str, SourcePosition] = {}
        new = self.new_entries(offsets, read)
        for leaf, offset in offsets.items():
            if leaf in new:
                number = _log_offset(offset)
                assert number is not None
                self._upto[leaf] = number
                if new[leaf]:
                    self._append(leaf, new[leaf])
            positions[leaf] = SourcePosition(offset, tuple(self._segments.get(leaf, ())))
        return positions

    def new_entries(
        self, offsets: Mapping[str, str | None], read: EntryReader
    ) -> dict[str, list[str]]:
        """What an epoch adds to lists of files seen, of sources that keep one."""
        entries: dict[str, list[str]] = {}
        for leaf, offset in offsets.items():
            number = _log_offset(offset)
            new = None if number is None else read(leaf, self._upto.get(leaf, -1), number)
            if new is not None:
                entries[leaf] = new
        return entries

    def _append(self, leaf: str, entries: list[str]) -> None:
        segments = self._segments.setdefault(leaf, [])
        size = sum(map(len, entries))
        while segments and segments[-1].length < 2 * size:
            older = segments.pop()
            entries = self._read(older) + entries
            size += older.length
        segments.append(self._write(entries))

    def _write(self, entries: list[str]) -> LogFile:
        data = "\n".join(entries).encode()
        name = f"files-seen-{uuid.uuid4().hex}.jsonl"
        path = f"offsets/{self._attempt}/{name}"
        self._storage.put(path, data)
        return LogFile(name, path, len(data), digest(data))

    def _read(self, segment: LogFile) -> list[str]:
        data = self._storage.get(segment.path)
        check(data, segment.length, segment.digest, segment.path)
        return data.decode().split("\n")


def _log_offset(offset: str | None) -> int | None:
    parsed = json.loads(offset or "null")
    number = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return number if isinstance(number, int) else None
