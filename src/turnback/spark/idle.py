"""Lets an idle query wait for files, instead of asking for them again and again.

Spark asks every source ten times a second whether it has something new, and each time lists the
directories of file sources, which costs milliseconds of processor time. Here the directories are
looked at, when the kernel tells that something has happened in them or, where it does not, thirty
times a second, and Spark only asks when their modification times have changed, or a second has
passed: not every file system can be relied on to tell. Queries that read something else as well go
on asking.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from turnback.spark.internals import streaming_nodes, unless_jvm_lost

_LIBC = ctypes.CDLL(None)
_HAPPENS = 0x40 | 0x80 | 0x100 | 0x200
"""In terms of inotify: a file is moved away, moved here, made or deleted."""
_ONLY_DIRECTORIES = 0x01000000
_RINGS = 1 << 16


class WakeSignal:
    """One thread waits, any other may notify. Nobody may wait any more when it is closed.

    If it `hears_files` it also wakes for directories; only Linux can do that here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._inotify = _open_inotify()
        self._poll = select.poll()
        self._poll.register(self._read_fd, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify, select.POLLIN)

    @property
    def hears_files(self) -> bool:
        return self._inotify is not None

    def listen_to(self, directories: Iterable[Path]) -> None:
        """Wake when something happens in these; those that are gone, or too many, are left out."""
        if self._inotify is not None:
            for directory in directories:
                name = os.fsencode(directory)
                _LIBC.inotify_add_watch(self._inotify, name, _HAPPENS | _ONLY_DIRECTORIES)

    def notify(self) -> None:
        """Wake who waits, or who will wait next."""
        with self._lock, suppress(BlockingIOError):  # it has been rung often enough
            if not self._is_closed:
                os.write(self._write_fd, b"\0")

    def wait(self, seconds: float) -> None:
        """Wait until it is rung or something happens, for so long at most."""
        for descriptor, _ in self._poll.poll(max(0, seconds) * 1000):
            with suppress(BlockingIOError):
                os.read(descriptor, _RINGS)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for descriptor in (self._read_fd, self._write_fd, self._inotify):
            if descriptor is not None:
                os.close(descriptor)


