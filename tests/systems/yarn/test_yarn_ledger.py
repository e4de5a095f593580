"""Kafka in, a table and files out, on YARN with HDFS, in cluster mode: twenty faults, exact."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from yarn_place import YarnPlace

from services.hdfs import HdfsCluster
from services.kafka import KafkaBroker, connector_jars
from services.postgres import PASSWORD, PostgresServer
from services.yarn import YarnCluster
from soak.servers import ACCOUNT_COLUMNS, ACCOUNT_TABLE
from verification import verify

pytestmark = [pytest.mark.exhaustive, pytest.mark.crash, pytest.mark.timeout(3600)]

FAULTS = {"executor": 6, "master": 5, "name node": 3, "broker": 3, "database": 3}


class Ledger(YarnPlace):
    """The job that reads a topic and writes the rows of accounts to a table."""

    def __init__(
        self,
        base: Path,
        yarn: YarnCluster,
        hdfs: HdfsCluster,
        java: str,
        kafka: KafkaBroker,
        postgres: PostgresServer,
    ) -> None:
        super().__init__(base, yarn, hdfs, java)
        self._postgres = postgres
        postgres.run(
            "DROP TABLE IF EXISTS accounts, turnback_owners, turnback_commits, turnback_progress",
            ACCOUNT_TABLE,
        )
        self._topic = kafka.create_topic(3)
        self._producer = Producer(
            {"bootstrap.servers": kafka.servers, "enable.idempotence": True, "linger.ms": 1}
        )
        self.program |= {"input": [kafka.servers, self._topic], "postgres": postgres.dsn}
        self.variables["JOB_PASSWORD"] = PASSWORD
        jars = connector_jars().split(",")
        self.settings["spark.jars"] = ",".join(f"local:{jar}" for jar in jars)

    def feed(self, files: int = 8) -> None:
        """Write files, and what is in them to the topic, each account to one partition."""
        before = set(self.events.iterdir())
        super().feed(files)
        for path in sorted(set(self.events.iterdir()) - before):
            for line in path.read_text(encoding="utf-8").splitlines():
                account = line.partition('"account": "')[2].partition('"')[0]
                self._producer.produce(self._topic, line.encode(), account)
        assert self._producer.flush(60) == 0

    def accounts(self) -> list[dict[str, Any]]:
        rows = self._postgres.query(f"SELECT {', '.join(ACCOUNT_COLUMNS)} FROM accounts")
        return [dict(zip(ACCOUNT_COLUMNS, row, strict=True)) for row in rows]


@pytest.fixture
def ledger(
    tmp_path: Path,
    yarn: YarnCluster,
    hdfs: HdfsCluster,
    java: str,
    kafka: KafkaBroker,
    postgres: PostgresServer,
) -> Iterator[Ledger]:
    made = Ledger(tmp_path, yarn, hdfs, java, kafka, postgres)
    yield made
    made.close()


def test_twenty_faults(
    ledger: Ledger, hdfs: HdfsCluster, kafka: KafkaBroker, postgres: PostgresServer
) -> None:
    seed = int(os.environ.get("SEED", "1"))
    print(f"seed {seed}")
    choose = random.Random(seed)
    plan = [name for name, count in FAULTS.items() for _ in range(count)]
    choose.shuffle(plan)
    ledger.feed()
    application = ledger.submit(fresh=True)
    ledger.await_complete()

    def restart(server: Any) -> None:
        server.crash()
        time.sleep(choose.uniform(0.5, 3))
        server.start()

    faults: dict[str, Callable[[], None]] = {
        "executor": lambda: ledger.an_executor().kill(),
        "master": lambda: ledger.a_master(application).kill(),
        "name node": lambda: restart(hdfs),
        "broker": lambda: restart(kafka),
        "database": lambda: restart(postgres),
    }
    for number, name in enumerate(plan):
        print(f"{time.monotonic():.0f} fault {number + 1}: {name}", flush=True)
        if choose.random() < 0.5:
            ledger.in_mid_epoch(faults[name])
        else:
            ledger.feed()
            time.sleep(choose.uniform(0, 2))
            faults[name]()
        if number % 2:  # so that every second fault comes while the job mends the one before
            ledger.await_complete()
    ledger.turnback("stop", "totals", "--savepoint", "--yes")
    ledger.await_complete()
    assert postgres.prepared() == []
    assert verify(ledger.storage) == []
