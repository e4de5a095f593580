"""Kafka into Kafka, PostgreSQL and Delta at once, on Spark: killed, upgraded, killed again, exact.

Readers use nothing of Turnback: a consumer that reads committed records, all the while; psycopg;
delta-rs and DuckDB. A producer writes as long as there are kills to come.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from topic_reader import TopicReader

from crash.driver import Driver
from services.kafka import KafkaBroker, connector_jars
from services.postgres import PASSWORD, PostgresServer

pytestmark = pytest.mark.exhaustive

ACCOUNTS = 40
COLUMNS = "account, seq, previous, total, version"
SEED = int(os.environ.get("SEED", "15"))
Rows = list[tuple[str, int, int, int, int]]


def amount(account: str, seq: int) -> int:
    """What is paid: known without asking anyone."""
    return (len(account) * 31 + seq * 7) % 97 + 1


class Payments:
    """Pays into all accounts again and again, whatever becomes of the job.

    Attributes:
        acknowledged: How many payments of each account the broker has taken.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic
        self.acknowledged: Counter[str] = Counter()

    @contextmanager
    def being_made(self) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._pay, args=(done,), name="producer")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _pay(self, done: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True})
        for seq in range(10**9):
            for number in range(ACCOUNTS):
                account = f"account {number}"
                payment = {"account": account, "seq": seq, "amount": amount(account, seq)}
                producer.produce(
                    self._topic, json.dumps(payment), account, on_delivery=self._delivered
                )
            producer.poll(0)
            if done.wait(0.1):
                break
        assert producer.flush(60) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acknowledged[message.key().decode()] += 1


class Seen(NamedTuple):
    """How many totals readers see in each target."""

    kafka: int
    postgres: int
    delta: int

    def are_equal(self) -> bool:
        return self.kafka == self.postgres == self.delta


