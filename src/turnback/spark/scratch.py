"""Spark's checkpoint directory: scratch, local to the driver, one per attempt.

It is seeded from a snapshot's positions, and read after every batch to learn the new
ones. It is never the truth: the manifest is.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.core.errors import CheckpointError
from turnback.storage.base import Storage
from turnback.storage.directory import DirectoryLock, locked_directory
from turnback.storage.envelope import check, digest

_LOG = logging.getLogger(__name__)
_BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
_SEEDED = (0, 1)
"""Spark asks sources for the last batch once more when it starts. It is to be an empty one: a file
source would look at every file it has ever seen, and refuse those that are elsewhere now."""
_NOTHING = "-"
_FIRST_ENTRY = '{"logOffset":0}'  # exactly as Spark writes it, or it takes it for another offset
_PREFIX = "turnback-spark-"


class Scratch:
    """One attempt's Spark checkpoint directory."""

    def __init__(self, leaves: Sequence[str]) -> None:
        self.leaves = tuple(leaves)
        _sweep()
        self._lock = _lock_new()
        self.path = self._lock.directory

    def seed(self, offsets: Mapping[str, str | None], logs: Mapping[str, Sequence[str]]) -> None:
        """Make Spark go on from positions.

        Args:
            offsets: Spark's offset of each leaf; a leaf without one starts at its beginning.
            logs: For leaves that keep a list of files seen, the entries of that list.
        """
        if all(offsets.get(leaf) is None for leaf in self.leaves):
            return  # a fresh start
        (self.path / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        lines = ["v1", _BATCH]
        for i, leaf in enumerate(self.leaves):
            offset = offsets.get(leaf)
            if offset is not None and leaf in logs:
                self._seed_log(i, logs[leaf])
                offset = _FIRST_ENTRY
            lines.append(_NOTHING if offset is None else offset)
        for batch in _SEEDED:
            self._write(f"offsets/{batch}", "\n".join(lines))
            self._write(f"commits/{batch}", _COMMIT)

    def offsets(self, batch: int) -> dict[str, str | None]:
        """The position of every leaf after a batch, as Spark wrote it before running the batch."""
        lines = (self.path / "offsets" / str(batch)).read_text().split("\n")
        found = lines[2:]
        if lines[0] != "v1" or len(found) != len(self.leaves):
            raise CheckpointError(
                f"Spark's offset log for batch {batch} has {len(found)} positions in format "
                f"{lines[0]!r}, expected {len(self.leaves)} in 'v1'"
            )
        return {
            leaf: None if line == _NOTHING else line
            for leaf, line in zip(self.leaves, found, strict=True)
        }

    def log_entries(self, leaf: str, after: int, upto: int) -> list[str] | None:
        """Entries of a leaf's list of files seen; None when it keeps no such list."""
        directory = self.path / "sources" / str(self.leaves.index(leaf))
        if not directory.is_dir():
            return None
        entries: list[str] = []
        for number in range(after + 1, upto + 1):
            entries += self._entries_of(directory, number)
        return entries

    def remove(self) -> None:
        """Throw the directory away."""
        self._lock.remove()
        self._lock.release()

    def _entries_of(self, directory: Path, number: int) -> list[str]:
        plain, compact = directory / str(number), directory / f"{number}.compact"
        if plain.is_file():
            return plain.read_text().split("\n")[1:]
        if not compact.is_file():
            return []  # Spark writes no entry for a batch in which this source had nothing
        lines = compact.read_text().split("\n")[1:]
        return [line for line in lines if json.loads(line)["batchId"] == number]

    def _seed_log(self, index: int, entries: Sequence[str]) -> None:
        rewritten = [json.dumps({**json.loads(entry), "batchId": 0}) for entry in entries]
        self._write(f"sources/{index}/0", "\n".join(["v1", *rewritten]))

    def _write(self, name: str, text: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def _lock_new() -> DirectoryLock:
    """Make a new directory, locked before it exists, so that no other driver sweeps it away."""
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
    left: dict[Path, list[Path]] = {}
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        left.setdefault(locked_directory(path), []).append(path)
    for directory, entries in sorted(left.items()):
        try:
            # The directory of temporary files is open to all users.
            if any(path.lstat().st_uid != os.getuid() for path in entries):
                continue
            if entries == [directory] and not _is_of_an_earlier_boot(directory):
                continue
            lock = DirectoryLock.take(directory)
        except OSError as error:
            _LOG.debug("%s is left alone: %s", directory, error)
            continue
        if lock is not None:
            lock.remove()
            lock.release()


def _is_of_an_earlier_boot(directory: Path) -> bool:
    """Whether a directory without a lock, as older versions made them, has surely no driver."""
    found = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    changed = max(path.lstat().st_mtime for path in (directory, *directory.rglob("*")))
    return found is not None and changed < int(found[1])


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
        for leaf, offset in offsets.items():
            number = _log_offset(offset)
            if number is not None:
                new = read(leaf, self._upto.get(leaf, -1), number)
                if new is not None:
                    self._upto[leaf] = number
                    if new:
                        self._append(leaf, new)
            positions[leaf] = SourcePosition(offset, tuple(self._segments.get(leaf, ())))
        return positions

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
    if offset is None:
        return None
    parsed = json.loads(offset)
    number = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return number if isinstance(number, int) else None
