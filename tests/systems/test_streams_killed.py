"""A job that reads streams, killed in mid flight: every element once in the sink, and in order."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from crash.driver import Driver
from services.kinesis import KEYS, REGION, KinesisServer
from services.rabbitmq import PASSWORD, USER, RabbitMQServer

pytestmark = pytest.mark.exhaustive

HERE = Path(__file__).parent
COUNT = 750
"""Numbers in each stream."""
PORTION = 125


def test_each_element_comes_once_and_in_order_whoever_is_killed(
    rabbitmq: RabbitMQServer, kinesis: KinesisServer, tmp_path: Path, java: str
) -> None:
    streams = [rabbitmq.create_stream() for _ in range(2)]
    feeders = [threading.Thread(target=feed, args=(rabbitmq, stream)) for stream in streams]
    shards = kinesis.create_stream()
    feeders.append(threading.Thread(target=feed_and_split, args=(kinesis, shards)))
    output = tmp_path / "output"
    settings = {
        "jobs": str(tmp_path / "jobs"),
        "output": str(output),
        "rabbitmq": {
            "port": rabbitmq.port,
            "user": USER,
            "password": PASSWORD,
            "streams": streams,
        },
        "kinesis": {"stream": shards, "region": REGION, "endpoint": kinesis.url, "keys": KEYS},
    }
    names = [*streams, f"kinesis {shards}"]
    total = COUNT * len(names)
    for feeder in feeders:
        feeder.start()
    driver = start(settings, tmp_path / "first", java)
    try:
        driver.until_running(lambda: count(output) > total / 10, "write anything")
        driver.kill()
        before = count(output)
        assert before < total, "it was done before it was killed"
        driver = start(settings, tmp_path / "second", java)
        driver.until_running(lambda: count(output) > before, "go on")
        killed = kill_workers(driver)
        assert killed["daemon"], "there was no worker to kill"
        between = count(output)
        assert between < total, "it was done before its workers were killed"
        driver.until_running(lambda: count(output) > between, "go on without its workers")
        assert kill_workers(driver, "python_streaming_source_runner")["source"]
        driver.until_running(lambda: count(output) >= total, "write all")
    finally:
        driver.kill()
        for feeder in feeders:
            feeder.join()
    found = read(output)
    expected = [(n, n - 1) for n in range(COUNT)]
    assert {stream: sorted(rows) for stream, rows in found.items()} == dict.fromkeys(
        names, expected
    )


def feed(rabbitmq: RabbitMQServer, stream: str) -> None:
    """Write numbers in portions, so that chunks and epochs end in many places."""
    for first in range(0, COUNT, PORTION):
        rabbitmq.write(stream, values(stream, first))


def feed_and_split(kinesis: KinesisServer, stream: str) -> None:
    """Write numbers whose shard is split twice: they go on in a child of it."""
    for first in range(0, COUNT, PORTION):
        kinesis.write(stream, values(f"kinesis {stream}", first))
        if first in (4 * PORTION, 8 * PORTION):
            shards = kinesis.client().list_shards(StreamName=stream)["Shards"]
            open_ones = [
                s for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"]
            ]
            lowest = min(open_ones, key=lambda s: int(s["HashKeyRange"]["StartingHashKey"]))
            middle = int(lowest["HashKeyRange"]["EndingHashKey"]) // 2
            kinesis.client().split_shard(
                StreamName=stream,
                ShardToSplit=lowest["ShardId"],
                NewStartingHashKey=str(middle),
            )


def values(stream: str, first: int) -> list[str]:
    return [json.dumps({"stream": stream, "n": n}) for n in range(first, first + PORTION)]


def start(settings: dict, directory: Path, java: str) -> Driver:
    environment = {
        "JDK_JAVA_OPTIONS": java,
        "SPARK_MASTER": "local[2]",
        "TURNBACK_CONF_PARALLELISM_DEFAULT": "2",
    }
    arguments = [json.dumps(settings)]
    job = HERE / "streams_job.py"
    return Driver(arguments, directory, directory / "gate", environment, job)


def kill_workers(driver: Driver, only: str = "") -> dict[str, list[int]]:
    """Kill what Spark runs of Python beside the driver: workers, and who asks for positions."""
    killed = defaultdict(list)
    for pid in driver.members():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        kind = "source" if "python_streaming_source_runner" in command else "daemon"
        if pid != driver.pid and "java" not in command and only in command:
            os.kill(pid, signal.SIGKILL)
            killed[kind].append(pid)
    return killed


def rows_of(output: Path) -> list[dict]:
    """What an independent reader finds in the sink."""
    files = [path for path in output.rglob("*.json") if not path.name.startswith((".", "_"))]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def count(output: Path) -> int:
    return len(rows_of(output))


def read(output: Path) -> dict[str, list[tuple[int, int]]]:
    found = defaultdict(list)
    for row in rows_of(output):
        found[row["stream"]].append((row["n"], row["before"]))
    return found
