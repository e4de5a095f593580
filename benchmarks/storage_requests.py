"""Count what a job asks of an object store: per epoch, beside epochs, and in a cold executor."""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from benchmarks import access_log, section
from benchmarks.access_log import Request
from benchmarks.machine import Machine
from benchmarks.result import check
from benchmarks.table import table
from turnback import KeyedProcessFunction, Row, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.api.client import JobClient
from turnback.sinks import StagedOutput, WriteAheadSink
from turnback.testing.engine import Levels, LocalEngine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from job_places import PER_EPOCH, place_of
from services.s3 import S3Server, s3_server

JOB = "counted"
PARALLELISM = 2
KEYS = 2_000
WARMUP = 12
"""Epochs that are left out: the first checkpoints are still below what retention keeps."""
TIMEOUT_S = 300.0
PAUSE_S = 0.3
"""After the output of an epoch is there, for what follows a commit."""
SETTLE_S = 5.0


class Count(KeyedProcessFunction):
    """The first level counts per key."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield Row(value.key, value.key % 97, n)


class Largest(KeyedProcessFunction):
    """The second one keeps the largest count of each of 97 groups."""

    largest = ValueStateDescriptor("largest", int)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        self.largest.update(max(self.largest.value() or 0, value.n))
        yield Row(value.key, value.n)


class Database(WriteAheadSink):
    """A transaction per epoch, in a database file beside the object store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as db:
            db.executescript("create table counts (key, n); create table marker (version)")

    def published(self, ctx: Any) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            return int(db.execute("select coalesce(max(version), 0) from marker").fetchone()[0])

    def publish(self, ctx: Any, output: StagedOutput) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            for batch in output.batches():
                db.executemany("insert into counts values (?, ?)", batch.rows)
            db.execute("insert into marker values (?)", [output.version])

    def rows(self) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            return int(db.execute("select count(*) from counts").fetchone()[0])


class DriverCalls:
    """Counts what is asked of the store outside of tasks: everything runs in this process."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._task = threading.local()

    @contextmanager
    def counting(self) -> Iterator[None]:
        operations = {
            "put": "PUT", "get": "GET", "head": "HEAD", "delete": "DELETE",
            "list": "LIST", "list_with_delimiter": "LIST",
        }  # fmt: skip
        before = {name: getattr(S3Store, name) for name in operations}
        run_task = Levels._run_task

        def in_task(*args: Any) -> Any:
            self._task.runs = True
            try:
                return run_task(*args)
            finally:
                self._task.runs = False

        Levels._run_task = in_task  # type: ignore[method-assign]
        for name, operation in operations.items():
            setattr(S3Store, name, self._counted(before[name], operation))
        try:
            yield
        finally:
            Levels._run_task = run_task  # type: ignore[method-assign]
            for name, method in before.items():
                setattr(S3Store, name, method)

    def _counted(self, method: Callable[..., Any], operation: str) -> Callable[..., Any]:
        def call(store: S3Store, path: Any = None, *args: Any, **named: Any) -> Any:
            if not getattr(self._task, "runs", False):
                paths = [path] if path is None or isinstance(path, str) else path
                self.requests += [Request(operation, each or "") for each in paths]
            return method(store, path, *args, **named)

        return call


@dataclass(frozen=True)
class Window:
    """What was asked between two moments: by the whole job, and by its driver."""

    checkpoints: int
    seconds: float
    requests: list[Request]
    by_driver: list[Request]

    def of(self, *, epochs: bool) -> list[Request]:
        """Those that follow from epochs, or those that follow the clock."""
        return [each for each in self.requests if (each.place in PER_EPOCH) is epochs]


@dataclass(frozen=True)
class Start:
    """What executors without local stores read to go on."""

    files: int
    bytes: int
    state_bytes: int
    """Of the state files there are."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    name = "python -m benchmarks.storage_requests"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("--epochs", type=int, default=24, help="counted (%(default)s)")
    parser.add_argument("--idle", type=int, default=30, help="seconds without input (%(default)s)")
    given = section.parse(parser, argv, epochs=4, idle=4)
    if min(given.epochs, given.idle) < 1:
        parser.error("--epochs and --idle must be at least 1")
    return given


