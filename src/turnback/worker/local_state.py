"""The state of a task in one epoch, and the local stores of a machine that it is read from.

<local-dir>/turnback-<uid>/<job id>-<hash>/   the stores of one job, each with a lock file
    owner.json                                the job; touched when they are used

Stores are caches: removing one that nobody has open costs time and nothing else. Those that
do not fit into memory are in the temporary directory, in <job id>-<hash>-on-disk.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from turnback.core.ids import path_segment
from turnback.errors import (
    UNDECODABLE,
    LocalStoreError,
    PlanError,
    StateError,
    StorageError,
    UnsupportedTypeError,
)
from turnback.functions.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from turnback.functions.operator_state import (
    BroadcastStateDescriptor,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from turnback.plan.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.state.delta import MOST_STATES, DeltaBuilder
from turnback.state.files import StateFile, StorageRef, read_state, storage_of
from turnback.state.replica import Replica, open_replica
from turnback.state.schema import StateSchema
from turnback.state.subtasks import OperatorStateBackend
from turnback.storage.directory import DirectoryLock, locked_directory
from turnback.storage.envelope import digest
from turnback.storage.locations import is_on_file_system
from turnback.worker.context import TaskContext
from turnback.worker.message import EpochCommand, TaskName, naming_operator
from turnback.worker.program import LevelProgram

_LOG = logging.getLogger(__name__)
DIRECTORY = "restoring"
REPORT_S = 2.0
"""What takes less time is not worth a report."""
WHOLE = 100


class RestoreReport:
    """Tells now and then how much of the state of one task is restored; never fails the task."""

    def __init__(self, storage: StorageRef, attempt: int, task: str) -> None:
        self._storage = storage
        self._path = f"{DIRECTORY}/{attempt}/{task}"
        self._told_s = time.monotonic()
        self._percent = 0

    def report(self, done: float, total: float) -> None:
        """So much of all is done, in whatever unit."""
        now = time.monotonic()
        if self._storage.inline or now - self._told_s < REPORT_S:
            return
        percent = min(WHOLE, int(WHOLE * done / total)) if total > 0 else WHOLE
        if percent > self._percent:
            self._told_s = now
            self._percent = percent
            try:
                storage_of(self._storage).put(self._path, b"." * percent)
            except StorageError as error:
                _LOG.warning("cannot report the progress of the restore: %s", error)


class IntakeReport(RestoreReport):
    """Counts entries that are taken in: half of the work is to read them, half to write them."""

    def __init__(self, storage: StorageRef, attempt: int, task: str, entries: float) -> None:
        super().__init__(storage, attempt, task)
        self._entries = entries
        self._passed = 0

    def add(self, entries: int) -> None:
        """So many more are read, or written."""
        self._passed += entries
        self.report(self._passed / 2, self._entries)

    def counted(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The same tables, counted as they are read."""
        for table in tables:
            self.add(len(table))
            yield table


def store_task(level: int, partition: int) -> str:
    """The task that fills the local store of a partition."""
    return f"store-{level}-{partition}"


def intake_task(level: int, partition: int) -> str:
    """The task that takes in the state of a partition."""
    return f"intake-{level}-{partition}"


Confirmed = tuple[str, int, str | None]
"""The attempt of the driver and the number of an epoch, and the state file of a task in it."""


class NewestDelta:
    """A copy of the file that a task has just written, in the directory of its local store.

    The next epoch on this machine begins with it, and reads it here and not from an object store.
    It says nothing about whether the file counts: that is asked for by name, and checked by digest.
    To keep one, the store must be locked; reading needs no lock.
    """

    def __init__(self, directory: Path, storage: StorageRef) -> None:
        self._directory = directory
        self._storage = storage

    def keep(self, path: str, data: bytes) -> None:
        """Keep a file instead of the one before; it is only a copy, so a failure is no matter."""
        if self._storage.inline or is_on_file_system(self._storage.uri):
            return
        with suppress(OSError):
            for older in self._directory.glob(f"*{_COPY}"):
                older.unlink()
            if len(data) <= _MOST_COPIED and self._has_room(data):
                self._write(self._copy_of(path), data)

    def read(self, file: StateFile) -> bytes:
        """The bytes of a state file, from here or from the storage."""
        if file.inline is None:
            with suppress(OSError):
                data = self._copy_of(file.path).read_bytes()
                if digest(data) == file.digest:
                    return data
        return read_state(self._storage, file)

    def _has_room(self, data: bytes) -> bool:
        """Whether enough is left for the stores: without it they leave memory for good."""
        return shutil.disk_usage(self._directory).free >= _COPIES_LEFT * len(data)

    @staticmethod
    def _write(copy: Path, data: bytes) -> None:
        try:
            copy.write_bytes(data)
        except OSError:
            copy.unlink(missing_ok=True)  # half a copy takes room and is of no use

    def _copy_of(self, path: str) -> Path:
        return self._directory / f"{path.rpartition('/')[2]}{_COPY}"


