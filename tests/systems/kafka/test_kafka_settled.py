"""What a job has left in Kafka that died while it published: listed and settled without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka_left import ROWS

from services.kafka import PASSWORD, USER, KafkaBroker

HERE = Path(__file__).parent
LOGIN = {
    "TURNBACK_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "TURNBACK_KAFKA_SASL_MECHANISM": "PLAIN",
    "TURNBACK_KAFKA_SASL_USERNAME": USER,
    "TURNBACK_KAFKA_SASL_PASSWORD": PASSWORD,
}


class Left:
    """A job that was killed in the middle of a transaction over two topics."""

    def __init__(self, kafka: KafkaBroker, directory: Path) -> None:
        self._kafka, self._directory = kafka, directory
        self.topics = sorted(kafka.create_topic() for _ in range(2))
        assert self.run("kill") == -9
        for topic in self.topics:
            kafka.write(topic, ['{"n": "another program"}'])

    def run(self, end: str) -> int:
        program = [HERE / "kafka_left.py", end, self._kafka.secured, *self.topics]
        tests = {
            "PYTHONPATH": os.pathsep.join(map(str, HERE.parents[:2])),
            "KAFKA_PASSWORD": PASSWORD,
        }
        return self._python(*program, **tests).returncode

    def turnback(self, *arguments: str, **variables: str) -> Any:
        program = ("-m", "turnback.cli.main", "--json", *arguments)
        done = self._python(*program, **variables)
        assert PASSWORD not in done.stdout + done.stderr
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def visible(self) -> list[Any]:
        """What readers of committed records see in both topics."""
        records = [record for topic in self.topics for record in self._kafka.read(topic)]
        return sorted((json.loads(value)["n"] for _, value in records), key=str)

    def _python(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        jobs = {"TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(self._directory / "jobs")}
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=os.environ | jobs | variables,
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def left(kafka: KafkaBroker, tmp_path: Path) -> Left:
    return Left(kafka, tmp_path)


OTHERS = ["another program"] * 2
NUMBERS = sorted((n for _, n in ROWS), key=str)


def test_what_readers_wait_for_is_listed_committed_and_not_doubled(left: Left) -> None:
    assert left.visible() == []  # not even what another program has written since
    [row] = left.turnback("transactions", "list", "left", **LOGIN)
    one, other = map(repr, left.topics)
    assert (row["sink"], row["state"], row["rows"]) == ("out", "in doubt", len(ROWS))
    assert row["what"].endswith(f"for topics {one}, {other}")
    assert row["waiting"] == f"read_committed readers of topics {one}, {other}"
    assert row["problem"] is None
    settled = left.turnback("transactions", "commit", "left", "--yes", **LOGIN)
    assert settled["transactions"] == {"out": 1}
    assert left.visible() == [*NUMBERS, *OTHERS]
    assert left.turnback("transactions", "list", "left", **LOGIN) == []
    assert left.run("live") == 0
    assert left.visible() == [*NUMBERS, *OTHERS]


@pytest.mark.exhaustive
def test_what_readers_wait_for_is_dropped(left: Left) -> None:
    left.turnback("transactions", "abort", "left", "--yes", **LOGIN)
    assert left.visible() == OTHERS
    assert left.turnback("transactions", "list", "left", **LOGIN) == []


def test_without_the_login_it_is_listed_with_what_is_missing(left: Left) -> None:
    known = {name: LOGIN[name] for name in LOGIN if not name.endswith("PASSWORD")}
    promised, problem = left.turnback("transactions", "list", "left", **known)
    assert promised["state"] == "in doubt"
    assert all(repr(topic) in promised["waiting"] for topic in left.topics)
    assert "TURNBACK_KAFKA_SASL_PASSWORD" in problem["problem"]
    assert "TURNBACK_KAFKA_SASL_USERNAME" not in problem["problem"]
