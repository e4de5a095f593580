"""A catalog of Iceberg tables in memory: what `IcebergSink` uses of PyIceberg, and no more.

A table is a list of snapshots, each with the files that it adds, and properties. A commit is made
in two steps, as by PyIceberg: it is held against the newest metadata, which must have the snapshot
that the client has seen, and then that metadata is replaced unless somebody else was faster.
`tests/systems/tables/test_simulated_iceberg.py` holds it to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)

T = TypeVar("T")
_RETRIES = "commit.retry.num-retries"
_MOST_RETRIES = "4"


class Network:
    """How clients reach the catalog: here at once and always."""

    def call(self, what: str, action: Callable[[], T], *, writes: bool) -> T:
        return action()


@dataclass(frozen=True)
class Snapshot:
    """What a commit has added."""

    snapshot_id: int
    files: tuple[str, ...]
    told: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Metadata:
    """A version of a table."""

    schema: pa.Schema
    number: int = 0
    snapshots: tuple[Snapshot, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def newest(self) -> int | None:
        return self.snapshots[-1].snapshot_id if self.snapshots else None


class Tables:
    """The tables there are, by their names."""

    network: ClassVar[Network] = Network()
    newest: ClassVar[dict[str, Metadata]] = {}
    ids: ClassVar[Iterator[int]] = count(1)


class Catalog:
    """The catalog as a client has it."""

    def load_table(self, name: str) -> Table:
        return Table(name, _load(name))

    @contextmanager
    def create_table_transaction(self, name: str, schema: pa.Schema) -> Iterator[Any]:
        @contextmanager
        def update_spec() -> Iterator[Any]:
            yield SimpleNamespace()

        yield SimpleNamespace(update_spec=update_spec)

        def is_there() -> bool:
            return name in Tables.newest

        if _call(f"load {name}", is_there, writes=False):
            raise CommitFailedException("Table already exists")

        def create() -> None:
            if name in Tables.newest:
                raise TableAlreadyExistsError(f"Table {name} already exists")
            Tables.newest[name] = Metadata(schema)

        _call(f"create {name}", create, writes=True)


class Table:
    """A table as a client sees it: as of a version of its metadata."""

    def __init__(self, name: str, seen: Metadata) -> None:
        self.name = name
        self.io = None
        self.see(seen)

    def see(self, seen: Metadata) -> None:
        self.seen = seen
        self.properties = dict(seen.properties)
        self.metadata = SimpleNamespace(properties=self.properties)
        self.metadata_location = f"{self.location()}/metadata/{seen.number}.json"

    def location(self) -> str:
        return f"memory://{self.name}"

    def schema(self) -> Any:
        schema = self.seen.schema
        return SimpleNamespace(as_arrow=lambda: schema, column_names=schema.names)

    def spec(self) -> Any:
        return SimpleNamespace(fields=[])

    def scan(self) -> Any:
        paths = [path for snapshot in self.seen.snapshots for path in snapshot.files]
        tasks = [SimpleNamespace(file=SimpleNamespace(file_path=path)) for path in paths]
        return SimpleNamespace(plan_files=lambda: tasks)

    def current_snapshot(self) -> Any:
        return self.snapshots()[-1] if self.seen.snapshots else None

    def snapshots(self) -> list[Any]:
        return [
            SimpleNamespace(
                snapshot_id=snapshot.snapshot_id,
                sequence_number=number,
                summary=SimpleNamespace(additional_properties=dict(snapshot.told)),
            )
            for number, snapshot in enumerate(self.seen.snapshots, 1)
        ]

    def transaction(self) -> Transaction:
        return Transaction(self)


class Transaction:
    """Changes of a table, to be committed at once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._properties: dict[str, str] = {}
        self._snapshot: Snapshot | None = None

    def add_files(
        self,
        file_paths: Sequence[str],
        snapshot_properties: Mapping[str, str],
        check_duplicate_files: bool,
    ) -> None:
        self._append(tuple(file_paths), snapshot_properties)

    def update_snapshot(self, snapshot_properties: Mapping[str, str]) -> Any:
        @contextmanager
        def fast_append() -> Iterator[None]:
            yield
            self._append((), snapshot_properties)

        return SimpleNamespace(fast_append=fast_append)

    def _append(self, files: tuple[str, ...], told: Mapping[str, str]) -> None:
        assert self._snapshot is None, "a transaction of the sink has one snapshot"
        self._snapshot = Snapshot(next(Tables.ids), files, dict(told))

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self._properties |= properties

    def commit_transaction(self) -> Table:
        retries = int(self._table.properties.get(_RETRIES, _MOST_RETRIES))
        for tried in range(retries + 1):
            try:
                self._table.see(self._commit())
                break
            except CommitFailedException:
                if tried == retries or self._snapshot is None:
                    raise
            # PyIceberg puts an append behind whatever was committed meanwhile.
            self._table.see(_load(self._table.name))
            if self._snapshot in self._table.seen.snapshots:
                break
        return self._table

    def _commit(self) -> Metadata:
        name = self._table.name
        base = _load(name)
        if self._snapshot is not None and base.newest != self._table.seen.newest:
            raise CommitFailedException("Requirement failed: branch main has changed")
        added = () if self._snapshot is None else (self._snapshot,)
        new = replace(
            base,
            number=base.number + 1,
            snapshots=(*base.snapshots, *added),
            properties={**base.properties, **self._properties},
        )

        def swap() -> None:
            if Tables.newest.get(name) is not base:
                raise CommitFailedException("Table has been updated by another process")
            Tables.newest[name] = new

        files = [] if self._snapshot is None else list(self._snapshot.files)
        _call(f"commit {files} {self._properties}", swap, writes=True)
        return new


def _load(name: str) -> Metadata:
    def load() -> Metadata:
        if name not in Tables.newest:
            raise NoSuchTableError(f"Table does not exist: {name}")
        return Tables.newest[name]

    return _call(f"load {name}", load, writes=False)


def _call(what: str, action: Callable[[], T], *, writes: bool) -> T:
    return Tables.network.call(f"iceberg: {what}", action, writes=writes)
