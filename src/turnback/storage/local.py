"""Files below a directory of a local or mounted file system."""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from turnback.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from turnback.storage.base import TEMPORARY, split_path, split_prefix
from turnback.storage.directory import (
    Access,
    descend,
    entry_mode,
    find_leftovers,
    forget,
    link_refused,
    subdirectory,
    sync_directory,
)

_TRIES = 100
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class LocalStorage:
    """A directory; written through hidden temporary files, every write synced to disk.

    The directory is created by the first write. Symbolic links on the way to it are followed,
    links inside it are refused. What is made there is private, see `Access`.
    """

    __slots__ = ("_access", "_root", "uri")

    def __init__(self, root: str | os.PathLike[str], access: Access = Access.PRIVATE) -> None:
        path = Path(root).absolute()
        self._access = access
        self._root = str(path)
        self.uri = f"file://{quote(self._root)}"
        try:
            usable = stat.S_ISDIR(path.stat().st_mode)
        except NotADirectoryError:
            usable = False
        except (OSError, ValueError):
            # Missing is fine. What cannot be checked now fails when it is used.
            usable = "\0" not in self._root
        if not usable:
            raise ConfigurationError(f"{path} cannot be used as storage: it is not a directory")

    def put(self, path: str, data: bytes) -> None:
        self._write(path, data, replace=True)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._write(path, data, replace=False)

    def get(self, path: str) -> bytes:
        *parents, name = split_path(path)
        missing = NotFoundError(f"{path} is not in {self.uri}")
        with self._storage_errors("read", path):
            try:
                with descend(self._root, parents) as folder:
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    if not stat.S_ISREG(entry_mode(folder, name)):
                        raise missing
                    with FileIO(os.open(name, flags, dir_fd=folder)) as file:
                        return file.readall()
            except (FileNotFoundError, NotADirectoryError):
                raise missing from None

    def list(self, prefix: str = "") -> builtins.list[str]:
        return sorted(self._files(prefix, lambda entry: 0))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        sizes = self._files(prefix, lambda entry: entry.stat(follow_symlinks=False).st_size)
        return dict(sorted(sizes.items()))

    def folders(self, prefix: str = "") -> builtins.list[str]:
        with self._listing(prefix) as folder:
            if folder is None:
                return []
            with os.scandir(folder) as entries:
                return sorted(e.name for e in entries if _is_folder(e))

    def delete(self, path: str) -> None:
        *parents, name = split_path(path)
        with self._storage_errors("delete", path):
            try:
                with descend(self._root, parents) as folder:
                    if not stat.S_ISDIR(entry_mode(folder, name)):
                        with suppress(FileNotFoundError):
                            os.unlink(name, dir_fd=folder)
                    # Callers delete in an order that matters, so each step has to last.
                    sync_directory(folder)
            except (FileNotFoundError, NotADirectoryError):
                return
            with suppress(OSError):
                while parents:
                    *parents, name = parents
                    with descend(self._root, parents) as folder:
                        os.rmdir(name, dir_fd=folder)
                    forget("/".join((self._root, *parents, name)))

    def leftovers(self, *, remove: bool = False) -> dict[str, int]:
        """Return the temporary files of writers that were killed, with their bytes.

        Files still being written by a live process, here or on another machine that shares the lock
        table, are not among them. With `remove` they are deleted; what cannot be is left out.
        """
        with self._storage_errors("clean" if remove else "list", "everything"):
            try:
                with descend(self._root, ()) as folder:
                    return dict(sorted(find_leftovers(folder, remove=remove).items()))
            except FileNotFoundError:
                return {}

    def _files(self, prefix: str, measure: Callable[[os.DirEntry[str]], int]) -> dict[str, int]:
        files: dict[str, int] = {}
        with self._listing(prefix) as folder:
            if folder is not None:
                _collect(folder, f"{prefix.rstrip('/')}/" if prefix else "", files, measure)
        return files

    @contextmanager
    def _listing(self, prefix: str) -> Iterator[int | None]:
        """Open a directory to list what is in it; None if there is no such directory."""
        segments = split_prefix(prefix)
        with self._storage_errors("list", prefix or "everything"), ExitStack() as stack:
            folder = None
            with suppress(FileNotFoundError, NotADirectoryError):
                folder = stack.enter_context(descend(self._root, segments))
            yield folder

    def _write(self, path: str, data: bytes, *, replace: bool) -> None:
        *parents, name = split_path(path)
        with self._storage_errors("write", path):
            for left in reversed(range(_TRIES)):
                try:
                    with descend(self._root, parents, create=True, access=self._access) as folder:
                        published = _publish(folder, name, data, replace, self._access)
                    break
                except FileNotFoundError:
                    # A delete in another process removed the directory as empty.
                    if not left:
                        raise
        if not published:
            raise AlreadyExistsError(f"{path} is already in {self.uri}")

    @contextmanager
    def _storage_errors(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')})"
            where = f" at {error.filename}" if isinstance(error.filename, str) else ""
            raise StorageError(f"cannot {action} {path} in {self.uri}: {what}{where}") from error

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str, Access]]:
        return LocalStorage, (self._root, self._access)

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"


def _publish(folder: int, name: str, data: bytes, replace: bool, access: Access) -> bool:
    """Write a file in full under a hidden name, then give it its own; False if that is taken."""
    if stat.S_ISDIR(entry_mode(folder, name)):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    mode = access.file_mode(os.fstat(folder))
    file = os.open(temporary, flags, mode, dir_fd=folder)
    try:
        if access.is_shared(mode):
            with suppress(OSError):
                os.fchmod(file, mode)
        # Tells `leftovers` that the writer lives; without lock support it keeps the file.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_all(file, data)
        os.fsync(file)
        if replace:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            published = True
        else:
            published = _link(folder, temporary, name)
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        os.close(file)
    # Also when the name was taken: what is reported as existing must not vanish.
    sync_directory(folder)
    return published


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _link(folder: int, temporary: str, name: str) -> bool:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        # NFS repeats a request whose reply was lost, and then finds our own link.
        ours = os.stat(temporary, dir_fd=folder, follow_symlinks=False)
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return os.path.samestat(ours, there)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            reason = "this file system has no hard links, which are needed to create a file once"
            raise OSError(error.errno, reason) from error
        raise
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(TEMPORARY) or not entry.is_dir(follow_symlinks=False):
        return False
    # Names that are no Unicode cannot be part of a path.
    return not any("\ud800" <= char <= "\udfff" for char in entry.name)


def _collect(
    folder: int, prefix: str, files: dict[str, int], measure: Callable[[os.DirEntry[str]], int]
) -> None:
    directories = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise link_refused(prefix + entry.name)
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            elif entry.is_file(follow_symlinks=False) and not entry.name.startswith(TEMPORARY):
                with suppress(FileNotFoundError):  # deleted a moment ago
                    files[prefix + entry.name] = measure(entry)
    for name in directories:
        with subdirectory(folder, name) as child:
            if child is not None:
                _collect(child, f"{prefix}{name}/", files, measure)
