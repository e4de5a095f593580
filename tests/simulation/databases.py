"""The real SQL sinks, on simulated servers whose connections fail as the world decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, TypeVar
from unittest import mock

import msgspec
import psycopg
import pymysql

from simulation import mariadb
from simulation.mariadb import MariaDbConnection
from simulation.postgres import PostgresConnection
from simulation.sql import (
    Network,
    RefusedError,
    Server,
    Session,
    SessionOverError,
    Transaction,
)
from simulation.world import Process, World
from turnback.connectors.sql import MySqlSink, PostgresSink, mysql
from turnback.connectors.sql.database import TransactionId
from turnback.sinks.base import Sink

T = TypeVar("T")
C = TypeVar("C")
TEXTS = {"postgres": "text", "mariadb": mariadb.TEXT}
"""The type of the keys."""
TABLES = {
    "rows": "",
    "once": ", UNIQUE (key, n)",
    "newest": ", PRIMARY KEY (key)",
    "all": ", PRIMARY KEY (key, n)",
}
"""The tables of each server, and what their rows are told apart by."""
_MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("rows", {}),
    "-once": ("once", {}),
    "-upsert": ("newest", {"mode": "upsert", "key": "key"}),
    "-set": ("all", {"mode": "upsert", "key": ["key", "n"]}),
}
"""The table for each, and what the sink is told."""
KINDS = {f"{server}{mode}": (server, *_MODES[mode]) for server in TEXTS for mode in _MODES}
_ENDS = ("COMMIT", "PREPARE", "ROLLBACK", "XA")


class SimNetwork(Network):
    """Loses connections and answers, and the server does not notice at once.

    A statement that was sent and not answered was run, will be, or not. A server keeps what a lost
    connection has locked until it notices; it is restarted now and then.
    """

    def __init__(
        self,
        world: World,
        directory_of: Callable[[Process], str],
        promised_by: Callable[[str], set[str]],
    ) -> None:
        self.world = world
        self.intruders: list[str] = []
        """Who has written into a table that was another job's."""
        self.robbed: list[str] = []
        """What jobs had promised and not committed when they lost their table."""
        self._directory_of = directory_of
        self._promised_by = promised_by
        self.server = Server(self)
        rng = world.rng
        self._restarts = sorted(rng.randint(1, 1000) for _ in range(rng.randint(0, 2)))

    def process(self) -> Any:
        actor = self.world.here()
        return actor.process if actor is not None else None

    def call(self, session: Session, what: str, action: Callable[[], T], *, writes: bool) -> T:
        self._restart()

        def run() -> T:
            if self.world.here() is None and session.has_left:
                self._run_late(what, action)
            return action()

        def failure(text: str) -> Exception:
            is_refused = text.endswith(("refused", "full disk"))
            if is_refused and not what.startswith(_ENDS) and self.world.rng.random() < 0.5:
                session.refuse()
                return RefusedError(text)
            return SessionOverError(text)

        return self.world.call(f"sql: {what}", run, failure, writes=writes)

    def _run_late(self, what: str, action: Callable[[], object]) -> NoReturn:
        """Run a statement that comes late as the server does, which may have to wait for a lock."""

        def run() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - nobody waits for the answer
                self.world.tell(f"late: {what} failed: {error!r}")

        self.world.spawn("the server", self.world.process("the server"), run)
        raise SessionOverError

    def connect(self, kind: Callable[[Server], C], failure: Callable[[str], Exception]) -> C:
        what = "sql: connect"
        return self.world.call(what, lambda: kind(self.server), failure, writes=False)

    def see(self, server: Server, transaction: Transaction) -> None:
        self._see_owners(server, transaction)
        written = {table.name for table, _ in transaction.changes} & TABLES.keys()
        if transaction.process is None or not written:
            return
        owners = server.tables["turnback_owners"].rows.values()
        for name in written:
            found = [row["directory"] for row in owners if row["target"].endswith(f".{name}")]
            if found != [self._directory_of(transaction.process)]:
                self.intruders.append(f"{transaction.process.name} into {name} of {found}")

    def _see_owners(self, server: Server, transaction: Transaction) -> None:
        """Note what is promised for a table that changes hands."""
        for (table, number), row in transaction.changes.items():
            old = table.rows.get(number)
            if table.name != "turnback_owners" or old is None or row is None:
                continue
            if old["directory"] != row["directory"]:
                self.robbed += sorted(self._promised_by(old["directory"]) & server.prepared.keys())

    def _restart(self) -> None:
        world = self.world
        while self._restarts and self._restarts[0] <= world.steps and not world.healthy:
            self._restarts.pop(0)
            world.tell("== the database server is restarted")
            self.server.restart()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        return self.world.wait_until(condition, seconds)

    def has_noticed_end(self, session: Session) -> bool:
        world = self.world
        if not session.has_left and (session.process is None or session.process.alive):
            return False
        if world.healthy:
            return True
        if session.leaves_at is None:
            steps = world.rng.choice((0, 0, 0, 20, 200))
            seconds = world.rng.choice((1, 30, 100))
            session.leaves_at = (world.steps + steps, world.clock.monotonic() + seconds)
        step, moment = session.leaves_at
        return world.steps >= step or world.clock.monotonic() >= moment


