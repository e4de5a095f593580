"""Temporary files whose writers were killed. A writer that lives holds a lock on its file."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from turnback.storage.base import TEMPORARY
from turnback.storage.directory import entry_mode, subdirectory


def remove_leftovers(folder: int) -> int:
    """Delete the temporary files of dead writers below an open directory; return how many."""
    removed = 0
    for name in os.listdir(folder):
        if name.startswith(TEMPORARY):
            removed += _remove_if_dead(folder, name)
        elif stat.S_ISDIR(entry_mode(folder, name)):
            with subdirectory(folder, name) as child:
                if child is not None:
                    removed += remove_leftovers(child)
    return removed


def find_leftovers(folder: int, prefix: str, found: dict[str, int]) -> None:
    """Add what `remove_leftovers` would delete, with the bytes of each file."""
    for name in os.listdir(folder):
        if name.startswith(TEMPORARY):
            with _dead(folder, name) as file:
                if file is not None:
                    found[prefix + name] = os.fstat(file).st_size
        elif stat.S_ISDIR(entry_mode(folder, name)):
            with subdirectory(folder, name) as child:
                if child is not None:
                    find_leftovers(child, f"{prefix}{name}/", found)


def _remove_if_dead(folder: int, name: str) -> bool:
    with _dead(folder, name) as file:
        if file is None:
            return False
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:
            return False
    return True


@contextmanager
def _dead(folder: int, name: str) -> Iterator[int | None]:
    """Open and lock a temporary file whose writer is gone; None if that lives."""
    try:
        file = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
        else:
            yield file
    finally:
        os.close(file)
