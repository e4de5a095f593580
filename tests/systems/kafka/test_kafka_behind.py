"""A job on Spark that is behind, catches up, works off ten times as much, and finds a new topic."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from test_kafka_check import made_anew
from test_kafka_lag import counted, group_offsets

from services.kafka import KafkaBroker, connector_jars
from turnback.connectors.kafka.check import KafkaSourceCheck
from turnback.errors import ConfigurationError
from turnback.job.directory import JobDirectory
from turnback.job.status import Lag
from turnback.views.job import Job

pytestmark = pytest.mark.exhaustive

HERE = Path(__file__).parent
HOUR_MS = 3_600_000
SMALL, LARGE, SIZE = 1_500, 15_000, 2_000
"""Records of a small backlog, of one ten times as large, and bytes of each."""


@pytest.fixture(scope="module")
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic(3)


def write(kafka: KafkaBroker, topic: str, count: int, first: int = 0) -> None:
    """Records that are an hour old."""
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 5})
    at = int(time.time() * 1000) - HOUR_MS
    for n in range(first, first + count):
        value = f"{n:020}" + "x" * SIZE
        while True:
            try:
                producer.produce(topic, value, partition=n % 3, timestamp=at)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


@contextmanager
def running(kafka: KafkaBroker, topic: str, place: Path, java: str) -> Iterator[subprocess.Popen]:
    arguments = (kafka.servers, topic, place / "out", place / "gate")
    with (place / "log").open("w") as log:
        job = subprocess.Popen(
            [sys.executable, HERE / "kafka_behind.py", *arguments],
            env=os.environ
            | {
                "JDK_JAVA_OPTIONS": java,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_MASTER": "local[2]",
                "PYSPARK_SUBMIT_ARGS": f"--jars {connector_jars()} pyspark-shell",
                "PYTHONPATH": str(HERE),
                "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(place / "jobs"),
                "TURNBACK_CONF_PARALLELISM_DEFAULT": "2",
            },
            cwd=place,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield job
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait(30)


def lag(place: Path) -> Lag | None:
    directory = JobDirectory.locate(place / "jobs", "behind")
    return Job(directory).summary().lag if (place / "jobs" / "behind").is_dir() else None


def written(place: Path) -> int:
    files = (place / "out").rglob("*.json")
    return sum(len(f.read_text().splitlines()) for f in files if not f.name.startswith((".", "_")))


def _is_python(command: str) -> bool:
    return "python" in command.split("\0")[0]


class Peaks:
    """Most memory that the driver and any of its workers have had, in kB.

    Without the JVM, and without files that are mapped: state is in shared memory.
    """

    def __init__(self) -> None:
        self.driver = self.worker = 0

    def look(self, job: int) -> None:
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                session = int(status.with_name("stat").read_text().rpartition(")")[2].split()[3])
                command = status.with_name("cmdline").read_text()
                text = status.read_text() if session == job and _is_python(command) else ""
            except OSError:
                continue
            anonymous = re.search(r"RssAnon:\s+(\d+)", text)
            if anonymous is not None and status.parent.name == str(job):
                self.driver = max(self.driver, int(anonymous[1]))
            elif anonymous is not None and "pyspark" in command:
                self.worker = max(self.worker, int(anonymous[1]))


@dataclass
class Watched:
    """A job, and how much memory it takes while something is waited for."""

    process: subprocess.Popen
    place: Path
    peaks: Peaks = field(default_factory=Peaks)

    def until(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + 240
        while not what():
            self.peaks.look(self.process.pid)
            told = (self.place / "log").read_text()[-3000:]
            assert self.process.poll() is None, told
            assert time.monotonic() < end, told
            time.sleep(0.1)


def test_a_backlog_is_told_worked_off_in_bounded_memory_and_not_confused(
    kafka, topic, tmp_path, java
):
    def committed() -> int:
        return sum(group_offsets(kafka.servers, f"group-of-{topic}").values())

    def behind() -> int | None:
        return found.records if (found := lag(tmp_path)) else None

    write(kafka, topic, SMALL)
    kafka.write(topic, ["wait" + "0" * 16], partition=0, timestamp=5_000)
    with running(kafka, topic, tmp_path, java) as process:
        job = Watched(process, tmp_path)
        # Behind: as many as an independent consumer counts from where the output ends.
        job.until(lambda: written(tmp_path) >= SMALL / 2)
        job.until(lambda: behind() == SMALL + 1 - written(tmp_path))
        job.until(lambda: committed() == written(tmp_path))
        offsets = group_offsets(kafka.servers, f"group-of-{topic}")
        assert behind() == counted(kafka.servers, topic, offsets) > 0
        assert lag(tmp_path).seconds >= HOUR_MS / 1000
        # Caught up.
        (tmp_path / "gate").touch()
        job.until(lambda: behind() == 0)
        assert lag(tmp_path).seconds == lag(tmp_path).catch_up_s == 0
        job.until(lambda: written(tmp_path) == SMALL + 1)
        small, job.peaks = job.peaks, Peaks()
        # Ten times as much, in epochs as large as before.
        write(kafka, topic, LARGE, first=SMALL)
        job.until(lambda: written(tmp_path) == SMALL + 1 + LARGE)
        print(vars(small), vars(job.peaks))
        assert job.peaks.driver < small.driver + 20_000
        assert job.peaks.worker < small.worker + 20_000
        job.until(lambda: behind() == 0)
        job.until(lambda: committed() == SMALL + 1 + LARGE)
    # The same name, as many records or more, and nothing that offsets could tell.
    newest = Job(JobDirectory.locate(tmp_path / "jobs", "behind")).retained()[-1]
    position = newest.sources["records"]
    check = KafkaSourceCheck({"kafka.bootstrap.servers": kafka.servers, "subscribe": topic})
    check.check_identity("source 'records'", position.identity)
    made_anew(kafka, topic)
    write(kafka, topic, SMALL + 3 + LARGE)
    assert check("source 'records'", position.offset) == []
    with pytest.raises(ConfigurationError, match=f"topic '{topic}' was recreated"):
        check.check_identity("source 'records'", position.identity)
