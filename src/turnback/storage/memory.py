"""Files in the memory of one process."""

import builtins
import threading
from typing import NoReturn

from turnback.core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    StorageError,
)
from turnback.storage.base import split_path, split_prefix

_LOCK = threading.Lock()
_ROOTS: dict[str, dict[str, bytes]] = {}


class MemoryStorage:
    """Files that live and die with the process; for tests and very small jobs.

    All storages of one name in a process share their files. It refuses to be pickled, because
    another process would find it empty.
    """

    __slots__ = ("_files", "uri")

    def __init__(self, name: str) -> None:
        """Open the storage of this name, empty when it is new."""
        if not name:
            raise ConfigurationError("memory:// needs a name: write memory://NAME")
        self.uri = f"memory://{name}"
        with _LOCK:
            self._files = _ROOTS.setdefault(name, {})

    def put(self, path: str, data: bytes) -> None:
        """See `Storage.put`."""
        split_path(path)
        with _LOCK:
            self._refuse_directory_clash(path)
            self._files[path] = bytes(data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """See `Storage.put_if_absent`."""
        split_path(path)
        with _LOCK:
            if path in self._files:
                raise AlreadyExistsError(f"{path} is already in {self.uri}")
            self._refuse_directory_clash(path)
            self._files[path] = bytes(data)

    def get(self, path: str) -> bytes:
        """See `Storage.get`."""
        split_path(path)
        try:
            return self._files[path]
        except KeyError:
            raise NotFoundError(f"{path} is not in {self.uri}") from None

    def list(self, prefix: str = "") -> builtins.list[str]:
        """See `Storage.list`."""
        start = "".join(f"{segment}/" for segment in split_prefix(prefix))
        with _LOCK:
            return sorted(path for path in self._files if path.startswith(start))

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        split_path(path)
        with _LOCK:
            self._files.pop(path, None)

    def _refuse_directory_clash(self, path: str) -> None:
        # As strict as a file system, so that what works in a test works on disk.
        parts = path.split("/")
        parents = ("/".join(parts[:n]) for n in range(1, len(parts)))
        below = f"{path}/"
        if any(p in self._files for p in parents) or any(f.startswith(below) for f in self._files):
            raise StorageError(f"cannot write {path} in {self.uri}: a file cannot be a directory")

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            f"{self.uri} lives in the memory of one process and cannot be sent to another: use a "
            "directory or an object store"
        )

    def __repr__(self) -> str:
        return f"MemoryStorage({self.uri!r})"
