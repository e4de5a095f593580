"""A job that writes to two tables or topics, as a process of its own: see `ledger_job.py --help`.

files -> key_by(key) -> Sequence -> `sequence`, every row
  |
  +-> two postings per transfer -> key_by(account) -> Balance -> `balances`, the last of each
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from turnback import (
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.connectors.redis import RedisSink
from turnback.connectors.sql import MySqlSink, PostgresSink
from turnback.connectors.sql.database import Database, TransactionId
from turnback.testing import LocalEngine

KINDS = ("postgres", "mysql", "kafka", "delta", "iceberg", "redis")
TABLES = ("sequence", "balances")
TRANSFER = "key string, seq bigint, source string, target string, amount bigint"


class Sequence(KeyedProcessFunction):
    """Adds what the state of the key says came before."""

    last = ValueStateDescriptor("last", int)

    def process_element(self, value, ctx):
        previous = self.last.value()
        self.last.update(value.seq)
        yield Row(value.key, value.seq, -1 if previous is None else previous)


class Balance(KeyedProcessFunction):
    """Adds up the postings of an account."""

    balance = ValueStateDescriptor("balance", int)

    def process_element(self, value, ctx):
        total = (self.balance.value() or 0) + value.amount
        self.balance.update(total)
        yield Row(value.account, total)


def postings(transfer):
    """What a transfer changes: money is neither made nor lost."""
    yield Row(transfer.source, -transfer.amount)
    yield Row(transfer.target, transfer.amount)


def sinks(kind: str, server: dict[str, Any]) -> tuple[Any, Any]:
    """Where the numbered transfers go, and the balances.

    Libraries are imported where they are used: many drivers are started.
    """
    if kind == "kafka":
        from kafka_job import kafka_sink

        servers = server["servers"]
        balances = kafka_sink(servers, server["balances"], key="account")
        return kafka_sink(servers, server["sequence"]), balances
    if kind in ("delta", "iceberg"):
        from table_support import PLACES

        rows, latest = (PLACES[kind](Path(server["base"]) / name) for name in TABLES)
        return rows.sink(), latest.sink(mode="upsert", key=["account"])
    server = {**server, "password_from": "LEDGER_PASSWORD"}
    if kind == "redis":
        rows = RedisSink(**server, key="key", prefix="sequence:")
        return rows, RedisSink(**server, key="account", prefix="balances:")
    make = PostgresSink if kind == "postgres" else MySqlSink
    rows, latest = (partial(make, **server, table=name) for name in TABLES)
    return rows(), latest(mode="upsert", key="account")


def careless(sink: Any) -> Any:
    """A sink that commits every statement: wrong on purpose, to see that the verifier notices.

    It leaves no markers either: by those the next start would notice it.
    """
    kind = type(sink.connect())

    class Careless(kind):  # type: ignore[misc, valid-type]
        def begin(self, txn: TransactionId | None = None) -> None: ...

        def prepare(self, txn: TransactionId) -> None:
            self.execute(f"DELETE FROM {self.helper('turnback_commits')}")

        def commit_prepared(self, txn: TransactionId) -> bool:
            return True

    def connect() -> Database:
        database = kind.__new__(Careless)
        database.__init__(sink.parameters, sink._password, sink.table, 5.0)
        return database

    sink.connect = connect
    return sink


def main() -> int:
    """Run the job until its input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--gate", required=True, help="start the job when this file is there")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--server", required=True, help="parameters of the connection, in JSON")
    parser.add_argument("--files", type=int, default=1, help="how many make an epoch")
    parser.add_argument("--epoch-interval", type=int, default=20, help="in ms")
    parser.add_argument("--careless", action="store_true", help="without transactions")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    env = StreamExecutionEnvironment(None, args.root, {}, engine=LocalEngine())
    env.set_parallelism(2).set_state_backend("hashmap").enable_checkpointing(10)
    env.set_restart_strategy(RestartStrategies.no_restart())
    build(env, args)
    gate = Path(args.gate)
    gate.with_suffix(".ready").touch()
    while not gate.exists():
        time.sleep(0.002)
    env.execute("ledger", bounded=True, epoch_interval=args.epoch_interval)
    return 0


def build(env: StreamExecutionEnvironment, args: argparse.Namespace) -> None:
    """The program."""
    sequence, balances = sinks(args.kind, json.loads(args.server))
    transfers = env.from_files(
        args.input, "json", TRANSFER, uid="transfers", max_files_per_epoch=args.files
    )
    numbered = transfers.key_by("key").process(
        Sequence(), "key string, seq bigint, previous bigint"
    )
    numbered.uid("sequence").sink_to(careless(sequence) if args.careless else sequence).uid("rows")
    posted = transfers.flat_map(postings, "account string, amount bigint").uid("postings")
    posted.key_by("account").process(Balance(), "account string, balance bigint").uid(
        "balance"
    ).sink_to(balances).uid("balances")


if __name__ == "__main__":
    sys.exit(main())
