"""The Delta tables of the simulation answer as the library's do: the same steps, the same answers.

Steps are what the sink does: several clients that look at a table at different times, and commit
files together with the numbers of applications.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from simulation import delta_log
from simulation.delta_log import Tables
from turnback.connectors.tables import DeltaSink, delta
from turnback.connectors.tables.files import TableFile
from turnback.connectors.tables.sink import ConflictError, Mark
from turnback.sinks.base import CommitterContext
from turnback.sinks.ownership import SinkIdentity
from turnback.values.typeinfo import Types

_WALKS = 12
_STEPS = 20
_CLIENTS = 3
APPS = ("one", "two", "three")
_ROW = Types.ROW_NAMED(["key", "n"], [Types.STRING(), Types.LONG()])


class Side:
    """A table, real or simulated, and its clients."""

    def __init__(self, library: Any, uri: str) -> None:
        self._library = library
        self._uri = uri
        self._clients: list[Any] = [None] * _CLIENTS

    def create(self) -> Any:
        columns = pa.schema([("key", pa.string()), ("n", pa.int64())])
        schema = deltalake.Schema.from_arrow(columns)
        try:
            self._library.create(self._uri, schema, partition_by=[])
        except Exception as error:  # noqa: BLE001 - compared
            return isinstance(error, deltalake.exceptions.DeltaError)
        return None

    def open(self, client: int) -> Any:
        try:
            self._clients[client] = self._library(self._uri)
        except TableNotFoundError:
            return "not found"
        return self.seen(client)

    def update(self, client: int) -> Any:
        if self._clients[client] is not None:
            self._clients[client].update_incremental()
        return self.seen(client)

    def commit(self, client: int, files: list[str], numbers: dict[str, int]) -> Any:
        table = self._clients[client]
        if table is None:
            return None
        transactions = [deltalake.Transaction(app, number) for app, number in numbers.items()]
        told = {"said": json.dumps(numbers, sort_keys=True)}
        properties = deltalake.CommitProperties(app_transactions=transactions, custom_metadata=told)
        stats = '{"numRecords":1}'
        actions = [AddAction(path, 10, {}, 0, True, stats) for path in files]
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), [], commit_properties=properties
            )
        except CommitFailedError:
            return "conflict", self.seen(client)
        table.update_incremental()
        return self.seen(client)

    def seen(self, client: int) -> Any:
        """All that a client says of the table."""
        table = self._clients[client]
        if table is None:
            return None
        actions = pa.table(table.get_add_actions(flatten=True))
        paths = actions.column("path").to_pylist()
        files = zip(paths, actions.column("size_bytes").to_pylist(), strict=True)
        return (
            table.version(),
            sorted(files),
            [table.transaction_version(app) for app in APPS],
            [commit.get("said") for commit in table.history(5)],
            table.metadata().partition_columns,
            pa.schema(table.schema().to_arrow()).names,
        )


def _sides(path: Path) -> tuple[Side, Side]:
    return Side(deltalake.DeltaTable, str(path)), Side(delta_log.DeltaTable, str(path))


@pytest.fixture
def empty() -> Iterator[None]:
    with mock.patch.object(Tables, "logs", {}):
        yield


def test_the_same_steps_get_the_same_answers(tmp_path: Path, empty: None) -> None:
    for walk in range(_WALKS):
        rng = random.Random(walk)
        sides = _sides(tmp_path / str(walk))
        story: list[Any] = []
        for number in range(_STEPS):
            client = rng.randrange(_CLIENTS)
            name, arguments = rng.choice(
                (
                    ("create", ()),
                    ("open", (client,)),
                    ("update", (client,)),
                    *[("commit", (client, _files(rng, number), _numbers(rng)))] * 4,
                )
            )
            answers = [getattr(side, name)(*arguments) for side in sides]
            story.append((name, arguments, *answers))
            assert answers[0] == answers[1], f"walk {walk}: {story}"


def _files(rng: random.Random, number: int) -> list[str]:
    return [f"part-{number}-{place}.parquet" for place in range(rng.randint(0, 2))]


def _numbers(rng: random.Random) -> dict[str, int]:
    return {app: rng.randint(1, 9) for app in APPS if rng.random() < 0.4}


def test_the_sink_sees_the_same_in_both(tmp_path: Path, empty: None) -> None:
    answers = []
    for library in (deltalake.DeltaTable, delta_log.DeltaTable):
        with mock.patch.object(deltalake, "DeltaTable", library):
            answers.append(_sink_story(tmp_path / "table"))
    assert answers[0] == answers[1]


def _sink_story(path: Path) -> list[Any]:
    """Two drivers at one table; the second commits first."""
    ctx = CommitterContext(
        "likes", "id-1", "out", 1, type=_ROW, job_directory=f"{path}-job", nonce="ab"
    )
    identity = SinkIdentity.of(ctx)
    sink = DeltaSink(path)
    drivers = [delta.DeltaTarget(sink, ctx) for _ in range(2)]
    story: list[Any] = [drivers[0].exists()]
    drivers[0].create(_ROW)
    drivers[1].create(_ROW)
    for driver in drivers:
        driver.check(_ROW)
        driver.look()
        story += [driver.remembered(identity), driver.version()]
    file = TableFile("part-1.parquet", 10, 1, stats='{"numRecords":1}')
    drivers[1].append([file], Mark(identity, 7, 2, "00000000ab", 3), "joined")
    story.append(drivers[1].remembered(identity))
    with pytest.raises(ConflictError):
        drivers[0].append([file], Mark(identity, 6, 1))
    drivers[0].look()
    story += [drivers[0].remembered(identity), drivers[0].referenced(["part-1.parquet", "other"])]
    story.append(drivers[0].find_join(identity, 7))
    drivers[0].mark(Mark(identity, 8, 3))
    story += [drivers[0].remembered(identity), drivers[0].version()]
    return story
