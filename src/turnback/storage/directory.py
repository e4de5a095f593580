"""Directories: entered without following a link, there after a power cut, and locked.

Directories are synced here and nowhere else.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Self

from turnback.errors import StorageError
from turnback.storage.base import TEMPORARY

_PRIVATE = ".private-"
_LOCK = ".lock"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# Directories whose entry in their parent this process knows to be on disk: path and inode.
_durable: dict[str, int] = {}


class Access(Enum):
    """Who may read and change the directories and files that are made."""

    PRIVATE = "private"
    """Only their user; below a directory with the set-group-id bit also its group, as far as that
    has rights there."""
    UMASK = "umask"
    """Whoever the umask of the process allows, as for files that programs write for others."""

    def directory_mode(self, parent: os.stat_result) -> int:
        """The mode of a directory that is made in another one."""
        if self is Access.UMASK:
            return 0o777
        shared = stat.S_ISGID | 0o070 if parent.st_mode & stat.S_ISGID else 0
        return 0o700 | (parent.st_mode & shared)

    def file_mode(self, parent: os.stat_result) -> int:
        """The mode of a file that is made in a directory."""
        if self is Access.UMASK:
            return 0o666
        return 0o600 | (parent.st_mode & 0o060 if parent.st_mode & stat.S_ISGID else 0)

    def is_shared(self, mode: int) -> bool:
        """Whether a mode gives a group rights that the umask of this process must not take."""
        return self is Access.PRIVATE and bool(mode & 0o070)


@contextmanager
def descend(
    root: str,
    segments: Sequence[str],
    *,
    create: bool = False,
    access: Access = Access.PRIVATE,
) -> Iterator[int]:
    """Open the directory `root/segments...` and yield its file descriptor.

    Links in the root, an absolute path, are the user's own and are followed; one below it is
    refused with ELOOP. With `create` what is missing is made, and no directory on the way is lost
    in a power cut.
    """
    folder = _open_root(root, create, access)
    try:
        path = root
        for segment in segments:
            path = f"{path}/{segment}"
            if create:
                child = _enter_or_create(folder, segment, path, access)
            else:
                child = enter(folder, segment)
            os.close(folder)
            folder = child
        yield folder
    finally:
        os.close(folder)


def enter(folder: int, name: str) -> int:
    """Open the directory of this name in an open directory; a link is refused."""
    try:
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            entry_mode(folder, name)
        raise


@contextmanager
def subdirectory(folder: int, name: str) -> Iterator[int | None]:
    """Open a directory in an open directory; None if it has just been removed."""
    try:
        child = enter(folder, name)
    except FileNotFoundError:  # removed as empty a moment ago
        yield None
        return
    try:
        yield child
    finally:
        os.close(child)


def entry_mode(folder: int, name: str) -> int:
    """Return the mode of an entry of an open directory, 0 if there is none; refuse a link."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0
    if stat.S_ISLNK(mode):
        raise link_refused(name)
    return mode


def link_refused(name: str) -> OSError:
    """Return the error for a link inside the root."""
    return OSError(errno.ELOOP, "a symbolic link, which is never followed inside a storage", name)


def make_directories(path: Path, access: Access) -> None:
    """Make a directory and its parents; the names of new ones are durable on return."""
    if not path.is_dir():
        _make_directory(path, access)


def sync_upwards(path: Path, top: Path) -> None:
    """Make the names in a directory and in all above it, up to and with `top`, durable.

    All of them, even those another process made: that may not have come to its own sync yet.
    """
    sync_directory(path)
    while path != top:
        path = path.parent
        sync_directory(path)


def forget(path: str) -> None:
    """Take note that the directory of an absolute path is gone; a new one may get its inode."""
    _durable.pop(path, None)


def sync_directory(folder: int | Path) -> None:
    """Make the entries of a directory durable, which is given open or by its path."""
    if isinstance(folder, Path):
        opened = os.open(folder, _FLAGS)
        try:
            sync_directory(opened)
        finally:
            os.close(opened)
        return
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems cannot sync a directory, because its entries never wait.
        if error.errno != errno.EINVAL:
            raise