class CountedJob:
    """The job, its input, and the log of what it asks for."""

    def __init__(self, place: Path, server: S3Server, log: Path) -> None:
        self.place = place
        self.log = log
        self.calls = DriverCalls()
        self.sink = Database(place / "counts.sqlite")
        self._server = server
        self.fed = 0
        self._events = place / "events"
        self._events.mkdir()

    def start(self, root: str) -> JobClient:
        settings = {"state.backend.local-dir": str(self.place / "local")}
        env = StreamExecutionEnvironment(None, root, settings, engine=LocalEngine())
        env.set_storage_options(**self._server.options)
        env.set_parallelism(PARALLELISM).set_state_backend("rocksdb").enable_checkpointing(10)
        events = env.from_files(self._events, "json", "key bigint", uid="in", max_files_per_epoch=1)
        counts = events.key_by("key").process(
            Count(), output_type="key bigint, part bigint, n bigint"
        )
        largest = (
            counts.uid("count")
            .key_by("part")
            .process(Largest(), output_type="key bigint, n bigint")
        )
        largest.uid("largest").sink_to(self.sink).uid("out")
        return env.execute_async(JOB)

    def feed(self) -> None:
        """Add the input of an epoch."""
        text = "\n".join(json.dumps({"key": key}) for key in range(KEYS))
        hidden = self.place / "next.json"
        hidden.write_text(text)
        hidden.rename(self._events / f"{self.fed:06d}.json")
        self.fed += 1

    def wait_for_output(self, job: JobClient) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.sink.rows() < self.fed * KEYS:
            if job.done() or time.monotonic() > deadline:
                raise RuntimeError(f"the job did not process what it was fed: {job.result()}")
            time.sleep(0.05)

    def window(self, job: JobClient, epochs: int, idle_s: float) -> Window:
        seen = len(self.requests()), len(self.calls.requests)
        began = time.monotonic()
        for _ in range(epochs):
            self.feed()
            self.wait_for_output(job)
            time.sleep(PAUSE_S)
        time.sleep(idle_s)
        requests = self.requests()[seen[0] :]
        by_driver = self.calls.requests[seen[1] :]
        manifests = [r for r in requests if (r.operation, r.place) == ("PUT", "checkpoint log")]
        return Window(len(manifests), time.monotonic() - began, requests, by_driver)

    def requests(self) -> list[Request]:
        return access_log.read(self.log, JOB)

    def cold_start(self, root: str) -> Start:
        """Start the job again, whose local stores went with it, and process one epoch."""
        before = len(self.requests())
        client = self.start(root)
        self.feed()
        self.wait_for_output(client)
        client.stop().result()
        requests = self.requests()
        sizes = {r.path: r.size for r in requests if r.operation == "PUT"}
        deleted = {r.path for r in requests[:before] if r.operation == "DELETE"}
        written = {r.path for r in requests[:before] if r.operation == "PUT"} - deleted
        read = [r for r in requests[before:] if r.operation == "GET" and r.path in written]
        files = [each.path for each in read if each.place == "state files"]
        there = [path for path in written if place_of(path) == "state files"]
        return Start(len(files), sum(map(sizes.__getitem__, files)), sum(map(sizes.get, there)))


def measure(given: argparse.Namespace) -> tuple[Window, Window, Start]:
    with tempfile.TemporaryDirectory(prefix="turnback-requests-") as name:
        place = Path(name)
        log = place / "access.log"
        with s3_server(place, access_log=log) as server:
            job = CountedJob(place, server, log)
            root = server.create_bucket("turnback")
            with job.calls.counting():
                client = job.start(root)
                job.window(client, WARMUP, 0.0)
                busy = job.window(client, given.epochs, 0.0)
                time.sleep(SETTLE_S)
                idle = job.window(client, 0, given.idle)
                client.stop().result()
                cold = job.cold_start(root)
            check("rows in the database", job.sink.rows(), job.fed * KEYS)
    return busy, idle, cold


def per_checkpoint(window: Window) -> str:
    counted = access_log.counted(window.of(epochs=True))
    by_driver = Counter((r.place, r.operation) for r in window.by_driver)
    rows = []
    for (place, operation), number in sorted(counted.items()):
        driver = min(by_driver[place, operation], number)
        size = sum(r.size for r in window.requests if (r.place, r.operation) == (place, operation))
        cells = [_each(n, window.checkpoints) for n in (number, driver, number - driver, size)]
        rows.append([place, operation, *cells])
    requests = window.of(epochs=True)
    size = sum(r.size for r in requests)
    cells = [_each(n, window.checkpoints) for n in (len(requests), size)]
    rows.append(["all", "", cells[0], "", "", cells[1]])
    return table(["place", "request", "each", "by the driver", "by tasks", "bytes sent"], rows)


def _each(number: float, checkpoints: int) -> str:
    return f"{number / checkpoints:,.1f}".removesuffix(".0")


def per_minute(window: Window) -> str:
    counted = access_log.counted(window.of(epochs=False))
    rows = [
        [place, operation, f"{number * 60 / window.seconds:.0f}"]
        for (place, operation), number in sorted(counted.items())
    ]
    return table(["place", "request", "a minute"], rows)


def report(machine: Machine, busy: Window, idle: Window, cold: Start) -> str:
    price = access_log.price(busy.of(epochs=True)) / busy.checkpoints
    by_clock = access_log.price(idle.of(epochs=False)) * 60 / idle.seconds
    return (
        "## Requests to an object store\n\n"
        f"A job of two keyed levels and a transactional sink, parallelism {PARALLELISM}, RocksDB, "
        f"with a checkpoint after each epoch of {KEYS:,} keys; its directory is on a real S3 "
        f"gateway, whose access log is counted over {busy.checkpoints} checkpoints; Spark "
        "is replaced by an engine in this process, as it asks the gateway for nothing. "
        f"{machine.describe()}\n\n"
        + per_checkpoint(busy)
        + f"\n\nThat costs as much as {price:.1f} PUTs ({access_log.PRICED}). Beside epochs, "
        f"without input:\n\n"
        + per_minute(idle)
        + f"\n\nThat costs as much as {by_clock:.0f} PUTs a minute. Executors without local "
        f"stores read {cold.files} files and {cold.bytes:,} bytes at the start, of "
        f"{cold.state_bytes:,} that there are. Repeat with `python -m benchmarks.storage_requests`."
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    text = report(machine, *measure(given))
    print(text)
    if given.output is not None:
        section.write(given.output, "storage-requests", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
