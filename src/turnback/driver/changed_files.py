"""Looks now and then whether files were changed after a source has read them.

Spark reads a file once, by its name. Its list of files seen, which is part of every checkpoint,
tells when each was last changed at that time; Turnback adds how large it was (`Positions`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from turnback.checkpoint.manifest import LogFile
from turnback.plan.malformed import plain_path
from turnback.plan.sources import WatchedFiles
from turnback.storage.base import Storage
from turnback.storage.envelope import check

_LOG = logging.getLogger(__name__)
_PAUSE_S = 5.0
_REST = 50
"""It rests so many times as long as a look has taken, so millions of files cost next to nothing."""
_AT_ONCE = 50_000


class FileState(NamedTuple):
    """A file as it is now."""

    path: str
    changed_ms: int
    """When it was last changed, in milliseconds since 1970."""
    size: int


class _Entry(msgspec.Struct):
    """An entry of the list of files seen; of files read by older versions, no size is known."""

    path: str
    timestamp: int
    size: int | None = None


class _Part(NamedTuple):
    """A part of that list, by columns."""

    hashes: pa.Array
    times: pa.Array
    sizes: pa.Array


class SeenFiles:
    """When files were changed that have been read, and their sizes: 24 bytes for each."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._parts: dict[str, _Part] = {}

    def update(self, log: Sequence[LogFile]) -> None:
        """Take over the list of a position, which is kept in parts; known ones are not read."""
        self._parts = {part.path: self._parts.get(part.path) or self._read(part) for part in log}

    def changed(self, files: Sequence[FileState]) -> list[FileState]:
        """Those of some files that were read and have been changed since.

        Copies may keep the time of what they are copies of (`cp -p`, `rsync -a`), and some file
        systems know whole seconds only, so another size is a change as well.
        """
        hashes = pa.array([_hash(file.path) for file in files], pa.uint64())
        times = pa.array([file.changed_ms for file in files], pa.int64())
        sizes = pa.array([file.size for file in files], pa.int64())
        found: list[FileState] = []
        for part in self._parts.values():
            places = pc.index_in(hashes, value_set=part.hashes)
            newer = _differ_in_time(times, part.times.take(places))
            # What is not known, of files that were not read too, is no difference.
            resized = pc.fill_null(pc.not_equal(sizes, part.sizes.take(places)), False)
            changed = pc.or_(newer, resized)
            found += [files[place] for place in pc.indices_nonzero(changed).to_pylist()]
        return found

    def _read(self, part: LogFile) -> _Part:
        data = self._storage.get(part.path)
        check(data, part.length, part.digest, part.path)
        entries = [msgspec.json.decode(line, type=_Entry) for line in data.split(b"\n") if line]
        return _Part(
            pa.array([_hash(plain_path(entry.path)) for entry in entries], pa.uint64()),
            pa.array([entry.timestamp for entry in entries], pa.int64()),
            pa.array([entry.size for entry in entries], pa.int64()),
        )


def _differ_in_time(now: pa.Array, then: pa.Array) -> pa.Array:
    # Some file systems, and Java on them, know whole seconds only.
    whole = pc.equal(pc.multiply(pc.divide(then, 1000), 1000), then)
    comparable = pc.if_else(whole, pc.multiply(pc.divide(now, 1000), 1000), now)
    return pc.fill_null(pc.not_equal(comparable, then), False)


def _hash(path: str) -> int:
    return xxhash.xxh3_64_intdigest(path.encode("utf-8", "surrogateescape"))


class FilesWatch:
    """Over the files of one source.

    Args:
        watched: Where they are.
        seen: Those that were read.
        log: Gives the list of files seen as of now; None while the job does not run.
        on_changed: Told which files were found to be changed, each once.
    """

    def __init__(
        self,
        watched: WatchedFiles,
        seen: SeenFiles,
        log: Callable[[], Sequence[LogFile] | None],
        on_changed: Callable[[list[str]], None],
    ) -> None:
        self._watched = watched
        self._seen = seen
        self._log = log
        self._on_changed = on_changed
        self._told: set[str] = set()
        self._is_failing = False

    def run(self, done: threading.Event) -> None:
        """Look again and again until the job is done."""
        pause = min(0.2, _PAUSE_S)
        while not done.wait(pause):
            log = self._log()
            if log:
                began = time.monotonic()
                self._try(log)
                pause = max(_PAUSE_S, _REST * (time.monotonic() - began))

    def look(self, log: Sequence[LogFile]) -> None:
        """Look once, and tell what has not been told yet."""
        self._seen.update(log)
        files = _files(self._watched.path)
        new: list[str] = []
        while some := list(islice(files, _AT_ONCE)):
            changed = self._seen.changed(some)
            new += [file.path for file in changed if file.path not in self._told]
        if new:
            self._told.update(new)
            self._on_changed(sorted(new))

    def _try(self, log: Sequence[LogFile]) -> None:
        try:
            self.look(log)
            self._is_failing = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            if not self._is_failing:
                where = self._watched.path
                _LOG.warning("whether files in %s are changed is not known: %s", where, error)
            self._is_failing = True


def _files(path: str) -> Iterator[FileState]:
    """The file of a path, or all files below it, except hidden ones."""
    status = Path(path).stat()
    if S_ISREG(status.st_mode):
        yield _state(path, status)
        return
    waiting = [path]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name[0] in "._":
                    continue
                try:
                    if entry.is_dir():
                        waiting.append(entry.path)
                    else:
                        yield _state(entry.path, entry.stat())
                except FileNotFoundError:
                    continue  # moved away a moment ago


def _state(path: str, status: os.stat_result) -> FileState:
    return FileState(path, status.st_mtime_ns // 1_000_000, status.st_size)