class Servers:
    """The servers of the world that is being played."""

    by_name: ClassVar[dict[str, Server]] = {}
    networks: ClassVar[list[SimNetwork]] = []


def sink(kind: str) -> Sink:
    server, table, more = KINDS[kind]
    if server == "postgres":
        return PostgresSink(host="simulated", table=table, **more)
    return MySqlSink("simulated", database="shop", user="turnback", table=table, **more)


def rows(kind: str) -> list[tuple[Any, ...]]:
    """What readers see, in the order in which it became visible."""
    server, table, _ = KINDS[kind]
    found = Servers.by_name[server].tables[table].rows.values()
    return [tuple(row.values()) for row in found]


def intruders() -> list[str]:
    """Who has written into a table that was another job's at that moment."""
    return [who for network in Servers.networks for who in network.intruders]


def robbed() -> list[str]:
    """What jobs had promised and not committed when another one took their table over."""
    return [name for network in Servers.networks for name in network.robbed]


def promised(transactions: Iterable[bytes]) -> set[str]:
    """The names of prepared transactions, as a manifest holds them."""
    bodies = [msgspec.msgpack.decode(found)[2] for found in transactions]
    return {msgspec.msgpack.decode(body, type=TransactionId).name for body in bodies}


def prepared(kind: str, directory_id: str) -> list[str]:
    """What a job directory has prepared."""
    found = []
    for name in Servers.by_name[KINDS[kind][0]].prepared:
        of_sink, _, branch = name.rpartition(":")
        txn = TransactionId.parse(of_sink, branch)
        if txn is not None and txn.directory == directory_id:
            found.append(name)
    return found


@contextmanager
def simulated_databases(
    world: World,
    directory_of: Callable[[Process], str],
    promised_by: Callable[[str], set[str]],
) -> Iterator[None]:
    """New servers with empty tables, which the real sinks connect to."""
    networks = {name: SimNetwork(world, directory_of, promised_by) for name in TEXTS}
    Servers.networks = list(networks.values())
    Servers.by_name = {name: network.server for name, network in networks.items()}
    for name, server in Servers.by_name.items():
        for table, keys in TABLES.items():
            server.create(table, f"key {TEXTS[name]} NOT NULL, n bigint NOT NULL{keys}")

    def connect(**parameters: Any) -> PostgresConnection:
        return networks["postgres"].connect(PostgresConnection, psycopg.OperationalError)

    def connect_mysql(**parameters: Any) -> MariaDbConnection:
        return networks["mariadb"].connect(
            MariaDbConnection, lambda text: pymysql.err.OperationalError(2003, text)
        )

    clock = SimpleNamespace(monotonic=world.clock.monotonic, sleep=world.clock.sleep)
    with ExitStack() as patches:
        patches.enter_context(mock.patch("psycopg.connect", connect))
        patches.enter_context(mock.patch.object(mysql, "_connection_class", lambda: connect_mysql))
        patches.enter_context(mock.patch.object(mysql, "time", clock))
        yield
