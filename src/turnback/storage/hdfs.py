"""Files below a directory of HDFS, through `hdfs-native` (the extra 'hdfs'), without Java."""

from __future__ import annotations

import builtins
import importlib.util
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NoReturn, TypeVar

from turnback.config.options import HDFS_OPTIONS
from turnback.core.units import parse_duration
from turnback.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from turnback.storage.base import TEMPORARY, split_path, split_prefix

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

_OPTIONS = {option.field: option for option in HDFS_OPTIONS}
_FAILURES = (OSError, RuntimeError, NotImplementedError)
_PART = 4 << 20
_BYTES_A_SECOND = 1 << 20
"""A transfer that is slower counts as one that hangs."""
_FIRST_ANSWER = 15.0
"""Seconds in which a NameNode has to answer that never has: the address is probably wrong."""
_LEFT_AFTER = 3600.0
"""Seconds after which nobody writes a temporary file any more."""
_LIBRARY = {
    # One look at every NameNode of a nameservice; how often that is repeated is decided here.
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "50",
}

_REMOTE = re.compile(r'(?:Fatal)?RPCError\("(?P<name>[^"]*)", "(?P<text>.*)"\)', re.DOTALL)
_PASSING = re.compile(
    "StandbyException|SafeModeException|RetriableException|ObserverRetryOnActiveException|"
    "could only be written to|DataTransferError|BlocksNotFound|ChecksumError|OperationFailed"
)
"""What goes away by itself: a fail-over, a NameNode or DataNode that is just starting, a block that
was replaced while it was read."""

# The process whose first request started the library's threads. They do not survive a fork, and a
# child that used them all the same would hang, and its parent with it.
_process: int | None = None
_services: dict[tuple[str, tuple[tuple[str, str], ...]], _Service] = {}
_abandoned: list[Client] = []
_lock = threading.Lock()

T = TypeVar("T")