def _open_inotify() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    descriptor = int(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None  # a user may have 128 of them


LOOK_S = 0.03
"""Time between two looks at directories that the kernel tells nothing of."""
QUIET_S = 0.5
"""Spark goes on asking until nothing has happened for so long."""
ASK_S = 1.0
"""How long Spark is kept from asking at most."""
THREAD = "turnback-idle"
_GAP_S = 0.05
"""How long Spark may ask then: it needs the lock twice, before and after."""
_RECENT_NS = 50_000_000
"""A directory may change once more without a later modification time, as kernels round it."""
_MANY = 1000
"""Trees with more directories are not watched."""
_FILE_SOURCE = re.compile(r"FileSource\[(?P<path>[^*?{}\[\]]+)\]")
"""What Spark calls a stream of files, if its path is not a pattern."""


class Lock(Protocol):
    """What a query needs to ask its sources; has to be fair."""

    def lock(self) -> None:
        """Take it, after all who have waited before."""

    def unlock(self) -> None:
        """Give it back; in the thread that has taken it."""


class Watch:
    """Tells whether files may have come into directories, or into those below them."""

    def __init__(self, roots: Sequence[Path], wake_signal: WakeSignal | None = None) -> None:
        self._roots = roots
        self._wake_signal = wake_signal
        self._modified = self._tree()

    def has_changed(self) -> bool:
        """Whether something may have changed since this was called before."""
        if len(self._modified) > _MANY:
            return True
        now = time.time_ns()
        try:
            same = all(path.stat().st_mtime_ns == ns for path, ns in self._modified.items())
        except FileNotFoundError:
            same = False
        if same and self._modified:
            return any(now - ns < _RECENT_NS for ns in self._modified.values())
        self._modified = self._tree()
        return True

    def _tree(self) -> dict[Path, int]:
        """The modification times of all directories, of few more than `_MANY` at most."""
        modified: dict[Path, int] = {}
        for root in self._roots:
            for name, _, _ in os.walk(root):
                path = Path(name)
                try:
                    modified[path] = path.stat().st_mtime_ns
                except FileNotFoundError:
                    continue
                if len(modified) > _MANY:
                    return modified
        if self._wake_signal is not None:
            self._wake_signal.listen_to(modified)
        return modified


class IdleQuery:
    """Keeps a query from asking its sources while there is nothing to be had.

    `lock` is one that the query takes to ask, `roots` are the directories it reads. The lock is
    given back as soon as an epoch begins, and every second, so whatever goes unnoticed here comes a
    second later.
    """

    def __init__(self, lock: Lock, roots: Sequence[Path]) -> None:
        self._lock = lock
        self._wake_signal = WakeSignal()
        self._watch = Watch(roots, self._wake_signal)
        self._begun = self._ended = 0
        self._is_over = False

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Let the query go on until this epoch has ended, and a moment longer."""
        self._begun += 1
        self._wake_signal.notify()
        try:
            yield
        finally:
            self._ended += 1
            self._wake_signal.notify()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch in a thread of its own, until the end of the block."""
        thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._wake_signal.notify()
            thread.join()
            self._wake_signal.close()

    def _run(self) -> None:
        with unless_jvm_lost("watching for files"):
            while not self._is_over:
                begun = self._begun
                is_quiet = not self._wait_for_epoch(begun, QUIET_S) and self._ended == begun
                if is_quiet and not self._watch.has_changed():
                    self._hold_back(begun)

    def _hold_back(self, begun: int) -> None:
        """Keep the query waiting until something happens, but for moments to ask every second."""
        has_happened = False
        while not has_happened:
            self._lock.lock()
            try:
                has_happened = self._wait_for_anything(begun)
            finally:
                self._lock.unlock()
            has_happened = has_happened or self._wait_for_epoch(begun, _GAP_S)

    def _wait_for_anything(self, begun: int) -> bool:
        until = time.monotonic() + ASK_S
        longest = ASK_S if self._wake_signal.hears_files else LOOK_S
        while not self._has_begun(begun) and not self._watch.has_changed():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._wake_signal.wait(min(left, longest))
        return True

    def _wait_for_epoch(self, begun: int, seconds: float) -> bool:
        """Whether within this time another epoch begins, or the query ends."""
        until = time.monotonic() + seconds
        while not self._has_begun(begun) and (left := until - time.monotonic()) > 0:
            self._wake_signal.wait(left)
        return self._has_begun(begun)

    def _has_begun(self, begun: int) -> bool:
        return self._is_over or self._begun > begun


@contextmanager
def saving_idle_time(query: StreamingQuery, sources: DataFrame) -> Iterator[IdleQuery | None]:
    """Spare a query over local files from asking for new ones, until the end of the block.

    Its lock is one that Spark holds while it asks, and takes for a moment at the end of a batch. It
    is not documented; without it, the query would have to go on asking.
    """
    directories = [_directory(leaf) for leaf in streaming_nodes(sources)[0]]
    known = [directory for directory in directories if directory is not None]
    if len(known) < len(directories):
        yield None
        return
    lock = cast(Lock, query._jsq.streamingQuery().awaitProgressLock())
    idle = IdleQuery(lock, known)
    with idle.watching():
        yield idle


def _directory(leaf: Any) -> Path | None:
    """The local directory that a stream reads; None if it reads something else."""
    name = leaf.sourceName() if leaf.nodeName() == "StreamingRelation" else ""
    match = _FILE_SOURCE.fullmatch(name)
    if match is None:
        return None
    url = urlsplit(match["path"])
    is_local = url.scheme in ("", "file") and not url.netloc and Path(url.path).is_dir()
    return Path(url.path).absolute() if is_local else None
