"""What the job of a soak works with besides files: a Spark cluster, a database and a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.kafka import KafkaBroker
from services.postgres import PASSWORD, PostgresServer, postgres_server
from services.spark import SparkCluster, spark_cluster

_PASSWORD_FROM = "SOAK_PASSWORD"
ACCOUNT_TABLE = (
    "CREATE TABLE accounts (account text, seq bigint, count bigint, total bigint, recent bigint, "
    "region text, amount bigint, PRIMARY KEY (account, count))"
)
ACCOUNT_COLUMNS = ("account", "seq", "count", "total", "recent", "region", "amount")


@dataclass(frozen=True)
class Servers:
    """Running servers, all of which may be killed.

    Attributes:
        topic: Where the rows of regions go; those of accounts go to a table.
    """

    cluster: SparkCluster
    database: PostgresServer
    broker: KafkaBroker
    topic: str

    @property
    def settings(self) -> dict[str, str]:
        """What the job's configuration needs for them."""
        return {"spark.master": self.cluster.master, **self.cluster.settings}

    @property
    def environment(self) -> dict[str, str]:
        return {_PASSWORD_FROM: PASSWORD}

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the job's script is told."""
        return (
            *("--postgres", self.database.dsn, "--password-from", _PASSWORD_FROM),
            *("--kafka", self.broker.servers, "--topic", self.topic),
        )

    def account_rows(self) -> list[dict[str, Any]]:
        """What a reader of the table sees."""
        rows = self.database.query(f"SELECT {', '.join(ACCOUNT_COLUMNS)} FROM accounts")
        return [dict(zip(ACCOUNT_COLUMNS, row, strict=True)) for row in rows]

    def region_rows(self) -> list[dict[str, Any]]:
        """What a reader of the topic sees that reads only what is committed."""
        return [json.loads(value) for _, value in self.broker.read(self.topic)]

    def left_open(self) -> list[str]:
        """Transactions that nobody has settled."""
        return self.database.prepared()


@contextmanager
def running_servers(directory: Path, java: str) -> Iterator[Servers]:
    """Run all of them below a directory."""
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server())
        database.run(ACCOUNT_TABLE)
        home = directory / "kafka"
        home.mkdir(parents=True)
        broker = KafkaBroker(home)
        broker.start()
        stack.callback(broker.stop)
        work = directory / "cluster"
        work.mkdir()
        environment = {"JDK_JAVA_OPTIONS": java, _PASSWORD_FROM: PASSWORD}
        cluster = stack.enter_context(spark_cluster(work, environment=environment))
        yield Servers(cluster, database, broker, broker.create_topic(2))