class HdfsStorage:
    """A directory of HDFS: `hdfs://namenode:port/path` or `hdfs://nameservice/path`.

    A nameservice, Kerberos and whatever else a cluster asks of its clients are read from
    `core-site.xml` and `hdfs-site.xml` in the directory that HADOOP_CONF_DIR names; without
    Kerberos, the user is that of HADOOP_USER_NAME, or who runs the process. Options, all of them
    strings:

    - hdfs_config_dir: the directory of these files, on every machine;
    - hdfs_timeout ('2 min'): limit of one call, besides a second for every MiB it moves;
    - hdfs_retry_timeout ('3 min'): how long a call is repeated that fails because a NameNode or
      DataNode is away or starting.

    What HDFS promises: closing a file syncs its blocks to the disks of all DataNodes that were
    written to, and the NameNode answers a change of names when that is in its synced log. So a file
    is written under a hidden name, closed, and then renamed, in one step for everybody. Only the
    user who wrote a file can read it.
    """

    __slots__ = ("_options", "_root", "_service", "uri")

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        authority, _, path = uri.removeprefix("hdfs://").partition("/")
        path = path.strip("/")
        self.uri = f"hdfs://{authority}/{path}".rstrip("/") if authority else f"hdfs:///{path}"
        self._options = dict(options or {})
        self._root = f"/{path}".rstrip("/")
        _check(uri, authority, path, self._options)
        if importlib.util.find_spec("hdfs_native") is None:
            raise ConfigurationError(f"{uri} needs hdfs-native: pip install 'turnback[hdfs]'")
        self._service = _service(f"hdfs://{authority}", self._options)

    def put(self, path: str, data: bytes) -> None:
        self._write(path, data, replace=True)

    def put_if_absent(self, path: str, data: bytes) -> None:
        if not self._write(path, data, replace=False):
            raise AlreadyExistsError(f"{path} is already in {self.uri}")

    def get(self, path: str) -> bytes:
        target = self._target(path)
        with self._storage_errors("read", path):
            try:
                return self._read(target)
            except _FAILURES as error:
                if not _says_missing(error):
                    raise
        raise NotFoundError(f"{path} is not in {self.uri}")

    def list(self, prefix: str = "") -> builtins.list[str]:
        return builtins.list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found = self._walk(prefix)
        sizes = {
            path: status.length
            for path, status in found.items()
            if not _name(path).startswith(TEMPORARY)
        }
        return dict(sorted(sizes.items()))

    def folders(self, prefix: str = "") -> builtins.list[str]:
        directory = "/".join((self._root, *split_prefix(prefix)))
        with self._storage_errors("list", prefix or "everything"):
            entries = self._entries(directory)
        return sorted(_name(e.path) for e in entries if e.isdir and not _is_temporary(e))

    def delete(self, path: str) -> None:
        target = self._target(path)
        with self._storage_errors("delete", path):
            try:
                self._service.repeat(lambda client: client.delete(target))
            except _FAILURES as error:
                if not _says_missing(error) and "PathIsNotEmptyDirectory" not in str(error):
                    raise
                return
        with suppress(*_FAILURES):
            # The first directory that is not empty ends it. Whoever writes to one that was removed
            # makes it again with the file.
            while (target := target.rpartition("/")[0]) != self._root:
                self._remove(target)

    def leftovers(self, *, remove: bool = False) -> dict[str, int]:
        """Return the temporary files of writers that were killed, with their bytes.

        HDFS does not tell whether a writer lives, so files of the last hour are not among them.

        Args:
            remove: Whether to delete them; what cannot be deleted is left out.
        """
        oldest = (time.time() - _LEFT_AFTER) * 1000
        left: dict[str, int] = {}
        for path, status in sorted(self._walk("").items()):
            if not _is_temporary(status) or status.modification_time > oldest:
                continue
            with suppress(*_FAILURES):
                if remove:
                    self._remove(status.path)
                left[path] = status.length
        return left

    def _write(self, path: str, data: bytes, *, replace: bool) -> bool:
        """Write a hidden file in full, then give it its name; False if that is taken."""
        target = self._target(path)
        with self._storage_errors("write", path):
            temporary = self._service.patiently(lambda: self._filled(target, data))
            try:
                published = self._publish(temporary, target, data, replace)
                if not published:
                    # Also syncs the log of the NameNode up to here, with what took the name.
                    self._service.repeat(lambda client: client.delete(temporary))
            except BaseException:
                self._discard(temporary)
                raise
        return published

    def _filled(self, target: str, data: bytes) -> str:
        """Write a hidden file beside another one."""
        # A new name for each try: nothing of a try that was given up can reach the next one.
        temporary = f"{target.rpartition('/')[0]}/{TEMPORARY}{secrets.token_hex(8)}"
        try:
            self._service.once(lambda client: _fill(client, temporary, data), len(data))
        except BaseException as error:
            self._discard(temporary)
            if isinstance(error, FileExistsError):
                raise ConnectionError("the library repeated what the NameNode had done") from error
            raise
        return temporary

    def _discard(self, temporary: str) -> None:
        """Delete a temporary file; a rename of it that is still on its way finds nothing then."""
        if not self._service.has_answered:
            return
        with suppress(*_FAILURES):
            self._service.once(lambda client: client.delete(temporary), limit=5)

    def _publish(self, temporary: str, target: str, data: bytes, replace: bool) -> bool:
        try:
            self._service.repeat(lambda client: client.rename(temporary, target, replace))
        except FileExistsError:
            if replace:
                raise
            return False
        except FileNotFoundError as error:
            # Repeated after a lost reply, here or by the library, it no longer finds what the first
            # try has renamed. But a clean-up may have removed it as well.
            if not self._holds(target, data):
                raise StorageError(
                    f"{target} may or may not have been written to {self.uri}: its temporary file "
                    "is gone"
                ) from error
        return True

    def _holds(self, target: str, data: bytes) -> bool:
        try:
            return self._read(target) == data
        except FileNotFoundError:
            return False

    def _read(self, target: str) -> bytes:
        def read() -> bytes:
            file = self._service.once(lambda client: client.read(target))
            return self._service.once(lambda _: file.read(), len(file))

        # Blocks that were replaced after the file was opened cannot be read, the new ones can.
        return self._service.patiently(read)

    def _remove(self, path: str) -> None:
        self._service.once(lambda client: client.delete(path))

    def _walk(self, prefix: str) -> dict[str, FileStatus]:
        """All files below a directory by their paths, temporary ones too."""
        found: dict[str, FileStatus] = {}
        directories = ["/".join((self._root, *split_prefix(prefix)))]
        with self._storage_errors("list", prefix or "everything"):
            while directories:
                for status in self._entries(directories.pop()):
                    if status.isdir:
                        directories.append(status.path)
                    else:
                        found[status.path[len(self._root) + 1 :]] = status
        return found

    def _entries(self, directory: str) -> builtins.list[FileStatus]:
        """What is in a directory; nothing if there is none, or a file has this path."""
        place = directory or "/"
        try:
            found = self._service.repeat(lambda client: [*client.list_status(place)])
        except _FAILURES as error:
            if not _says_missing(error):
                raise
            return []
        return [status for status in found if status.path != directory]

    def _target(self, path: str) -> str:
        segments = split_path(path)
        if ":" in path:
            raise StorageError(f"cannot use {path!r} in {self.uri}: HDFS has no ':' in names")
        return "/".join((self._root, *segments))

    @contextmanager
    def _storage_errors(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            raise StorageError(f"cannot {action} {path} in {self.uri}: {_reason(error)}") from error

    def __reduce__(self) -> tuple[type[HdfsStorage], tuple[str, dict[str, str]]]:
        return HdfsStorage, (self.uri, self._options)

    def __repr__(self) -> str:
        return f"HdfsStorage({self.uri!r})"


class _Service:
    """The NameNodes behind one address, for all storages of a process that name them.

    No client is ever closed: connections to DataNodes are shared by all clients of the library, and
    would die with the client that made them.

    Attributes:
        has_answered: Whether a NameNode ever did.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        self._config_dir = options.get("hdfs_config_dir")
        self._timeout = _seconds(options, "hdfs_timeout")
        self._retry_timeout = _seconds(options, "hdfs_retry_timeout")
        self._client: Client | None = None
        self.has_answered = False

    def repeat(self, step: Callable[[Client], T], size: int = 0) -> T:
        """Run a step, again and again while a cluster that has answered once does not."""
        return self.patiently(lambda: self.once(step, size))

    def patiently(self, attempt: Callable[[], T]) -> T:
        """The same for something that consists of several steps."""
        end = time.monotonic() + self._retry_timeout
        pause = 0.1
        while True:
            try:
                return attempt()
            except _FAILURES as error:
                late = time.monotonic() + pause > end
                if late or not self.has_answered or not _is_passing(error):
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 5)

    def once(self, step: Callable[[Client], T], size: int = 0, limit: float | None = None) -> T:
        """Run a step, but wait for it no longer than allowed.

        Args:
            step: What to do.
            size: How many bytes it moves.
            limit: Seconds to wait; by default as configured.

        Raises:
            TimeoutError: It goes on in its thread, and may still do what it was to do.
        """
        if not self.has_answered:
            try:
                self._run(lambda client: client.get_file_info("/"), _FIRST_ANSWER)
            except _FAILURES as error:
                if isinstance(error, OSError) and _is_passing(error):
                    raise
            self.has_answered = True
        return self._run(step, limit or self._timeout + size / _BYTES_A_SECOND)

    def _run(self, step: Callable[[Client], T], limit: float) -> T:
        client = self._connected()
        answer: SimpleQueue[Callable[[], T]] = SimpleQueue()

        def run() -> None:
            try:
                result = step(client)
            except BaseException as error:  # noqa: BLE001 — a panic of the library is no Exception
                answer.put(partial(_raise, error))
            else:
                answer.put(lambda: result)

        # The library has no limit of its own for some calls, and cannot be interrupted.
        threading.Thread(target=run, name="hdfs", daemon=True).start()
        try:
            outcome = answer.get(timeout=limit)
        except Empty:
            self._replace(client)
            raise TimeoutError(f"no answer within {limit:.0f} s") from None
        return outcome()

    def _connected(self) -> Client:
        global _process
        with _lock:
            if _process not in (None, os.getpid()):
                raise StorageError(
                    f"cannot use {self._url}: this process was forked from one that had used HDFS "
                    "already; start processes with the 'spawn' method"
                )
            _process = os.getpid()
            if self._client is None:
                self._client = _client(self._url, self._config_dir)
            return self._client

    def _replace(self, client: Client) -> None:
        """Connect anew for the next call: a connection that does not answer may never do so."""
        with _lock:
            if self._client is client:
                _abandoned.append(client)
                self._client = None


def _raise(error: BaseException) -> NoReturn:
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(f"hdfs-native failed: {error}") from error  # a panic of the library


def _service(url: str, options: Mapping[str, str]) -> _Service:
    key = (url, tuple(sorted(options.items())))
    with _lock:
        if key not in _services:
            _services[key] = _Service(url, options)
        return _services[key]


def _client(url: str, config_dir: str | None) -> Client:
    from hdfs_native import Client

    try:
        return Client(url, _LIBRARY, config_dir)
    except _FAILURES as error:
        reason = _reason(error)
        if "No NameNode hosts found" in reason:
            reason = (
                "it has no port, and is no nameservice of the configuration: write "
                "hdfs://HOST:PORT/PATH, or let HADOOP_CONF_DIR name the directory of hdfs-site.xml"
            )
        elif "No fs.defaultFS" in reason:
            reason = "name the host, or let HADOOP_CONF_DIR name the directory of core-site.xml"
        raise ConfigurationError(f"{url} cannot be used: {reason}") from error


def _check(uri: str, authority: str, path: str, options: Mapping[str, str]) -> None:
    for name in options:
        if name not in _OPTIONS:
            close = get_close_matches(name, _OPTIONS, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigurationError(
                f"{uri}: unknown option {name!r}{hint}; known are {', '.join(_OPTIONS)}"
            )
    if "@" in authority:
        raise ConfigurationError(f"{uri} names a user: set HADOOP_USER_NAME, or use Kerberos")
    if not re.fullmatch(r"[\w.-]*(:\d+)?", authority):
        raise ConfigurationError(f"{uri} names no host: write hdfs://HOST:PORT/PATH")
    if not path:
        raise ConfigurationError(f"{uri} is all of HDFS: name a directory in it")
    try:
        split_prefix(path)
    except StorageError as error:
        raise ConfigurationError(f"{uri} cannot be used as storage: {error}") from None
    if ":" in path:
        raise ConfigurationError(f"{uri} cannot be used as storage: HDFS has no ':' in names")


def _seconds(options: Mapping[str, str], name: str) -> float:
    return parse_duration(options.get(name, _OPTIONS[name].default or ""), name) / 1000


def _fill(client: Client, path: str, data: bytes) -> None:
    from hdfs_native import WriteOptions

    file = client.create(path, WriteOptions(permission=0o600, overwrite=False, create_parent=True))
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(bytes(rest[:_PART])) :]
    file.close()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_temporary(status: FileStatus) -> bool:
    return _name(status.path).startswith(TEMPORARY)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, FileExistsError | FileNotFoundError | IsADirectoryError):
        return False
    return isinstance(error, OSError) or _PASSING.search(_reason(error)) is not None


def _says_missing(error: Exception | BaseException) -> bool:
    """Whether nothing is at a path, or a file is where a directory would have to be."""
    return isinstance(error, FileNotFoundError | IsADirectoryError) or (
        isinstance(error, RuntimeError) and "(is not a directory)" in str(error)
    )


def _reason(error: Exception) -> str:
    """What an error says, without where it was raised in Java."""
    text = str(error)
    remote = _REMOTE.fullmatch(text)
    if remote is not None:
        told = remote["text"].partition("\\n")[0].replace('\\"', '"')
        return f"{told} ({remote['name'].rpartition('.')[2]})"
    return text.partition("\n")[0]
