"""A partition's local store, brought to the newest confirmed epoch by applying state files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from turnback.core.errors import ConfigurationError, IncompatibleStateError, StateError
from turnback.state.delta import read_delta
from turnback.state.files import StateFile, in_order
from turnback.state.schema import (
    GROUPS,
    LENGTHS,
    LONGEST,
    SINGLE_KINDS,
    StateSchema,
    component,
    state_prefix,
    wrap,
)
from turnback.state.stores import Changes, HashMapStore, RocksOptions, RocksStore
from turnback.storage.directory import DirectoryLock, sweep_private, take_private
from turnback.storage.envelope import check


class Applier:
    """Turns the rows of one state file into changes of a local store.

    Args:
        stored: The states of the file.
        wanted: The states of the program; rows of any other are left out.
        first_group: Smallest key group wanted.
        last_group: Greatest one.
    """

    def __init__(
        self,
        stored: Sequence[StateSchema],
        wanted: Sequence[StateSchema],
        first_group: int,
        last_group: int,
    ) -> None:
        by_id = {schema.id: schema for schema in wanted}
        self._first, self._last = first_group, last_group
        self._prefixes = [state_prefix(*schema.id) for schema in stored]
        self._single = [schema.kind in SINGLE_KINDS for schema in stored]
        self._wanted = [i for i, schema in enumerate(stored) if schema.id in by_id]
        for i in self._wanted:
            check_compatible(stored[i], by_id[stored[i].id])

    def changes(self, batch: pa.RecordBatch) -> Changes:
        batch = select(batch, self._first, self._last)
        if len(self._wanted) < len(self._prefixes):
            wanted = pc.is_in(batch["state"], pa.array(self._wanted, pa.int16()))
            batch = batch.filter(wanted)
        states, groups, keys, subs, values = (column.to_pylist() for column in batch.columns)
        if batch.column(3).null_count == batch.num_rows and all(self._single):
            return self._single_valued(states, groups, keys, values)
        return self._mixed(states, groups, keys, subs, values)

    def _single_valued(
        self, states: list[int], groups: list[int], keys: list[bytes], values: list[bytes | None]
    ) -> Changes:
        prefixes, lengths, numbers = self._prefixes, LENGTHS, GROUPS
        if max(map(len, keys), default=0) > LONGEST:
            return self._mixed(states, groups, keys, [None] * len(keys), values)
        where = [
            prefixes[s] + numbers[g] + lengths[len(k)] + k
            for s, g, k in zip(states, groups, keys, strict=True)
        ]
        return Changes([], where, values)

    def _mixed(
        self,
        states: list[int],
        groups: list[int],
        keys: list[bytes],
        subs: list[bytes | None],
        values: list[bytes | None],
    ) -> Changes:
        changes = Changes([], [], [])
        clear, put_key = changes.clears.append, changes.keys.append
        put_value = changes.values.append
        prefixes, single = self._prefixes, self._single
        for s, g, key, sub, value in zip(states, groups, keys, subs, values, strict=True):
            where = prefixes[s] + GROUPS[g] + component(key)
            if sub is not None:
                where += component(sub)
                if value is not None and len(sub) > LONGEST:
                    value = wrap(sub, value)
            elif value is None and not single[s]:
                clear(where)
                continue
            if value is not None and len(key) > LONGEST:
                value = wrap(key, value)
            put_key(where)
            put_value(value)
        return changes


def select(batch: pa.RecordBatch, first_group: int, last_group: int) -> pa.RecordBatch:
    """The rows of a batch in the groups first..last; rows are sorted by group."""
    groups = batch["group"].to_numpy()
    start = int(groups.searchsorted(first_group, side="left"))
    end = int(groups.searchsorted(last_group, side="right"))
    return batch.slice(start, end - start)


def check_compatible(stored: StateSchema, wanted: StateSchema) -> None:
    """Raise `IncompatibleStateError` if stored values cannot be read as the program wants them."""
    differences = stored.differences(wanted)
    if differences:
        listed = "; ".join(f"{what} stored {a}, wanted {b}" for what, a, b in differences)
        raise IncompatibleStateError(
            f"state {stored.name!r} of operator {stored.uid!r} does not fit the program: {listed}. "
            f"Declare the stored type again, or give the state a new name"
        )


Opening = Literal["home", "caught-up", "rebuilt"]
"""How a store was found: as it was left, behind some files, or not at all."""
Read = Callable[[StateFile], bytes]

Store = RocksStore | HashMapStore

STORE_FORMAT = 2
_UNFINISHED = -1


class StoreVersion(msgspec.Struct, frozen=True):
    """What a local store says of itself; written with every batch.

    Attributes:
        version: Last epoch applied; negative while a file is being applied in parts.
        line: The attempt of the driver that wrote that epoch, if known; see `StateFile.lineage`.
        path: The file it came from.
        scope: Fingerprint of key groups, states and formats the store was filled for.
    """

    version: int
    line: str | None
    path: str
    scope: str


class Replica:
    """A local store brought to the newest confirmed epoch, and locked.

    Attributes:
        store: Where the keyed state is read from.
        opening: How it was brought there.
        version: The last epoch in it; -1 when there is no state yet.
        directory: Where it is.
    """

    def __init__(self, store: Store, directory: Path, lock: DirectoryLock) -> None:
        self.store = store
        self.opening: Opening = "home"
        self.version = -1
        self.directory = directory
        self._lock: DirectoryLock | None = lock

    def close(self) -> None:
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            self.store.close()
        finally:
            if self.store.broken or lock.private:
                shutil.rmtree(self.directory, ignore_errors=True)
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_replica(
    kind: str,
    directory: Path,
    files: Sequence[StateFile],
    read: Read,
    schemas: Sequence[StateSchema],
    groups: tuple[int, int],
    options: RocksOptions | None = None,
    layout: str = "",
) -> Replica:
    """Open the local store of a partition and bring it to the last epoch of its files.

    Args:
        kind: ``hashmap`` or ``rocksdb``.
        directory: Where the store lives between epochs. When another process has it locked, a
            private store beside it is used instead, and removed on close.
        files: All confirmed state files that hold any of the partition's key groups.
        read: Gives the bytes of a file that does not carry them inline.
        schemas: The states of the program; rows of any other state are left out.
        groups: First and last key group of the partition.
        options: Of the RocksDB store.
        layout: Whatever else decides which rows of the files count, such as the operators' own
            parallelism; a store filled under another one is rebuilt.

    Raises:
        CorruptFileError: A file is not what the manifest says; nothing is served.
        IncompatibleStateError: A stored state does not fit the program.
    """
    directory = Path(directory)
    scope = _scope(kind, schemas, groups, layout)
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock.take(directory)
    if lock is None:
        lock = take_private(directory)
    else:
        sweep_private(directory)
    replica = None
    try:
        replica = _opened(kind, lock, options)
        todo = _outstanding(_version_of(replica.store), files, scope)
        if todo is None:
            _wipe(replica, kind, options)
            todo = in_order(files)
            replica.opening = "rebuilt" if todo else "home"
        elif todo:
            replica.opening = "caught-up"
        _apply(replica, todo, read, schemas, groups, scope)
    except BaseException:
        if replica is not None:
            replica.close()
        else:
            lock.release()
        raise
    return replica


def _outstanding(
    stored: StoreVersion | None, files: Sequence[StateFile], scope: str
) -> list[StateFile] | None:
    """The files a store has yet to see; None when it has to be rebuilt."""
    if stored is None or stored.scope != scope or stored.version == _UNFINISHED:
        return None
    if not any(_same_line(stored, file) for file in files):
        return None
    todo = in_order(file for file in files if file.last_epoch > stored.version)
    # A complete file has no tombstones: what it lacks would live on in an older store.
    return None if any(file.complete for file in todo) else todo


def _same_line(stored: StoreVersion, file: StateFile) -> bool:
    """Whether a file proves that the store's last epoch is in this job's past."""
    if file.last_epoch == stored.version and file.path == stored.path:
        return True
    return stored.line is not None and file.line_at(stored.version) == stored.line


def _apply(
    replica: Replica,
    todo: list[StateFile],
    read: Read,
    schemas: Sequence[StateSchema],
    groups: tuple[int, int],
    scope: str,
) -> None:
    store = replica.store
    for file, after in zip_longest(todo, todo[1:]):
        data = file.inline if file.inline is not None else read(file)
        check(data, file.length, file.digest, file.path)
        delta = read_delta(data, file.path)
        first, last = max(groups[0], file.first_group), min(groups[1], file.last_group)
        mine = [schema for schema in schemas if schema.uid in file.operators]
        applier = Applier(delta.schemas, mine, first, last)
        version = StoreVersion(file.last_epoch, file.line_at(file.last_epoch), file.path, scope)
        finished = msgspec.msgpack.encode(version)
        unfinished = msgspec.msgpack.encode(msgspec.structs.replace(version, version=_UNFINISHED))
        if after is not None and after.last_epoch == file.last_epoch:
            finished = unfinished  # the epoch is spread over several files, as after a rescale
        batches = delta.batches(first, last)
        if not batches:
            store.write(Changes([], [], []), finished)
        for number, read_batch in enumerate(batches, 1):
            changes = applier.changes(read_batch())
            store.write(changes, finished if number == len(batches) else unfinished)
    if todo:
        store.settle()
    reached = _version_of(store)
    replica.version = -1 if reached is None else reached.version


def _opened(kind: str, lock: DirectoryLock, options: RocksOptions | None) -> Replica:
    try:
        store = _open_store(kind, lock.directory, options)
    except StateError:
        shutil.rmtree(lock.directory, ignore_errors=True)
        store = _open_store(kind, lock.directory, options)
    return Replica(store, lock.directory, lock)


def _wipe(replica: Replica, kind: str, options: RocksOptions | None) -> None:
    if _is_empty(replica.store):
        return
    replica.store.close()
    shutil.rmtree(replica.directory, ignore_errors=True)
    replica.store = _open_store(kind, replica.directory, options)


def _is_empty(store: Store) -> bool:
    try:
        return next(store.scan(b""), None) is None
    except StateError:
        return False


def _open_store(kind: str, directory: Path, options: RocksOptions | None) -> Store:
    if kind == "rocksdb":
        return RocksStore(directory, options)
    if kind == "hashmap":
        return HashMapStore(directory)
    raise ConfigurationError(f"unknown state backend {kind!r}; known are hashmap and rocksdb")


def _version_of(store: Store) -> StoreVersion | None:
    try:
        data = store.marker()
        return None if data is None else msgspec.msgpack.decode(data, type=StoreVersion)
    except (StateError, msgspec.DecodeError):
        return None


def _scope(kind: str, schemas: Sequence[StateSchema], groups: tuple[int, int], layout: str) -> str:
    prefixes: dict[bytes, StateSchema] = {}
    for schema in schemas:
        twin = prefixes.setdefault(state_prefix(*schema.id), schema)
        if twin.id != schema.id:
            raise StateError(f"the states {twin.id} and {schema.id} hash alike; rename one of them")
    ordered = [prefixes[prefix] for prefix in sorted(prefixes)]
    boot = _boot_id() if kind == "hashmap" else ""  # never synced, so not to be trusted after one
    return xxhash.xxh3_128_hexdigest(
        msgspec.json.encode(
            [STORE_FORMAT, kind, boot, groups, layout, ordered], order="deterministic"
        )
    )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
