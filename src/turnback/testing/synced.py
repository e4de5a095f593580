"""Which files are written and not synced: what a power cut would take.

Seen is what Python code opens, by `open` or `os.open`; not what libraries in C write by themselves,
nor whether a directory is synced after a rename.
"""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

_SYNCED_BY_ITSELF = getattr(os, "O_SYNC", 0) | getattr(os, "O_DSYNC", 0)


@dataclass
class _Written:
    """A file that was opened for writing, held open so that it can be found by whatever name."""

    name: str
    held: int
    synced: tuple[int, int] | None = None

    def state(self) -> tuple[int, int]:
        found = os.fstat(self.held)
        return found.st_size, found.st_mtime_ns

    def is_lost(self) -> bool:
        """Whether it is still there, and was changed since it was last synced."""
        found = os.fstat(self.held)
        return found.st_nlink > 0 and found.st_size > 0 and self.synced != self.state()


class _Files:
    def __init__(self) -> None:
        self._files: dict[tuple[int, int], _Written] = {}

    def opened(self, name: object, descriptor: int) -> None:
        found = os.fstat(descriptor)
        inode = (found.st_dev, found.st_ino)
        if stat.S_ISREG(found.st_mode) and inode not in self._files:
            self._files[inode] = _Written(str(name), os.dup(descriptor))

    def synced(self, file: Any) -> None:
        found = os.fstat(file if isinstance(file, int) else file.fileno())
        written = self._files.get((found.st_dev, found.st_ino))
        if written is not None:
            written.synced = written.state()

    def lost(self) -> list[str]:
        return sorted(written.name for written in self._files.values() if written.is_lost())

    def close(self) -> None:
        for written in self._files.values():
            os.close(written.held)


@contextmanager
def unsynced_files() -> Iterator[list[str]]:
    """Watch this process; the list has the names of such files when the block has ended."""
    files = _Files()
    unsynced: list[str] = []
    with ExitStack() as patches:
        _wrap(patches, builtins, "open", _open_watched(files))
        _wrap(patches, io, "open", _open_watched(files))
        _wrap(patches, os, "open", _os_open_watched(files))
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                _wrap(patches, os, name, _sync_watched(files))
        try:
            yield unsynced
        finally:
            unsynced += files.lost()
            files.close()


Call = Callable[..., Any]


def _wrap(patches: ExitStack, owner: Any, name: str, wrapper: Callable[[Call], Call]) -> None:
    original = getattr(owner, name)
    patches.callback(setattr, owner, name, original)
    setattr(owner, name, wrapper(original))


def _open_watched(files: _Files) -> Callable[[Call], Call]:
    def wrapper(original: Call) -> Call:
        def watched(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            opened = original(file, mode, *more, **named)
            if set(mode) & set("wax+"):
                files.opened(file, opened.fileno())
            return opened

        return watched

    return wrapper


def _os_open_watched(files: _Files) -> Callable[[Call], Call]:
    def wrapper(original: Call) -> Call:
        def watched(path: Any, flags: int, *more: Any, **named: Any) -> Any:
            descriptor = original(path, flags, *more, **named)
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            if writes and not flags & _SYNCED_BY_ITSELF:
                files.opened(path, descriptor)
            return descriptor

        return watched

    return wrapper


def _sync_watched(files: _Files) -> Callable[[Call], Call]:
    def wrapper(original: Call) -> Call:
        def watched(file: Any) -> Any:
            original(file)
            files.synced(file)

        return watched

    return wrapper
