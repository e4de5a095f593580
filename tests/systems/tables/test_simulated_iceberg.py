"""The Iceberg catalog of the simulation answers as PyIceberg's does: the same steps and answers.

Steps are what the sink does: several clients that look at a table at different times, and commit
files together with properties.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from simulation import iceberg_catalog
from turnback.connectors.tables import IcebergSink, iceberg
from turnback.connectors.tables.files import TableFile
from turnback.connectors.tables.sink import ConflictError, Mark
from turnback.sinks.base import CommitterContext
from turnback.sinks.ownership import SinkIdentity
from turnback.values.typeinfo import Types

_WALKS = 6
_STEPS = 14
_CLIENTS = 3
_TABLE = "db.likes"
_RETRIES = "commit.retry.num-retries"
_SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])
_ROW = Types.ROW_NAMED(["key", "n"], [Types.STRING(), Types.LONG()])


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    with (
        mock.patch.object(iceberg_catalog.Tables, "newest", {}),
        mock.patch.object(iceberg_catalog.Tables, "ids", count(1)),
    ):
        yield


def _catalogs(path: Path) -> tuple[Any, Any]:
    path.mkdir()
    real = load_catalog(
        "default",
        type="sql",
        uri=f"sqlite:///{path}/catalog.db",
        warehouse=f"file://{path}/warehouse",
    )
    real.create_namespace("db")
    return real, iceberg_catalog.Catalog()


class Side:
    """A table, real or simulated, and its clients."""

    def __init__(self, catalog: Any, files: Path) -> None:
        self._catalog = catalog
        self._files = files
        self._clients: list[Any] = [None] * _CLIENTS

    def create(self) -> Any:
        try:
            with (
                self._catalog.create_table_transaction(_TABLE, _SCHEMA) as transaction,
                transaction.update_spec(),
            ):
                pass
        except (CommitFailedException, TableAlreadyExistsError) as error:
            return type(error)
        return None

    def open(self, client: int, rebases: bool) -> Any:
        try:
            self._clients[client] = self._catalog.load_table(_TABLE)
        except NoSuchTableError:
            return "not found"
        if not rebases:
            self._clients[client].metadata.properties[_RETRIES] = "0"
        return self.seen(client)

    def commit(self, client: int, files: list[str] | None, said: str) -> Any:
        """Add files, a snapshot without any, or, with None, set a property alone."""
        table = self._clients[client]
        if table is None:
            return None
        transaction = table.transaction()
        if files:
            paths = [str(self._files / name) for name in files]
            transaction.add_files(
                paths, snapshot_properties={"said": said}, check_duplicate_files=False
            )
        elif files is not None:
            update = transaction.update_snapshot(snapshot_properties={"said": said})
            with update.fast_append():
                pass
        transaction.set_properties({"mark": said})
        try:
            self._clients[client] = transaction.commit_transaction()
        except CommitFailedException:
            return "conflict", self.seen(client)
        return self.seen(client)

    def seen(self, client: int) -> Any:
        """All that a client says of the table."""
        table = self._clients[client]
        snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number)
        return (
            sorted(Path(task.file.file_path).name for task in table.scan().plan_files()),
            [one.summary.additional_properties.get("said") for one in snapshots],
            table.properties.get("mark"),
            table.current_snapshot() is None,
            table.schema().as_arrow().names,
            list(table.schema().column_names),
            list(table.spec().fields),
        )


def test_the_same_steps_get_the_same_answers(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for walk in range(_WALKS):
        rng = random.Random(walk)
        iceberg_catalog.Tables.newest.clear()
        sides = [Side(catalog, files) for catalog in _catalogs(tmp_path / str(walk))]
        story: list[Any] = []
        for number in range(_STEPS):
            client = rng.randrange(_CLIENTS)
            name, arguments = rng.choice(
                (
                    ("create", ()),
                    ("open", (client, rng.random() < 0.3)),
                    *[("commit", (client, _new_files(rng, files, number), str(number)))] * 3,
                )
            )
            answers = [getattr(side, name)(*arguments) for side in sides]
            story.append((name, arguments, *answers))
            assert answers[0] == answers[1], f"walk {walk}: {story}"


def _new_files(rng: random.Random, where: Path, number: int) -> list[str] | None:
    if rng.random() < 0.2:
        return None
    names = [f"part-{number}-{place}.parquet" for place in range(rng.randint(0, 2))]
    for name in names:
        pq.write_table(pa.table({"key": ["a"], "n": [1]}, schema=_SCHEMA), where / name)
    return names


def test_the_sink_sees_the_same_in_both(tmp_path: Path) -> None:
    answers = []
    for catalog in _catalogs(tmp_path / "catalog"):
        with mock.patch.object(iceberg, "_load", return_value=catalog):
            answers.append(_sink_story(tmp_path))
    assert answers[0] == answers[1]


def _sink_story(path: Path) -> list[Any]:
    """Two drivers at one table; the second commits first."""
    ctx = CommitterContext(
        "likes", "id-1", "out", 1, type=_ROW, job_directory=f"{path}-job", nonce="ab"
    )
    identity = SinkIdentity.of(ctx)
    sink = IcebergSink({"type": "simulated"}, _TABLE)
    drivers = [iceberg.IcebergTarget(sink, ctx) for _ in range(2)]
    story: list[Any] = [drivers[0].exists()]
    drivers[0].create(_ROW)
    drivers[1].create(_ROW)
    location = sink.load_catalog().load_table(_TABLE).location()
    if location.startswith("file://"):
        data = Path(location.removeprefix("file://")) / "data"
        data.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"key": ["a"], "n": [1]}, schema=_SCHEMA), data / "1.parquet")
    for driver in drivers:
        driver.check(_ROW)
        with mock.patch.object(iceberg, "sync_files"):
            driver.look()
        story += [driver.remembered(identity), driver.version()]
    file = TableFile("data/1.parquet", 10, 1)
    with mock.patch.object(iceberg, "sync_files"), mock.patch.object(sink, "storage"):
        drivers[1].append([file], Mark(identity, 7, 2, "00000000ab", 3), "joined")
        story.append(drivers[1].remembered(identity))
        with pytest.raises(ConflictError):
            drivers[0].append([file], Mark(identity, 6, 1))
        drivers[0].look()
        story.append(drivers[0].remembered(identity))
        story.append(drivers[0].referenced(["data/1.parquet", "data/2.parquet"]))
        story.append(drivers[0].find_join(identity, 7))
        told = drivers[0].newest_commit(ctx.directory_id) or {}
        story.append({name: text for name, text in told.items() if name.startswith("turnback.")})
        drivers[0].mark(Mark(identity, 8, 3))
        story.append(drivers[0].remembered(identity))
    return story
