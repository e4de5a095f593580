"""Where the ledger job writes: what its sinks are told, and what an independent reader finds.

Readers use nothing of Turnback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from services.kafka import KafkaBroker
from services.redis import RedisServer

Numbered = tuple[str, int, int]
"""A key, the number of a transfer within it, and the one before."""
_HELPERS = ("turnback_owners", "turnback_commits", "turnback_progress")


class Target(Protocol):
    """One system that the ledger job writes to.

    Attributes:
        kind: As the job names it.
        parameters: How its sinks connect.
        password: For them.
        whole_epochs: Whether a reader of the balances sees all of an epoch or nothing.
    """

    kind: str
    parameters: dict[str, Any]
    password: str
    whole_epochs: bool

    def create(self) -> None:
        """Make it empty."""

    def sequence(self) -> list[Numbered]:
        """All rows that readers see."""

    def balances(self) -> dict[str, int]:
        """The balance of every account."""


class SqlTarget:
    """Two tables in PostgreSQL or MariaDB."""

    whole_epochs = True

    def __init__(self, kind: str, server: Any, parameters: dict[str, Any], password: str) -> None:
        self.kind, self.server = kind, server
        self.parameters, self.password = parameters, password
        self._key = "`key`" if kind == "mysql" else '"key"'

    def create(self) -> None:
        names = ("sequence", "balances", *_HELPERS)
        exact = "COLLATE utf8mb4_bin" if self.kind == "mysql" else ""
        self.server.run(*(f"DROP TABLE IF EXISTS {name}" for name in names))
        self.server.run(
            f"CREATE TABLE sequence ({self._key} varchar(20), seq bigint, previous bigint)",
            f"CREATE TABLE balances (account varchar(20) {exact} PRIMARY KEY, balance bigint)",
        )

    def sequence(self) -> list[Numbered]:
        return list(self.server.query(f"SELECT {self._key}, seq, previous FROM sequence"))

    def balances(self) -> dict[str, int]:
        return dict(self.server.query("SELECT account, balance FROM balances"))


class KafkaTarget:
    """Two topics; of the balances of an account the last one counts."""

    kind, password, whole_epochs = "kafka", "", False

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self.parameters: dict[str, Any] = {}

    def create(self) -> None:
        topics = {name: self._broker.create_topic(3) for name in ("sequence", "balances")}
        self.parameters = {"servers": self._broker.servers, **topics}

    def sequence(self) -> list[Numbered]:
        return [(row["key"], row["seq"], row["previous"]) for row in self._read("sequence")]

    def balances(self) -> dict[str, int]:
        return {row["account"]: row["balance"] for row in self._read("balances")}

    def _read(self, name: str) -> Iterator[dict[str, Any]]:
        return (json.loads(value) for _, value in self._broker.read(self.parameters[name]))


class TableTarget:
    """Two Delta or Iceberg tables."""

    password, whole_epochs = "", True

    def __init__(self, kind: str, base: Path) -> None:
        self.kind, self._base = kind, base
        self.parameters: dict[str, Any] = {"base": str(base)}

    def create(self) -> None:
        number, text = pa.int64(), pa.string()
        schemas = {
            "sequence": pa.schema([("key", text), ("seq", number), ("previous", number)]),
            "balances": pa.schema([("account", text), ("balance", number)]),
        }
        for name, schema in schemas.items():
            (self._base / name).mkdir(parents=True)
            self._place(name).create(schema)

    def sequence(self) -> list[Numbered]:
        return self._rows("sequence", "key", "seq", "previous")

    def balances(self) -> dict[str, int]:
        return dict(self._rows("balances", "account", "balance"))

    def _rows(self, name: str, *columns: str) -> list[Any]:
        table = self._place(name).read()
        return list(zip(*(table[column].to_pylist() for column in columns), strict=True))

    def _place(self, name: str) -> Any:
        from table_support import PLACES  # which takes a second, and databases do not need

        return PLACES[self.kind](self._base / name)


class RedisTarget:
    """Hashes in Redis: the last transfer of each key, and the balance of each account."""

    kind, whole_epochs = "redis", False

    def __init__(self, server: RedisServer, password: str) -> None:
        self._server, self.password = server, password
        self.parameters: dict[str, Any] = {"url": server.url}

    def create(self) -> None:
        with self._server.connect() as client:
            client.flushall()

    def read(self) -> dict[str, dict[str, str]]:
        """All hashes that the job has written, each as it was at one moment."""
        with self._server.connect(decode_responses=True) as client:
            keys = [
                key for prefix in ("sequence", "balances") for key in client.keys(f"{prefix}:*")
            ]
            return {key: client.hgetall(key) for key in keys}

    def sequence(self) -> list[Numbered]:
        return [
            (key.removeprefix("sequence:"), int(found["seq"]), int(found["previous"]))
            for key, found in self.read().items()
            if "seq" in found
        ]

    def balances(self) -> dict[str, int]:
        return {
            key.removeprefix("balances:"): int(found["balance"])
            for key, found in self.read().items()
            if "balance" in found
        }
