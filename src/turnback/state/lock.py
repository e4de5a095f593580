from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path
from typing import Self

_PRIVATE = ".private-"


class DirectoryLock:
    """An exclusive lock on a directory, held by this process until released or dead."""

    def __init__(self, directory: Path, descriptor: int, private: bool) -> None:
        self.directory = directory
        self.private = private
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path, private: bool = False) -> Self | None:
        """Lock a directory, which need not exist; None when another holds the lock."""
        descriptor = os.open(_lock_file(directory), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(directory, descriptor, private)

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
        if beside.suffix == ".lock":
            continue
        lock = DirectoryLock.take(beside, private=True)
        if lock is not None:
            shutil.rmtree(beside, ignore_errors=True)
            lock.release()


def _lock_file(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.lock")


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
