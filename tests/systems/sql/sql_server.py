"""SQL servers as the contracts of their sinks see them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from services import mariadb, postgres
from turnback.connectors.sql import MySqlSink, PostgresSink
from turnback.connectors.sql import database as sql_database
from turnback.connectors.sql.sink import SqlSink
from turnback.errors import StorageError
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.values.columns import Batch

Task, Driver = Callable[..., WriterContext], Callable[..., CommitterContext]


class SqlServer(ABC):
    """What a contract needs of a server.

    Attributes:
        password: Of its user; must appear nowhere.
        foreign: Statements with which another program prepares a transaction of table `posts`.
        exact: What makes a column of text tell all texts apart.
    """

    password: str
    foreign: tuple[str, ...]
    exact: str = ""

    def __init__(self, server: Any) -> None:
        self.server = server

    @abstractmethod
    def sink(self, table: str = "posts", port: int | None = None, **arguments: Any) -> SqlSink:
        """A sink of the server, at another port if wanted."""

    @abstractmethod
    def settle_foreign(self) -> None:
        """Roll back what `foreign` prepared."""

    def rows(self) -> list[tuple[Any, ...]]:
        return list(self.server.query("SELECT post, n FROM posts ORDER BY n, post"))

    def ours(self) -> list[str]:
        return [name for name in self.server.prepared() if name.startswith("turnback:")]

    def clear(self) -> None:
        """Make the tables anew."""
        self.server.roll_back_prepared()
        tables = ("posts", "latest", *sql_database.HELPERS)
        self.server.run(*(f"DROP TABLE IF EXISTS {table}" for table in tables))
        self.server.run(
            "CREATE TABLE posts (post text, n bigint)",
            f"CREATE TABLE latest (post varchar(50) {self.exact} PRIMARY KEY, n bigint)",
        )

    def create(self, columns: str) -> None:
        """Make the table `kinds` anew."""
        self.server.run("DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds ({columns})")

    def kinds(self) -> list[tuple[Any, ...]]:
        return list(self.server.query("SELECT * FROM kinds"))


class History:
    """The attempts that a job directory knows of, by number, with their nonces."""

    def __init__(self, **nonces: str) -> None:
        self._nonces = {int(name.removeprefix("a")): nonce for name, nonce in nonces.items()}

    def nonce_of(self, attempt: int) -> str | None:
        return self._nonces.get(attempt)


class Checkpoints:
    """The newest epoch of each attempt that has a checkpoint."""

    def __init__(self, **epochs: int) -> None:
        self._epochs = {int(name.removeprefix("a")): epoch for name, epoch in epochs.items()}

    def newest_epoch(self, attempt: int) -> int | None:
        return self._epochs.get(attempt)


class Promising:
    """Other jobs, of which the one in each directory has promised so many transactions."""

    def __init__(self, promised: int | None) -> None:
        self.promised = promised
        self.asked: list[str] = []

    def promised_by(self, directory: str) -> int:
        self.asked.append(directory)
        if self.promised is None:
            raise StorageError("no access")
        return self.promised


def write(sink: SqlSink, ctx: WriterContext, *rows: Any) -> bytes:
    writer = sink.writer(ctx)
    writer.write(Batch(ctx.type, list(rows)))
    prepared = writer.prepare()
    assert prepared is not None
    return prepared


class Postgres(SqlServer):
    password = postgres.PASSWORD
    foreign = ("BEGIN", "INSERT INTO posts VALUES ('foreign', 1)", "PREPARE TRANSACTION 'theirs'")

    def sink(self, table: str = "posts", port: int | None = None, **arguments: Any) -> SqlSink:
        given = {"password": self.password} | arguments
        if given["password"] is None:
            del given["password"]
        dsn = self.server.dsn.replace(str(self.server.port), str(port or self.server.port))
        return PostgresSink(dsn, table=table, **given)

    def settle_foreign(self) -> None:
        self.server.run("ROLLBACK PREPARED 'theirs'")


class MariaDb(SqlServer):
    password = mariadb.PASSWORD
    exact = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    foreign = (
        *("XA START 'theirs','1'", "INSERT INTO posts VALUES ('foreign', 1)"),
        *("XA END 'theirs','1'", "XA PREPARE 'theirs','1'"),
    )

    def sink(self, table: str = "posts", port: int | None = None, **arguments: Any) -> SqlSink:
        given = self.server.parameters | {"password": self.password, "table": table} | arguments
        return MySqlSink(**(given | {"port": port or self.server.port}))

    def settle_foreign(self) -> None:
        self.server.run("XA ROLLBACK 'theirs','1'")


S = TypeVar("S", bound=SqlServer)


def with_new_tables(db: S) -> Iterator[S]:
    """A server for one test, which leaves nothing prepared."""
    db.clear()
    yield db
    db.server.roll_back_prepared()