def ran(command: EpochCommand, written: StateFile | None) -> Confirmed:
    """What a task has run, once it has acknowledged an epoch."""
    return command.line, command.epoch, None if written is None else written.path


def confirmed_before(command: EpochCommand, partition: int) -> Confirmed:
    """What must have been run by a task whose functions are to go on as they are.

    Other attempts of a task may have run the epoch too, and what counts is told by its file.
    """
    last = command.epoch - 1
    paths = [file.path for file in command.files.get(partition, ()) if file.last_epoch == last]
    return command.line, last, paths[-1] if paths else None


class OperatorStateContext:
    """The `FunctionInitializationContext` of a function, and its `OperatorStateStore`."""

    def __init__(
        self, operator: Operator, backend: OperatorStateBackend, keyed: TaskContext, epoch: int
    ) -> None:
        self._operator = operator
        self._backend = backend
        self._keyed = keyed
        self._restored = epoch - 1
        self.is_open = True

    def is_restored(self) -> bool:
        return self._restored > 0

    def get_restored_checkpoint_id(self) -> int | None:
        return self._restored if self.is_restored() else None

    def get_operator_state_store(self) -> OperatorStateContext:
        return self

    def get_keyed_state_store(self) -> TaskContext:
        return self._keyed

    def get_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        self._check(descriptor, ListStateDescriptor, "get_list_state")
        return self._register(SplitListStateDescriptor.of(descriptor))

    def get_union_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        self._check(descriptor, ListStateDescriptor, "get_union_list_state")
        return self._register(UnionListStateDescriptor.of(descriptor))

    def get_broadcast_state(self, descriptor: MapStateDescriptor[Any, Any]) -> Any:
        self._check(descriptor, MapStateDescriptor, "get_broadcast_state")
        return self._register(BroadcastStateDescriptor.of(descriptor))

    def _check(self, given: Any, wanted: type[StateDescriptor], method: str) -> None:
        uid = self._operator.uid
        if not isinstance(given, wanted):
            raise StateError(
                f"operator {uid!r}: {method} takes a {wanted.__name__}, got {type(given).__name__}"
            )
        if not self.is_open:
            raise StateError(
                f"operator {uid!r} requests the state {given.name!r} after initialize_state(); "
                "request all states there, and keep the handles"
            )
        if given.ttl is not None:
            raise StateError(
                f"operator {uid!r}: the state {given.name!r} has a time to live, which operator "
                "state does not support; store times with its elements, or use keyed state"
            )

    def _register(self, descriptor: StateDescriptor) -> Any:
        try:
            descriptor.check()
        except UnsupportedTypeError as e:
            raise UnsupportedTypeError(f"operator {self._operator.uid!r}: {e}") from None
        return self._backend.register(descriptor)


class SnapshotContext:
    """The `FunctionSnapshotContext` of an epoch."""

    def __init__(self, command: EpochCommand) -> None:
        self._command = command

    def get_checkpoint_id(self) -> int:
        return self._command.epoch

    def get_checkpoint_timestamp(self) -> int:
        return self._command.time.now_ms


def initialize(operator: Operator, context: OperatorStateContext) -> None:
    """Let a function get its state."""
    with naming_operator(operator.uid, operator.name, "initialize_state()"):
        operator.function.initialize_state(context)
    context.is_open = False


def snapshot(operator: Operator, command: EpochCommand) -> None:
    """Let a function bring its state up to date, at the end of an epoch."""
    with naming_operator(operator.uid, operator.name, "snapshot_state()"):
        operator.function.snapshot_state(SnapshotContext(command))


def check_names(uid: str, keyed: Iterable[StateSchema], own: Iterable[StateSchema]) -> None:
    """Refuse a state per key and a state of the subtasks with one name."""
    for name in sorted({schema.name for schema in keyed} & {schema.name for schema in own}):
        raise StateError(
            f"operator {uid!r} has a keyed state and an operator state that are both named "
            f"{name!r}; rename one of them"
        )


