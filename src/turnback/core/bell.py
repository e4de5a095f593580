"""Waits for a ring, or for something to happen in directories, without looking all the time."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_HAPPENS = 0x40 | 0x80 | 0x100 | 0x200
"""In terms of inotify: a file is moved away, moved here, made or deleted."""
_ONLY_DIRECTORIES = 0x01000000
_MANY = 1 << 16


class Bell:
    """One thread waits, any other may ring. Nobody may wait any more when it is closed.

    Attributes:
        hears_files: Whether it also wakes for directories; only Linux can do that here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._ear, self._clapper = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._clapper, False)
        self._inotify = _open_inotify()
        self._poll = select.poll()
        self._poll.register(self._ear, select.POLLIN)
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

    def ring(self) -> None:
        """Wake who waits, or who will wait next."""
        with self._lock, suppress(BlockingIOError):  # it has been rung often enough
            if not self._is_closed:
                os.write(self._clapper, b"\0")

    def wait(self, seconds: float) -> None:
        """Wait until it is rung or something happens, for so long at most."""
        for descriptor, _ in self._poll.poll(max(0, seconds) * 1000):
            with suppress(BlockingIOError):
                os.read(descriptor, _MANY)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for descriptor in (self._ear, self._clapper, self._inotify):
            if descriptor is not None:
                os.close(descriptor)


def _open_inotify() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    descriptor = int(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None  # a user may have 128 of them
