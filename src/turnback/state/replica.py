"""A partition's local store, brought to the newest confirmed epoch by applying state files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from turnback.errors import (
    UNDECODABLE,
    ConfigurationError,
    IncompatibleStateError,
    StateError,
)
from turnback.state.delta import ReadFile, open_delta
from turnback.state.expiry import expired_keys
from turnback.state.files import StateFile, in_order
from turnback.state.rocks_store import RocksStore, remove_store
from turnback.state.schema import (
    GROUPS,
    LENGTHS,
    LONGEST,
    SINGLE_KINDS,
    WAITING,
    StateSchema,
    component,
    decode_time,
    state_prefix,
    time_component,
    wrap,
)
from turnback.state.stores import Changes, HashMapStore, LocalStore
from turnback.storage.directory import DirectoryLock, sweep_private, take_private


class Applier:
    """Turns the rows of one state file into changes of a local store.

    Rows count if their state is wanted, or if all states of their operator are.
    """

    def __init__(
        self,
        stored: Sequence[StateSchema],
        wanted: Sequence[StateSchema],
        first_group: int,
        last_group: int,
        operators: Collection[str] = (),
    ) -> None:
        by_id = {schema.id: schema for schema in wanted}
        self._first = first_group
        self._last = last_group
        self._prefixes = [state_prefix(*schema.id) for schema in stored]
        self._single = [schema.kind in SINGLE_KINDS for schema in stored]
        self._waiting = {i for i, schema in enumerate(stored) if schema.kind == WAITING}
        self._wanted = []
        for i, schema in enumerate(stored):
            if schema.id in by_id:
                check_compatible(schema, by_id[schema.id])
            if schema.id in by_id or schema.uid in operators:
                self._wanted.append(i)

    def changes(self, batch: pa.RecordBatch) -> Changes:
        batch = select(batch, self._first, self._last)
        if len(self._wanted) < len(self._prefixes):
            batch = batch.filter(pc.is_in(batch["state"], pa.array(self._wanted, pa.int16())))
        states, groups, keys, subs, values = (column.to_pylist() for column in batch.columns)
        prefixes = self._prefixes
        single = self._single
        has_subs = batch.column(3).null_count < batch.num_rows
        if all(single) and not has_subs and max(map(len, keys), default=0) <= LONGEST:
            lengths = LENGTHS
            numbers = GROUPS
            where = [
                prefixes[s] + numbers[g] + lengths[len(k)] + k
                for s, g, k in zip(states, groups, keys, strict=True)
            ]
            return Changes([], where, values)
        waiting = self._waiting
        changes = Changes([], [], [])
        clear = changes.clears.append
        put_key = changes.keys.append
        put_value = changes.values.append
        for s, g, key, sub, value in zip(states, groups, keys, subs, values, strict=True):
            where = prefixes[s] + GROUPS[g] + component(key)
            if s in waiting:
                where = prefixes[s] + time_component(decode_time(sub)) + where[8:]
            elif sub is not None:
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
            f"state {stored.name!r} of operator {stored.uid!r} does not match the program: "
            f"{listed}. Declare the stored type again, or give the state a new name"
        )


Opening = Literal["home", "caught-up", "rebuilt"]
"""How a store was brought up to date: it was, some files were applied, or all of them."""

OnProgress = Callable[[float, float], None]
"""Takes how much of how much is done."""

STORE_FORMAT = 2
_UNFINISHED = -1


class StoreVersion(msgspec.Struct, frozen=True):
    """The marker of a local store, written with every batch.

    Attributes:
        version: Last epoch applied; negative while a file is being applied in parts.
        line: The attempt of the driver that wrote that epoch, if known; see `StateFile.lineage`.
        path: The file it came from.
        scope: Fingerprint of key groups, states and formats the store was filled for.
        swept: Where to look next for entries that have expired.
    """

    version: int
    line: str | None
    path: str
    scope: str
    swept: bytes = b""


class Replica:
    """A local store brought to the newest confirmed epoch, and locked."""

    def __init__(self, store: LocalStore, lock: DirectoryLock) -> None:
        self.store = store
        self.opening: Opening = "home"
        self.directory = lock.directory
        self._lock: DirectoryLock | None = lock

    def close(self) -> None:
        if self._lock is None:
            return
        lock = self._lock
        self._lock = None
        try:
            self.store.close()
        finally:
            if self.store.broken or lock.private:
                remove_store(self.directory)
            lock.release()


def open_replica(
    kind: str,
    directory: Path,
    files: Sequence[StateFile],
    read: ReadFile,
    schemas: Sequence[StateSchema],
    groups: tuple[int, int],
    layout: str = "",
    asked_late: Collection[str] = (),
    now_ms: int = 0,
    on_progress: OnProgress | None = None,
) -> Replica:
    """Open the local store of a partition and bring it to the last epoch of its files.

    When another process has the directory locked, a private store beside it is used instead, and
    removed on close. Of the files, which are all that hold any of the key groups, only rows of the
    states in `schemas` count. Whatever else decides which rows count, such as the operators' own
    parallelism, is the `layout`: a store filled under another one is rebuilt. Of the operators
    `asked_late` all states count: they ask for them when they can read them already. A store that
    is caught up loses some of the entries that have expired by `now_ms`. `on_progress` is told now
    and then how many rows of how many are applied.

    Raises:
        CorruptFileError: A file is not what the manifest says; nothing is served.
        IncompatibleStateError: A stored state does not fit the program.
    """
    scope = _scope(kind, schemas, groups, layout)
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock.take(directory)
    if lock is None:
        lock = take_private(directory)
    else:
        sweep_private(directory)
    replica = None
    try:
        replica = Replica(_open_store(kind, lock.directory), lock)
        version = _version_of(replica.store)
        todo = _outstanding(version, files, scope)
        if todo is None:
            _wipe(replica, kind)
            todo = in_order(files)
            replica.opening = "rebuilt" if todo else "home"
        elif todo:
            replica.opening = "caught-up"
        report = on_progress or (lambda done, total: None)
        applied = _apply(replica, todo, read, schemas, groups, scope, asked_late, report)
        if version is not None and replica.opening == "caught-up":
            _sweep(replica.store, [*schemas, *applied.late], now_ms, version.swept, applied.entries)
        if todo:
            replica.store.settle()
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
    if not any(_same_lineage(stored, file) for file in files):
        return None
    todo = in_order(file for file in files if file.last_epoch > stored.version)
    # A complete file has no tombstones: what it lacks would live on in an older store.
    return None if any(file.complete for file in todo) else todo


def _same_lineage(stored: StoreVersion, file: StateFile) -> bool:
    """Whether a file proves that the store's last epoch is in this job's past."""
    if file.last_epoch == stored.version and file.path == stored.path:
        return True
    return stored.line is not None and file.line_at(stored.version) == stored.line


class _Applied(NamedTuple):
    """How many entries were written, and the states of operators that ask for them late."""

    entries: int
    late: tuple[StateSchema, ...]


def _apply(
    replica: Replica,
    todo: list[StateFile],
    read: ReadFile,
    schemas: Sequence[StateSchema],
    groups: tuple[int, int],
    scope: str,
    asked_late: Collection[str],
    on_progress: OnProgress,
) -> _Applied:
    """Apply files to the store."""
    store = replica.store
    written = 0
    done = 0
    total = sum(file.rows for file in todo)
    is_empty = replica.opening == "rebuilt"  # and nothing worth until the first file is in it
    late_schemas: dict[tuple[str, str], StateSchema] = {}
    for file, after in zip_longest(todo, todo[1:]):
        delta = open_delta(file, read)
        first = max(groups[0], file.first_group)
        last = min(groups[1], file.last_group)
        mine = [schema for schema in schemas if schema.uid in file.operators]
        late = [uid for uid in file.operators if uid in asked_late]
        applier = Applier(delta.schemas, mine, first, last, late)
        late_schemas |= {schema.id: schema for schema in delta.schemas if schema.uid in late}
        version = StoreVersion(file.last_epoch, file.line_at(file.last_epoch), file.path, scope)
        finished = msgspec.msgpack.encode(version)
        unfinished = msgspec.msgpack.encode(msgspec.structs.replace(version, version=_UNFINISHED))
        if after is not None and after.last_epoch == file.last_epoch:
            finished = unfinished  # the epoch is spread over several files, as after a rescale
        batches = delta.batches(first, last)
        if not batches:
            store.write(Changes([], [], []), finished)
            is_empty = is_empty and finished is unfinished
        for number, read_batch in enumerate(batches, 1):
            changes = applier.changes(read_batch())
            written += len(changes.keys)
            marker = finished if number == len(batches) else unfinished
            (store.load if is_empty else store.write)(changes, marker)
            is_empty = is_empty and marker is unfinished
            on_progress(done + file.rows * number / len(batches), total)
        done += file.rows
    return _Applied(written, tuple(late_schemas.values()))


def _sweep(
    store: LocalStore, schemas: Sequence[StateSchema], now_ms: int, start: bytes, written: int
) -> None:
    """Remove entries that have expired; as many are looked at as the entries written demand.

    The files may still have them, or have lost them in a merge: what has expired is not there
    either way, and a store for another time to live is rebuilt.
    """
    size = max((s.ttl.swept for s in schemas if s.ttl is not None), default=0)
    if not size * written:
        return
    keys, upto = expired_keys(store, schemas, now_ms, start, size * written)
    version = _version_of(store)
    assert version is not None, "the store has just been written to"
    marker = msgspec.msgpack.encode(msgspec.structs.replace(version, swept=upto))
    store.write(Changes([], keys, [None] * len(keys)), marker)


def _open_store(kind: str, directory: Path) -> LocalStore:
    """Open a store; one that cannot be opened is replaced by an empty one."""
    if kind not in _STORES:
        raise ConfigurationError(
            f"unknown state backend {kind!r}; available: {' and '.join(_STORES)}"
        )
    try:
        return _STORES[kind](directory)
    except StateError:
        remove_store(directory)
        return _STORES[kind](directory)


_STORES: dict[str, Callable[[Path], LocalStore]] = {
    "hashmap": HashMapStore,
    "rocksdb": RocksStore,
}


def _wipe(replica: Replica, kind: str) -> None:
    with suppress(StateError):
        if next(replica.store.scan(b""), None) is None:
            return
    replica.store.close()
    remove_store(replica.directory)
    replica.store = _open_store(kind, replica.directory)


def _version_of(store: LocalStore) -> StoreVersion | None:
    try:
        data = store.marker()
        return None if data is None else msgspec.msgpack.decode(data, type=StoreVersion)
    except (StateError, *UNDECODABLE):
        return None


def _scope(kind: str, schemas: Sequence[StateSchema], groups: tuple[int, int], layout: str) -> str:
    prefixes: dict[bytes, StateSchema] = {}
    for schema in schemas:
        twin = prefixes.setdefault(state_prefix(*schema.id), schema)
        if twin.id != schema.id:
            raise StateError(
                f"the states {twin.id} and {schema.id} have the same hash; rename one of them"
            )
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
