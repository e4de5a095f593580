"""From a URI to the storage behind it, and the storage in the memory of one process."""

from __future__ import annotations

import builtins
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from turnback.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from turnback.storage.base import Storage, split_path, split_prefix
from turnback.storage.hdfs import HdfsStorage
from turnback.storage.local import LocalStorage
from turnback.storage.locations import storage_scheme
from turnback.storage.object_store import AzureStorage, GcsStorage, S3Storage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_REMOTE: dict[str, Callable[[str, Mapping[str, str]], Storage]] = {
    "s3": S3Storage,
    "gs": GcsStorage,
    "abfss": AzureStorage,
    "hdfs": HdfsStorage,
}
_OPTION_PREFIXES = {"gs": "gcs_", "abfss": "azure_", "hdfs": "hdfs_"}
"""What the names of options begin with; the others are those of S3."""
_OF_AZURE = ("az", "azure", "adl", "wasb", "wasbs")
"""Other schemes for Azure, whose URLs do not name the account or are out of use."""
_LOCK = threading.Lock()
_ROOTS: dict[str, dict[str, bytes]] = {}


class MemoryStorage:
    """Files that live and die with the process; for tests and very small jobs.

    All storages of one name in a process share their files. It refuses to be pickled, because
    another process would find it empty.
    """

    __slots__ = ("_files", "_prefix", "uri")

    def __init__(self, name: str) -> None:
        """Open the storage NAME, empty when it is new, or for NAME/PATH a directory inside it."""
        root, _, path = name.rstrip("/").partition("/")
        if not root:
            raise ConfigurationError("memory:// needs a name: use memory://NAME")
        try:
            self._prefix = _directory(path)
        except StorageError as error:
            raise ConfigurationError(f"cannot use memory://{name}: {error}") from None
        self.uri = f"memory://{root}/{self._prefix}".rstrip("/")
        with _LOCK:
            self._files = _ROOTS.setdefault(root, {})

    def put(self, path: str, data: bytes) -> None:
        split_path(path)
        with _LOCK:
            self._refuse_directory_clash(path)
            self._files[self._prefix + path] = bytes(data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        split_path(path)
        with _LOCK:
            if self._prefix + path in self._files:
                raise AlreadyExistsError(f"{path} is already in {self.uri}")
            self._refuse_directory_clash(path)
            self._files[self._prefix + path] = bytes(data)

    def get(self, path: str) -> bytes:
        split_path(path)
        try:
            return self._files[self._prefix + path]
        except KeyError:
            raise NotFoundError(f"{path} is not in {self.uri}") from None

    def list(self, prefix: str = "") -> builtins.list[str]:
        return builtins.list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        start = self._prefix + _directory(prefix)
        cut = len(self._prefix)
        with _LOCK:
            sizes = [(p[cut:], len(data)) for p, data in self._files.items() if p.startswith(start)]
        return dict(sorted(sizes))

    def folders(self, prefix: str = "") -> builtins.list[str]:
        below = _directory(prefix)
        names = (path[len(below) :].split("/") for path in self.list(prefix))
        return sorted({first for first, *rest in names if rest})

    def delete(self, path: str) -> None:
        split_path(path)
        with _LOCK:
            self._files.pop(self._prefix + path, None)

    def _refuse_directory_clash(self, path: str) -> None:
        # As strict as a file system, so that what works in a test works on disk.
        full = self._prefix + path
        parts = full.split("/")
        parents = ("/".join(parts[:n]) for n in range(1, len(parts)))
        below = f"{full}/"
        if any(p in self._files for p in parents) or any(f.startswith(below) for f in self._files):
            raise StorageError(f"cannot write {path} in {self.uri}: a file cannot be a directory")

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            f"{self.uri} lives in the memory of one process and cannot be sent to another: use a "
            "directory or an object store"
        )

    def __repr__(self) -> str:
        return f"MemoryStorage({self.uri!r})"


def _directory(prefix: str) -> str:
    return "".join(f"{segment}/" for segment in split_prefix(prefix))


def open_storage(uri: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Storage:
    """Return the storage at a path or URI; nothing is created or contacted yet.

    That is a path, 'file:///path', 'memory://name', 's3://bucket/prefix' ('s3a' is the same),
    'gs://bucket/prefix', 'abfss://container@account.dfs.core.windows.net/prefix' ('abfs' is the
    same) or 'hdfs://namenode:port/path'. The options are those of all storages together, see
    `S3Storage`, `GcsStorage`, `AzureStorage` and `HdfsStorage`. Raises `ConfigurationError` if one
    cannot be used.
    """
    if not isinstance(uri, str):
        return LocalStorage(uri)
    if not uri:
        raise ConfigurationError("the storage location is empty: specify a directory or a URI")
    # Hadoop prints file:/path, and people paste it.
    match = _SCHEME.fullmatch(re.sub(r"^file:/(?!/)", "file:///", uri))
    if match is None:
        return LocalStorage(Path(uri).expanduser())
    scheme = storage_scheme(match[1])
    rest = match[2]
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigurationError(f"{uri} contains a host: use file:///path, with three slashes")
        return LocalStorage(unquote(rest))
    if scheme == "memory":
        return MemoryStorage(rest)
    if scheme in _REMOTE:
        return _REMOTE[scheme](f"{scheme}://{rest}", _options_of(scheme, options or {}))
    hint = " (write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX)"
    raise ConfigurationError(
        f"{uri}: unknown storage scheme {scheme!r}{hint if scheme in _OF_AZURE else ''}; use a "
        "plain path, file://, memory://, s3://, gs://, abfss:// or hdfs://"
    )


def _options_of(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    """Those options that are meant for the storages of a scheme."""
    return {
        name: value
        for name, value in options.items()
        if next((s for s, start in _OPTION_PREFIXES.items() if name.startswith(start)), "s3")
        == scheme
    }
