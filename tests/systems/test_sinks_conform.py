"""Our own sinks for other systems keep what `check_sink` asks of sinks of users."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError
from pyiceberg.exceptions import NoSuchTableError
from sql_contract import no_grace
from table_support import PLACES, POSTS, Place
from test_mariadb import MariaDb
from test_postgres import Postgres

from services.mariadb import MariaDbServer
from services.postgres import PostgresServer
from services.redis import PASSWORD, RedisServer
from turnback import RedisSink
from turnback.sinks.base import Sink
from turnback.sinks.tables import TableSink
from turnback.testing import Promise, check_sink

__all__ = ["no_grace"]

ROWS = [(f"p{n}", n, "monday") for n in range(4)]
LIKES, LIKED = "post string, n bigint", [(f"p{n}", n) for n in range(4)]


@pytest.mark.parametrize("how", [{}, {"mode": "upsert", "key": ["post"]}], ids=["append", "upsert"])
@pytest.mark.parametrize("format", PLACES)
def test_tables(tmp_path: Path, format: str, how: dict[str, Any]) -> None:
    places: dict[int, Place] = {}
    numbers = itertools.count()

    def make() -> TableSink:
        base = tmp_path / str(next(numbers))
        base.mkdir()
        place = PLACES[format](base)
        sink = place.sink(**how)
        places[id(sink)] = place
        return sink

    def read(sink: TableSink) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row.values()) for row in places[id(sink)].read().to_pylist()]
        except (TableNotFoundError, NoSuchTableError):
            return []

    report = check_sink(make, read, type=POSTS, elements=ROWS)
    assert {Promise.OWNED, Promise.FENCED, Promise.OTHER_PROCESS} <= set(report.kept)


def check_database(db: Any, table: str, make: Callable[[], Sink]) -> None:
    def anew() -> Sink:
        db.clear()
        return make()

    def read(sink: Sink) -> list[tuple[Any, ...]]:
        return list(db.server.query(f"SELECT post, n FROM {table}"))

    report = check_sink(anew, read, type=LIKES, elements=LIKED)
    assert {Promise.OWNED, Promise.FENCED, Promise.OTHER_PROCESS} <= set(report.kept)
    assert db.ours() == []


def test_rows_of_postgres(postgres: PostgresServer) -> None:
    db = Postgres(postgres)
    check_database(db, "posts", db.sink)


def test_latest_of_postgres(postgres: PostgresServer) -> None:
    db = Postgres(postgres)
    check_database(db, "latest", lambda: db.sink("latest", mode="upsert", key="post"))


def test_rows_of_mariadb(mariadb: MariaDbServer) -> None:
    db = MariaDb(mariadb)
    check_database(db, "posts", db.sink)


def test_redis(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    numbers = itertools.count()

    def make() -> RedisSink:
        prefix = f"conform-{next(numbers)}:"
        return RedisSink(redis.url, key="post", prefix=prefix, password_from="REDIS_PASSWORD")

    def read(sink: RedisSink) -> list[tuple[str, int]]:
        with redis.connect() as client:
            found = {key: client.hget(key, "n") for key in client.scan_iter(f"{sink.prefix}p*")}
        start = len(sink.prefix)
        return [(key.decode()[start:], int(n)) for key, n in found.items()]

    report = check_sink(
        make, read, type=LIKES, elements=LIKED, update=(LIKED[1], ("p1", 7)), idempotent=True
    )
    assert {Promise.NEWER_STAYS, Promise.OWNED} <= set(report.kept)