class Story:
    """One job, its drivers, and what is to be seen in its three targets."""

    def __init__(self, base: Path, kafka: KafkaBroker, postgres: PostgresServer, java: str) -> None:
        self._base, self._kafka, self._postgres, self._java = base, kafka, postgres, java
        self._table = base / "table"
        self._drivers: list[Driver] = []
        self.totals = kafka.create_topic(2)
        topic = kafka.create_topic(3)
        self.payments = Payments(kafka.servers, topic)
        postgres.run(
            "DROP TABLE IF EXISTS totals, turnback_owners, turnback_commits, turnback_progress",
            "CREATE TABLE totals (account text, seq bigint, previous bigint, total bigint,"
            " version bigint)",
        )
        self._arguments = [
            *("--root", str(base / "jobs"), "--servers", kafka.servers, "--payments", topic),
            *("--totals", self.totals, "--dsn", postgres.dsn, "--table", str(self._table)),
            *("--jars", connector_jars()),
        ]

    def start(self, version: int, *arguments: str, kill_at: str | None = None) -> Driver:
        """Start a driver, which waits for `go` when Spark is there."""
        number = len(self._drivers)
        gate = self._base / f"gate-{number}"
        environment = {"JDK_JAVA_OPTIONS": self._java, "STORY_PASSWORD": PASSWORD}
        if kill_at:
            environment["TURNBACK_KILL_AT"] = kill_at
        command = [*self._arguments, "--gate", str(gate), "--version", str(version), *arguments]
        job = Path(__file__).with_name("three_targets_job.py")
        directory = self._base / f"driver-{number}"
        self._drivers.append(Driver(command, directory, gate, environment, job))
        return self._drivers[-1]

    def stop_with_savepoint(self) -> str:
        """Stop the job as an operator does; returns where its savepoint is."""
        program = [Path(sys.executable).with_name("turnback"), "--root", str(self._base / "jobs")]
        where = str(self._base / "savepoint")
        done = subprocess.run(
            [*program, "--json", "stop", "three-targets", "--savepoint", where, "--yes"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        path: str = json.loads(done.stdout)["path"]
        return path

    def kill(self) -> None:
        for driver in self._drivers:
            driver.kill()

    # -- the three targets

    def in_kafka(self) -> Rows:
        """In the order of the topic, as far as it has one."""
        found = (json.loads(value) for _, value in self._kafka.read(self.totals))
        return [tuple(row[name] for name in COLUMNS.split(", ")) for row in found]

    def in_postgres(self) -> Rows:
        return self._postgres.query(f"SELECT {COLUMNS} FROM totals")

    def in_delta(self) -> Rows:
        if not DeltaTable.is_deltatable(str(self._table)):
            return []
        table = DeltaTable(str(self._table)).to_pyarrow_table()
        columns = (table[name].to_pylist() for name in COLUMNS.split(", "))
        return list(zip(*columns, strict=True))

    def in_delta_by_duckdb(self) -> Rows:
        files = DeltaTable(str(self._table)).file_uris()
        return duckdb.sql(f"SELECT {COLUMNS} FROM read_parquet({files})").fetchall()

    def look(self, reader: TopicReader) -> Seen:
        """Check what readers see now, and tell how much it is."""
        postgres, delta = self.in_postgres(), self.in_delta()
        reader.until(len(postgres))  # Kafka comes first, and shows it a moment later
        kafka = self.in_kafka()
        for rows in (kafka, postgres, delta):
            check(rows)
        assert reader.problems == []
        return Seen(len(kafka), len(postgres), len(delta))


def check(rows: Rows, *, ordered: bool = False) -> Counter[str]:
    """Each account has its totals from the first on, each once; returns how many."""
    by_account: defaultdict[str, list[Any]] = defaultdict(list)
    for account, *rest in rows:
        by_account[account].append(rest)
    for account, found in by_account.items():
        total, version = 0, 1
        for number, row in enumerate(found if ordered else sorted(found)):
            version = max(version, row[3])
            total += amount(account, number) * version
            assert row == [number, number - 1, total, version], (account, row)
    return Counter({account: len(found) for account, found in by_account.items()})


@pytest.fixture
def story(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer, java: str
) -> Iterator[Story]:
    made = Story(tmp_path, kafka, postgres, java)
    yield made
    made.kill()


@pytest.mark.crash
def test_killed_upgraded_through_a_savepoint_and_killed_again_all_three_are_exact(
    story: Story, kafka: KafkaBroker, postgres: PostgresServer
) -> None:
    print(f"seed {SEED}")
    choose = random.Random(SEED)
    with TopicReader(kafka.servers, story.totals, key="account", number="seq") as reader:
        with story.payments.being_made():
            # Version 1. Each driver waits ready while the one before it is killed.
            first = story.start(1, kill_at="before-prepared-commit:1")
            second = story.start(1, kill_at="after-prepared-commit:1")
            killed(first)
            reader.until(1)
            then = story.look(reader)
            assert then.postgres == then.delta == 0  # only Kafka has the epoch
            third = story.start(1, kill_at="after-manifest:1")
            killed(second)
            assert 0 < story.look(reader).postgres < then.kafka  # one task of two, by recovery
            stopped = story.start(1)
            killed(third)
            assert story.look(reader).are_equal()  # none has what is promised
            stopped.go()
            reader.until(reader.seen + 1)
            savepoint = story.stop_with_savepoint()
            assert stopped.wait() == 0, stopped.errors
            assert story.look(reader).are_equal()
            # Version 2 goes on from the savepoint.
            fourth = story.start(2, "--start-from", savepoint, kill_at="after-sink-commit:2")
            fifth = story.start(2)
            killed(fourth)
            assert story.look(reader).are_equal()  # all have what is not recorded yet
            last = story.start(2, "--bounded")
            killed_at_random(fifth, reader, choose)
        last.go()
        assert last.wait() == 0, last.errors
        reader.until(story.payments.acknowledged.total())
    assert reader.problems == []
    rows = story.in_kafka()
    assert check(rows, ordered=True) == story.payments.acknowledged
    assert {row[-1] for row in rows} == {1, 2}
    for found in (story.in_postgres(), story.in_delta(), story.in_delta_by_duckdb()):
        assert sorted(found) == sorted(rows)
    assert postgres.prepared() == []


def killed(driver: Driver) -> None:
    """Run a driver to the point at which it dies."""
    driver.go()
    assert driver.wait() == -signal.SIGKILL, driver.errors


def killed_at_random(driver: Driver, reader: TopicReader, choose: random.Random) -> None:
    """Let a driver write something, and kill it some time later."""
    driver.go()
    reader.until(reader.seen + 1)
    time.sleep(choose.uniform(0.0, 2.0))
    driver.process.kill()
    assert driver.wait() == -signal.SIGKILL, driver.errors
