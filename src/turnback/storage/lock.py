from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path
from typing import Self

_PRIVATE = ".private-"
_LOCK = ".lock"


class DirectoryLock:
    """An exclusive lock on a directory, held by this process until released or dead.

    Whoever wants to use or to remove the directory takes the lock first. It is a file beside the
    directory, and holds for all processes of the machine, whichever of them can see each other.
    """

    def __init__(self, directory: Path, descriptor: int, private: bool) -> None:
        self.directory = directory
        self.private = private
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path, private: bool = False) -> Self | None:
        """Lock a directory, which need not exist; None when another holds the lock.

        Args:
            directory: What to lock. The directory that it is in is made if it is missing.
            private: Nobody else wants the directory later, so the lock file goes on release.
        """
        while True:
            descriptor = _open_lock_file(directory)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_current(descriptor, directory):
                    return cls(directory, descriptor, private)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the directory with all that is in it, and the lock file on release."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.private = True

    def release(self) -> None:
        """Let others have the directory; once is enough."""
        if self.private:
            _lock_file(self.directory).unlink(missing_ok=True)
        os.close(self._descriptor)


def take_private(directory: Path) -> DirectoryLock:
    """Lock a new directory beside one that another process holds."""
    while True:
        beside = directory.with_name(f"{directory.name}{_PRIVATE}{secrets.token_hex(8)}")
        lock = DirectoryLock.take(beside, private=True)
        if lock is not None:
            return lock


def sweep_private(directory: Path) -> None:
    """Remove private directories whose process died."""
    for beside in directory.parent.glob(f"{_escaped(directory.name)}{_PRIVATE}*"):
        if beside.suffix == _LOCK:
            continue
        lock = DirectoryLock.take(beside, private=True)
        if lock is not None:
            lock.remove()
            lock.release()


def locked_directory(path: Path) -> Path:
    """The directory that a lock file is for; any other path as it is."""
    return path.with_name(path.name.removesuffix(_LOCK))


def _open_lock_file(directory: Path) -> int:
    while True:
        try:
            return os.open(_lock_file(directory), os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # also when it was removed as empty a moment ago
            directory.parent.mkdir(parents=True, exist_ok=True)


def _is_current(descriptor: int, directory: Path) -> bool:
    """Whether a lock file is still the one that others would open: its last owner may remove it."""
    try:
        return os.path.samestat(os.fstat(descriptor), _lock_file(directory).stat())
    except FileNotFoundError:
        return False


def _lock_file(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}{_LOCK}")


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