def _open_root(root: str, create: bool, access: Access) -> int:
    try:
        try:
            folder = os.open(root, _FLAGS)
        except FileNotFoundError:
            if Path(root).is_symlink():
                raise StorageError(f"{root} is a link to a directory that does not exist") from None
            if not create:
                raise
            make_directories(Path(root), access)
            folder = os.open(root, _FLAGS)
    except NotADirectoryError:
        raise StorageError(f"{root} is not a directory; nothing can be stored below it") from None
    if create and _is_new(folder, root):
        # Someone else's parent directory may be closed to us; then it is not ours to sync either.
        with suppress(PermissionError):
            sync_directory(Path(root).parent)
        _remember(folder, root)
    return folder


def _make_directory(path: Path, access: Access) -> None:
    # Synced also when another process is quicker: that may not have come to its own sync yet.
    try:
        _make_one(path, access)
    except FileNotFoundError:
        _make_directory(path.parent, access)
        _make_one(path, access)
    sync_directory(path.parent)


def _make_one(path: Path, access: Access) -> None:
    mode = access.directory_mode(path.parent.stat())
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if access.is_shared(mode):
        with suppress(OSError):
            path.chmod(mode)


def _make_entry(folder: int, name: str, access: Access) -> None:
    """Make a directory in an open directory, unless there is something of this name."""
    mode = access.directory_mode(os.fstat(folder))
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return
    if access.is_shared(mode):
        with suppress(OSError):
            os.chmod(name, mode, dir_fd=folder)


def _enter_or_create(folder: int, name: str, path: str, access: Access) -> int:
    try:
        child = enter(folder, name)
    except FileNotFoundError:
        forget(path)
        _make_entry(folder, name, access)
        child = enter(folder, name)
    try:
        # Also when another process made it: that one may not have come to its sync yet.
        if _is_new(child, path):
            sync_directory(folder)
            _remember(child, path)
    except BaseException:
        os.close(child)
        raise
    return child


def _is_new(folder: int, path: str) -> bool:
    return _durable.get(path) != os.fstat(folder).st_ino


def _remember(folder: int, path: str) -> None:
    if len(_durable) > 100_000:
        _durable.clear()
    _durable[path] = os.fstat(folder).st_ino


def find_leftovers(folder: int, prefix: str = "", *, remove: bool = False) -> dict[str, int]:
    """Return the temporary files of dead writers below an open directory, with their sizes.

    With `remove` they are deleted, and those that cannot be deleted are left out.
    """
    sizes: dict[str, int] = {}
    for name in os.listdir(folder):
        if name.startswith(TEMPORARY):
            with _abandoned(folder, name) as file, suppress(OSError):
                if file is not None:
                    size = os.fstat(file).st_size
                    if remove:
                        os.unlink(name, dir_fd=folder)
                    sizes[prefix + name] = size
        elif stat.S_ISDIR(entry_mode(folder, name)):
            with subdirectory(folder, name) as child:
                if child is not None:
                    sizes |= find_leftovers(child, f"{prefix}{name}/", remove=remove)
    return sizes


@contextmanager
def _abandoned(folder: int, name: str) -> Iterator[int | None]:
    """Open and lock a temporary file whose writer has ended; None if it is still written."""
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

        The directory that it is in is made if it is missing. If nobody else wants it later, it is
        `private`, and the lock file goes on release.
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
    lock = None
    while lock is None:
        beside = directory.with_name(f"{directory.name}{_PRIVATE}{secrets.token_hex(8)}")
        lock = DirectoryLock.take(beside, private=True)
    return lock


def sweep_private(directory: Path) -> None:
    """Remove private directories whose process died."""
    for beside in directory.parent.glob(f"{glob.escape(directory.name)}{_PRIVATE}*"):
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
            make_directories(directory.parent, Access.PRIVATE)


def _is_current(descriptor: int, directory: Path) -> bool:
    """Whether a lock file is still the one that others would open: its last owner may remove it."""
    try:
        return os.path.samestat(os.fstat(descriptor), _lock_file(directory).stat())
    except FileNotFoundError:
        return False


def _lock_file(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}{_LOCK}")