_OWNER = "owner.json"
_SHARED_MEMORY = Path("/dev/shm")
_IN_MEMORY = "hashmap"
_ON_DISK = "rocksdb"
_TOUCH_S = 3600
UNUSED_S = 7 * 24 * 3600
"""Stores unused for so long are removed by the next worker process."""
MAX_INLINE = 5 * 1024 * 1024
_COPY = ".copy"
_MOST_COPIED = 16 << 20
_COPIES_LEFT = 64
"""There must be room for so many copies of a size, or none is kept."""
_swept: set[Path] = set()


class StoreOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The job that local stores belong to; copies of its directory have the same `job_id`."""

    job: str
    job_id: str
    directory: str


@dataclass(frozen=True)
class LocalStores:
    """The local stores of one job on this machine."""

    path: Path

    @classmethod
    def of(cls, owner: StoreOwner, backend: str, local_dir: str | None) -> LocalStores:
        """Where a job has its local stores; without `local_dir`, the backend's default."""
        if local_dir is None:
            # Shared memory is seen by all workers of the machine.
            in_memory = backend == _IN_MEMORY and os.access(_SHARED_MEMORY, os.W_OK)
            local_dir = str(_SHARED_MEMORY) if in_memory else tempfile.gettempdir()
        return cls(_of_user(local_dir) / _name(owner))

    @classmethod
    def on_disk(cls, owner: StoreOwner) -> LocalStores:
        """Where a job with the memory backend has the stores that do not fit into memory."""
        return cls(_of_user(tempfile.gettempdir()) / f"{_name(owner)}-on-disk")

    def shares_space_with(self, other: LocalStores) -> bool:
        """Whether both are on one file system, so that one is full when the other is."""
        try:
            return _device(self.path) == _device(other.path)
        except OSError:
            return False

    def make_private(self) -> None:
        """Make the directory of this user's stores, which nobody else may read.

        Raises:
            StateError: It is another user's, or no directory: its owner could change the state.
        """
        own = self.path.parent
        try:
            own.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                own.mkdir(mode=0o700)
            status = own.lstat()
            mine = status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode)
            if mine and status.st_mode & 0o077:  # made by an older version
                own.chmod(0o700)
        except OSError as error:
            kind = LocalStoreError if error.errno == errno.ENOSPC else StateError
            raise kind(
                f"cannot keep local state in {own}: {error.strerror}. Set "
                "state.backend.local-dir to a directory that workers can write to"
            ) from error
        if not mine:
            raise StateError(
                f"{own} belongs to user {status.st_uid} or is a link, which is not allowed for "
                "local state. Remove it, or set state.backend.local-dir to another directory"
            )

    def store(self, level: int, partition: int) -> Path:
        return self.path / f"{level}-{partition}"

    def give_up(self, level: int, partition: int) -> None:
        """Remove a store that is not used any more, unless a process has it open."""
        store = self.store(level, partition)
        if store.exists():
            lock = DirectoryLock.take(store)
            if lock is not None:
                lock.remove()
                lock.release()

    def owner(self) -> StoreOwner | None:
        """The job they belong to; None if that cannot be read."""
        try:
            return msgspec.json.decode((self.path / _OWNER).read_bytes(), type=StoreOwner)
        except (OSError, *UNDECODABLE):
            return None

    def mark_used(self, owner: StoreOwner) -> None:
        """Record who uses them, and that they are used; called whenever a store is opened."""
        file = self.path / _OWNER
        if self.owner() != owner:  # there is none yet, or it is damaged
            new = self.path / f"{_OWNER}-{secrets.token_hex(4)}"
            new.write_bytes(msgspec.json.encode(owner))
            new.replace(file)
        elif abs(time.time() - file.stat().st_mtime) > _TOUCH_S:
            os.utime(file)

    def last_used_s(self) -> float:
        """When they were last used, in seconds since 1970."""
        try:
            return (self.path / _OWNER).stat().st_mtime
        except FileNotFoundError:  # made by an older version, or half removed
            return max((entry.st_mtime for entry in self._stats()), default=0)

    def size(self) -> int:
        """The bytes they occupy; files of the memory backend are mostly holes."""
        return sum(entry.st_blocks * 512 for entry in self._stats())

    def is_open(self) -> bool:
        """Whether a process has any of them open."""
        for directory in self._directories():
            lock = DirectoryLock.take(directory)
            if lock is None:
                return True
            lock.release()
        return False

    def remove(self) -> bool:
        """Remove those that no process has open; False if there are others."""
        complete = True
        for directory in self._directories():
            lock = DirectoryLock.take(directory)
            if lock is None:
                complete = False
                continue
            lock.remove()
            lock.release()
        with suppress(FileNotFoundError):
            rest = list(self.path.iterdir())
            # A task may just have made a store of its own, which keeps its owner.
            if all(path.name.startswith(_OWNER) for path in rest):
                for path in rest:
                    path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()
        return complete

    def discard(self, why: str) -> None:
        """Remove those that no process has open; a failure is logged, for they are only caches."""
        try:
            if self.path.is_dir() and self.remove():
                _LOG.info("removed the local stores in %s: %s", self.path, why)
        except OSError as error:
            _LOG.warning("cannot remove the local stores in %s: %s", self.path, error)

    def _stats(self) -> Iterator[os.stat_result]:
        for path in (self.path, *self.path.rglob("*")):
            with suppress(FileNotFoundError):  # removed a moment ago
                yield path.lstat()

    def _directories(self) -> list[Path]:
        """Directories of stores, and those that only a lock file is left of."""
        try:
            entries = [p for p in self.path.iterdir() if not p.name.startswith(_OWNER)]
        except FileNotFoundError:
            return []
        return sorted({locked_directory(path) for path in entries})


