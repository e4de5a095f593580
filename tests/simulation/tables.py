"""The real table sinks, over a log or catalog of the simulation.

Their files are in a storage of the world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar
from unittest import mock

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import CommitStateUnknownException

from simulation import delta_log, iceberg_catalog
from simulation.delta_log import DeltaTable
from simulation.world import SimStorage, World
from turnback.connectors.tables import DeltaSink, IcebergSink, delta
from turnback.connectors.tables import sink as table_sink
from turnback.sinks.base import Sink
from turnback.sinks.ownership import HIDDEN, SUFFIX
from turnback.storage import open as storage_open
from turnback.storage.base import Storage

T = TypeVar("T")
_JOINED = {"write_every": 2}
_DELTA: dict[str, dict[str, Any]] = {"delta": {}, "delta-joined": _JOINED}
_ICEBERG: dict[str, dict[str, Any]] = {"iceberg": {}, "iceberg-joined": _JOINED}
KINDS = {**_DELTA, **_ICEBERG}
"""What the sink of each is told."""


class DeltaNetwork(delta_log.Network):
    def __init__(self, world: World) -> None:
        self._world = world

    def call(self, what: str, action: Callable[[], T], *, writes: bool) -> T:
        return self._world.call(what, action, DeltaError, writes=writes)

    def is_late(self) -> bool:
        return self._world.here() is None


class IcebergNetwork(iceberg_catalog.Network):
    def __init__(self, world: World) -> None:
        self._world = world

    def call(self, what: str, action: Callable[[], T], *, writes: bool) -> T:
        return self._world.call(what, action, CommitStateUnknownException, writes=writes)


class Stores:
    """Where the files of the tables are, in the world that is being played."""

    by_kind: ClassVar[dict[str, SimStorage]] = {}


class SimulatedDelta(DeltaSink):
    """A Delta sink whose files are in a storage of the world."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"/simulated/{kind}", **KINDS[kind])
        self.place_of_files = kind

    def storage(self) -> Storage:
        return Stores.by_kind[self.place_of_files]


class SimulatedIceberg(IcebergSink):
    """An Iceberg sink whose catalog is a simulated one."""

    def __init__(self, kind: str) -> None:
        super().__init__({"type": "simulated"}, _iceberg_name(kind), **KINDS[kind])
        self.place_of_files = kind

    def load_catalog(self) -> Any:
        return iceberg_catalog.Catalog()

    def storage(self) -> Storage:
        return Stores.by_kind[self.place_of_files]


def sink(kind: str) -> Sink:
    return SimulatedDelta(kind) if kind in _DELTA else SimulatedIceberg(kind)


def rows(kind: str) -> list[tuple[Any, ...]]:
    """What readers see, in the order of the commits; they stumble over a file that is gone."""
    found = []
    for path in _referenced(kind):
        data = Stores.by_kind[kind].inner.get(path)
        found += [tuple(row.values()) for row in pq.read_table(pa.BufferReader(data)).to_pylist()]
    return found


def left(kind: str, directory_id: str) -> list[str]:
    """The notes of a job about files that nobody has settled.

    A driver that was replaced while it committed may leave files without a note. Nothing refers to
    them, so they do no harm; a vacuum removes them.
    """
    there = Stores.by_kind[kind].inner.list("")
    return [path for path in there if path.endswith(SUFFIX) and f"@{directory_id}/" in path]


def remove_staged(kinds: Iterable[str]) -> None:
    """Do by hand what a refused take-over advises: remove what the former owner has left."""
    for kind in KINDS.keys() & set(kinds):
        files = Stores.by_kind[kind].inner
        for path in files.list(HIDDEN):
            if path.endswith(SUFFIX):
                files.delete(path)


def _referenced(kind: str) -> list[str]:
    if kind in _DELTA:
        log = delta_log.Tables.logs.get(f"/simulated/{kind}")
        commits = log.commits if log is not None else []
        return [path for commit in commits for path, _ in commit.files]
    name = _iceberg_name(kind)
    table = iceberg_catalog.Tables.newest.get(name)
    snapshots = table.snapshots if table is not None else ()
    paths = [path for snapshot in snapshots for path in snapshot.files]
    return [path.removeprefix(f"memory://{name}/") for path in paths]


def _iceberg_name(kind: str) -> str:
    return f"simulated.{kind}"


@contextmanager
def simulated_tables(world: World) -> Iterator[None]:
    """No tables yet."""
    names = {kind: f"simulated-{world.seed}-{kind}" for kind in KINDS}
    Stores.by_kind = {kind: SimStorage(world, name) for kind, name in names.items()}
    delta_log.Tables.logs = {}
    iceberg_catalog.Tables.newest = {}
    iceberg_catalog.Tables.ids = count(1)
    clock = world.clock
    time = SimpleNamespace(time=lambda: clock.now_ms() / 1000, sleep=clock.sleep)
    draws = SimpleNamespace(uniform=random.Random(f"tables {world.seed}").uniform)
    with ExitStack() as patches:
        for owner, name, value in (
            (deltalake, "DeltaTable", DeltaTable),
            (delta_log.Tables, "network", DeltaNetwork(world)),
            (iceberg_catalog.Tables, "network", IcebergNetwork(world)),
            (delta, "time", time),
            (table_sink, "time", time),
            (table_sink, "random", draws),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        try:
            yield
        finally:
            for name in names.values():
                storage_open._ROOTS.pop(name, None)
