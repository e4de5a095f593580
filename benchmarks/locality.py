"""How often do tasks find their state on their executor, and what do others read?"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import access_log, section
from benchmarks.access_log import Request
from benchmarks.machine import Machine
from benchmarks.table import table
from turnback import KeyedProcessFunction, Row, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.api.client import JobClient
from turnback.checkpoint.log import CheckpointLog
from turnback.job.directory import JobDirectory
from turnback.sinks.memory import DiscardSink

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from services.s3 import S3Server, s3_server
from services.spark import SparkCluster, spark_cluster

JOB = "local"
KEYS = 2_000
TASKS_PER_EXECUTOR = 2
LEVELS = 2
UNDISTURBED = 3
AFTER = 2
"""Epochs; fewer than eight in all, so that no merges read files as well."""
TIMEOUT_S = 600.0
_WRITTEN = re.compile(r"state/[0-9]+/([0-9]+)-([0-9]+)-([0-9]+)-.*")
"""By a task in an epoch: level, partition and epoch."""


class Count(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        self.count.update((self.count.value() or 0) + 1)
        yield Row(value.key)


@dataclass(frozen=True)
class Window:
    """Some epochs: how many tasks had state to find, how many did not find it, what they read."""

    what: str
    tasks: int
    away: int
    files: int
    bytes: int

    def row(self) -> list[str]:
        share = f"{(self.tasks - self.away) / self.tasks:.0%}" if self.tasks else ""
        numbers = (self.tasks, self.away, self.files, self.bytes)
        return [self.what, share, *(f"{number:,}" for number in numbers)]


class Job:
    """A job of two keyed levels on a cluster, whose directory is on the gateway."""

    def __init__(self, place: Path, server: S3Server, spark: SparkSession, tasks: int) -> None:
        self.log = place / "access.log"
        self.tasks = tasks
        self._events = place / "events"
        self._events.mkdir()
        self._hidden = place / "next.json"
        self._fed = 0
        self._seen = 0
        root = server.create_bucket("turnback")
        self._checkpoints = CheckpointLog(JobDirectory.locate(root, JOB, server.options).storage)
        env = StreamExecutionEnvironment.get_execution_environment(spark=spark, root=root)
        env.set_storage_options(**server.options)
        env.set_parallelism(tasks).enable_checkpointing(10)
        events = env.from_files(self._events, "json", "key bigint", uid="in", max_files_per_epoch=1)
        once = events.key_by("key").process(Count(), output_type="key bigint").uid("once")
        twice = once.key_by("key").process(Count(), output_type="key bigint").uid("twice")
        twice.sink_to(DiscardSink()).uid("out")
        self.client: JobClient = env.execute_async(JOB)

    def window(self, what: str, epochs: int) -> Window:
        """Process some epochs, one after the other, and count what their tasks have read."""
        away = 0
        read: list[Request] = []
        for _ in range(epochs):
            self._epoch()
            some = self._new_reads()
            read += some
            # A task that did not run where its predecessor did reads what that one has written.
            names = (_WRITTEN.fullmatch(each.path) for each in some)
            away += len({m[0] for m in names if m and int(m[3]) == self._fed - 1})
        sizes = {r.path: r.size for r in access_log.read(self.log, JOB) if r.operation == "PUT"}
        size = sum(sizes.get(each.path, 0) for each in read)
        return Window(what, epochs * LEVELS * self.tasks, away, len(read), size)

    def _new_reads(self) -> list[Request]:
        requests = access_log.read(self.log, JOB)
        new = requests[self._seen :]
        self._seen = len(requests)
        return [r for r in new if r.operation == "GET" and r.place == "state files"]

    def _epoch(self) -> None:
        rows = "\n".join(json.dumps({"key": key}) for key in range(KEYS))
        self._hidden.write_text(rows)
        self._hidden.rename(self._events / f"{self._fed:06d}.json")
        self._fed += 1
        deadline = time.monotonic() + TIMEOUT_S
        while (newest := self._checkpoints.latest()) is None or newest.epoch < self._fed:
            if self.client.done() or time.monotonic() > deadline:
                raise RuntimeError(f"no epoch {self._fed} after {TIMEOUT_S:g} s")
            time.sleep(0.2)


def measure(executors: int) -> list[Window]:
    with tempfile.TemporaryDirectory(prefix="turnback-locality-") as name:
        place = Path(name)
        log = place / "access.log"
        with (
            s3_server(place, access_log=log) as server,
            spark_cluster(place, workers=executors) as cluster,
        ):
            spark = _session(cluster)
            try:
                job = Job(place, server, spark, executors * TASKS_PER_EXECUTOR)
                job.window("", 1)
                windows = [job.window("undisturbed", UNDISTURBED)]
                os.kill(cluster.executors()[0], signal.SIGKILL)
                windows.append(job.window("the epoch after an executor was killed", 1))
                windows.append(job.window("later", AFTER))
                job.client.cancel()
            finally:
                spark.stop()
    return windows


def _session(cluster: SparkCluster) -> SparkSession:
    builder = SparkSession.builder.master(cluster.master).config("spark.ui.enabled", "false")
    for key, value in cluster.settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locality", description=__doc__)
    parser.add_argument("--executors", type=int, default=2, help="of a core each (%(default)s)")
    given = section.parse(parser, argv)
    if given.executors < 1:
        parser.error("--executors must be at least 1")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    windows = measure(given.executors)
    head = ["epochs", "at home", "tasks", "elsewhere", "files read", "bytes read"]
    text = (
        f"## Locality with {given.executors} executors\n\n"
        f"Two keyed levels of {given.executors * TASKS_PER_EXECUTOR} tasks, executors of one core "
        f"on a standalone cluster, S3. {machine.describe()}\n\n"
        + table(head, [window.row() for window in windows])
        + "\n\nRepeat with `python -m benchmarks.locality`."
    )
    print(text)
    if given.output is not None:
        section.write(given.output, f"locality-{given.executors}", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