def stores_of(owner: StoreOwner, backend: str, local_dir: str | None) -> list[LocalStores]:
    """All local stores that a job uses with a backend."""
    stores = [LocalStores.of(owner, backend, local_dir)]
    if backend == _IN_MEMORY:
        stores.append(LocalStores.on_disk(owner))
    return stores


def all_stores(local_dirs: Iterable[str]) -> list[LocalStores]:
    """The local stores of all jobs of this user, in default directories and in these."""
    every = [str(_SHARED_MEMORY), tempfile.gettempdir(), *local_dirs]
    parents = {_of_user(local_dir) for local_dir in every}
    return [stores for parent in sorted(parents) for stores in _stores_in(parent)]


def remove_others(owner: StoreOwner, backend: str, local_dir: str | None) -> None:
    """Remove what a job has left on this machine under an older id or with another backend."""
    current = stores_of(owner, backend, local_dir)
    for stores in all_stores([local_dir] if local_dir is not None else []):
        other = stores.owner()
        if other is not None and other.directory == owner.directory and stores not in current:
            stores.discard(f"job {other.job!r} no longer uses them")


def sweep_unused(current: LocalStores) -> None:
    """Remove stores beside those of a job that nobody has used for long; once per process."""
    parent = current.path.parent
    if parent in _swept:
        return
    _swept.add(parent)
    for stores in _stores_in(parent):
        try:
            unused_s = time.time() - stores.last_used_s()
        except OSError:
            continue  # removed by another process a moment ago
        if unused_s > UNUSED_S and stores != current:
            stores.discard(f"they have been unused for {unused_s / 86400:.0f} days")


def _name(owner: StoreOwner) -> str:
    copy = blake2b(owner.directory.encode(), digest_size=6).hexdigest()
    return f"{path_segment(owner.job_id)}-{copy}"


