"""The positions of sources, as checkpoints hold them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Mapping

import msgspec

from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.plan.bad_records import plain_path
from turnback.storage.base import Storage
from turnback.storage.envelope import check, digest

EntryReader = Callable[[str, int, int], list[str] | None]
"""(leaf, after, upto) -> entries of its list of files seen, or None if it keeps none."""

_KEPT_BYTES = 1 << 20

SIZE = "size"
"""What an entry of such a list has besides what Spark writes: bytes of a file of this machine."""


class Positions:
    """The positions of all sources, kept so that a checkpoint costs what is new.

    A file source's position is the list of files it has seen. It is kept as segments that are
    merged like a binary counter: few of them at any time, each entry rewritten rarely. Leaves that
    are `sized` read files of this machine, whose sizes are noted when an epoch takes them in, for
    Spark notes none.
    """

    def __init__(self, storage: Storage, attempt: int, sized: Collection[str] = ()) -> None:
        self._storage = storage
        self._attempt = attempt
        self._sized = frozenset(sized)
        self._sizes: dict[str, int | None] = {}
        """Of files that the epoch reads; the first look counts, which is before tasks read them."""
        self._segments: dict[str, list[LogFile]] = {}
        self._written: dict[str, list[str]] = {}
        """The entries of small segments by path, which will be merged soon."""
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
        self._sizes.clear()
        return positions

    def new_entries(
        self, offsets: Mapping[str, str | None], read: EntryReader
    ) -> dict[str, list[str]]:
        """What an epoch adds to lists of files seen, of sources that keep one.

        To be called before its tasks begin to read: what files grow by then is not noticed.
        """
        entries: dict[str, list[str]] = {}
        for leaf, offset in offsets.items():
            number = _log_offset(offset)
            new = None if number is None else read(leaf, self._upto.get(leaf, -1), number)
            if new is not None:
                entries[leaf] = list(map(self._with_size, new)) if leaf in self._sized else new
        return entries

    def _with_size(self, entry: str) -> str:
        fields = msgspec.json.decode(entry)
        path = fields["path"]
        if path not in self._sizes:
            self._sizes[path] = _size(plain_path(path))
        size = self._sizes[path]
        return entry if size is None else msgspec.json.encode({**fields, SIZE: size}).decode()

    def _append(self, leaf: str, entries: list[str]) -> None:
        segments = self._segments.setdefault(leaf, [])
        size = sum(map(len, entries))
        while segments and segments[-1].length < 2 * size:
            older = segments.pop()
            entries = (self._written.pop(older.path, None) or self._read(older)) + entries
            size += older.length
        segments.append(self._write(entries))

    def _write(self, entries: list[str]) -> LogFile:
        data = "\n".join(entries).encode()
        name = f"files-seen-{uuid.uuid4().hex}.jsonl"
        path = f"offsets/{self._attempt}/{name}"
        self._storage.put(path, data)
        if len(data) <= _KEPT_BYTES:
            self._written[path] = entries
        return LogFile(name, path, len(data), digest(data))

    def _read(self, segment: LogFile) -> list[str]:
        data = self._storage.get(segment.path)
        check(data, segment.length, segment.digest, segment.path)
        return data.decode().split("\n")


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - there may be a great many files
    except OSError:
        return None  # it is elsewhere by now: of one that comes back only the time is compared


def _log_offset(offset: str | None) -> int | None:
    parsed = json.loads(offset or "null")
    number = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return number if isinstance(number, int) else None