def _device(path: Path) -> int:
    """The file system that a path is on, or will be on once it is made."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


def _of_user(local_dir: str) -> Path:
    return Path(local_dir).absolute() / f"turnback-{os.getuid()}"


def _stores_in(parent: Path) -> list[LocalStores]:
    try:
        # Temporary directories are open to all: what another user put there is not ours.
        if not stat.S_ISDIR(parent.lstat().st_mode) or parent.lstat().st_uid != os.getuid():
            return []
        return [
            LocalStores(path)
            for path in sorted(parent.iterdir())
            if path.is_dir() and not path.is_symlink()
        ]
    except OSError:
        return []  # there are none, or they cannot be seen


@dataclass
class LocalState:
    """The state of one task in one epoch: opened at the last confirmed one, then drained."""

    program: LevelProgram
    command: EpochCommand
    name: TaskName
    backends: list[KeyedStateBackend]
    replica: Replica | None = None

    @property
    def opened(self) -> str:
        """How the local store was opened, see `Replica.opening`; empty without state."""
        return self.replica.opening if self.replica else ""

    def schemas(self) -> tuple[StateSchema, ...]:
        return tuple(schema for backend in self.backends for schema in backend.schemas())

    def open(self) -> None:
        """Bring the local store to the last confirmed epoch."""
        asked_late = self.program.asked_late()
        schemas = [schema for schema in self.schemas() if schema.uid not in asked_late]
        if not schemas and not asked_late:
            return
        if len(schemas) > MOST_STATES:
            raise PlanError(
                f"the operators {', '.join(repr(b.uid) for b in self.backends)} run in one task "
                f"and have {len(schemas):,} states, but the limit is {MOST_STATES:,}; combine "
                "related states into one, as a row or a map"
            )
        command = self.command
        self.replica = self._open_wherever_it_fits(schemas, asked_late)
        for backend in self.backends:
            backend.begin(self.replica.store, command.epoch, command.time.now_ms)

    def _open_wherever_it_fits(
        self, schemas: Sequence[StateSchema], asked_late: Collection[str]
    ) -> Replica:
        """Open the store in memory, if that is the backend; on disk if memory is full."""
        command = self.command
        level = self.program.level.index
        partition = self.name.partition
        owner = StoreOwner(job=command.job, job_id=command.job_id, directory=command.storage.uri)
        stores = LocalStores.of(owner, command.backend, command.local_dir)
        if command.backend != _IN_MEMORY:
            return self._open_in(stores, owner, command.backend, schemas, asked_late)
        on_disk = LocalStores.on_disk(owner)
        if on_disk.store(level, partition).exists():
            stores.give_up(level, partition)
            return self._open_in(on_disk, owner, _ON_DISK, schemas, asked_late)
        try:
            return self._open_in(stores, owner, command.backend, schemas, asked_late)
        except (OSError, LocalStoreError) as error:
            if stores.shares_space_with(on_disk):
                raise
            _LOG.warning(
                "job %r: the state of partition %d of level %d does not fit in memory. From now "
                "on it is kept on disk, in %s; to keep it in memory again, remove that "
                "directory while the job is stopped. %s",
                *(command.job, partition, level, on_disk.store(level, partition), error),
            )
            return self._open_in(on_disk, owner, _ON_DISK, schemas, asked_late)

    def _open_in(
        self,
        stores: LocalStores,
        owner: StoreOwner,
        kind: str,
        schemas: Sequence[StateSchema],
        asked_late: Collection[str],
    ) -> Replica:
        command = self.command
        level = self.program.level.index
        partition = self.name.partition
        stores.make_private()
        replica = open_replica(
            kind,
            stores.store(level, partition),
            command.files.get(partition, ()),
            NewestDelta(stores.store(level, partition), command.storage).read,
            schemas,
            self.program.groups(partition),
            layout=self.program.layout(),
            asked_late=asked_late,
            now_ms=command.time.now_ms,
            on_progress=RestoreReport(
                command.storage, command.attempt, store_task(level, partition)
            ).report,
        )
        try:
            stores.mark_used(owner)
        except OSError as error:
            _LOG.warning("cannot mark %s as used: %s", stores.path, error)
        sweep_unused(stores)
        return replica

    def snapshot(self) -> StateFile | None:
        """Write what changed; durable when this returns."""
        if self.replica is None:
            return None
        command = self.command
        builder = DeltaBuilder()
        for backend in self.backends:
            backend.drain(builder)
        delta = builder.build()
        if delta is None:
            return None
        name = self.name
        path = (
            f"state/{command.attempt}/{self.program.level.index}-{name.partition}"
            f"-{command.epoch}-{name.attempt}-{uuid.uuid4().hex[:12]}.arrow"
        )
        if not command.storage.inline:
            storage_of(command.storage).put(path, delta.data)
            NewestDelta(self.replica.directory, command.storage).keep(path, delta.data)
        elif len(delta.data) > MAX_INLINE:
            raise StateError(
                f"job {command.job!r}: a task changed {len(delta.data)} bytes of state in one "
                f"epoch, more than the limit of {MAX_INLINE} of jobmanager checkpoint storage; "
                "use filesystem storage"
            )
        return delta.file(path, command.epoch, command.line, inline=command.storage.inline)

    def close(self) -> None:
        if self.replica is not None:
            self.replica.close()
