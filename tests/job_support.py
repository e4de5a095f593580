"""The jobs of one test: input and output files, job directories, marks left by user functions."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from turnback import (
    FileSink,
    JobClient,
    KeyedProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    Types,
)
from turnback import ValueStateDescriptor as Value
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.functions import KeyedBatchFunction, KeyedColumns
from turnback.job.directory import JobDirectory
from turnback.job.history import Event, read_history
from turnback.testing import LocalEngine
from turnback.values.columns import Batch
from turnback.values.hints import as_type
from turnback.values.typeinfo import RowTypeInfo


class Count(KeyedProcessFunction):
    """Gives every element of a key its number: key and 1, 2, 3 and so on."""

    count = Value("count", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield ctx.get_current_key(), n


class BatchCount(KeyedBatchFunction):
    """Gives what `Count` gives, and has its state."""

    count = Value("count", int)

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.Table:
        before = state.read(self.count).fill_null(0).to_numpy()
        sizes = np.bincount(state.index)
        order = np.argsort(state.index, kind="stable")
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        state.write(self.count, before + sizes)
        keys = state.keys.take(pa.array(state.index))
        return pa.table({"key": keys, "n": before[state.index] + numbers + 1})


COUNTED = "key string, n bigint"


class Marks:
    """What user functions leave behind on disk, whatever process they run in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def add(self, name: str, text: str = "") -> None:
        """Append a line; appends of one line are atomic."""
        with (self.directory / name).open("a") as file:
            file.write(f"{text}\n")

    def lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    def first(self, name: str) -> bool:
        """Whether this is the first call with this name, among all processes."""
        try:
            os.close(os.open(self.directory / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Jobs:
    """Everything below one directory; without a Spark session, jobs run in this process."""

    def __init__(self, directory: Path, spark: SparkSession | None = None) -> None:
        self._spark = spark
        self.directory = directory
        self.root = directory / "jobs"
        self.marks = Marks(directory / "marks")
        self._files = 0
        self._clients: list[JobClient] = []

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    def environment(
        self, configuration: Mapping[str, Any] | None = None, root: Path | None = None
    ) -> StreamExecutionEnvironment:
        """An environment as users get it."""
        engine = LocalEngine() if self._spark is None else None
        return StreamExecutionEnvironment(
            self._spark, root or self.root, configuration, engine=engine
        )

    def env(
        self, interval: int | None = 10, parallelism: int = 2, **configuration: Any
    ) -> StreamExecutionEnvironment:
        env = self.environment(configuration)
        env.set_parallelism(parallelism)
        if not any(key.startswith("restart-strategy") for key in configuration):
            env.set_restart_strategy(RestartStrategies.no_restart())  # a test must not loop
        if interval is not None:
            env.enable_checkpointing(interval)
        return env

    def feed(self, source: str, *records: Mapping[str, Any]) -> Path:
        """Put one file with these records in front of a source."""
        path = self._new(source, "json")
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{json.dumps(r)}\n" for r in records))
        os.utime(hidden, (self._files, self._files))  # Spark takes the oldest first
        return hidden.rename(path)

    def _new(self, source: str, suffix: str) -> Path:
        self._files += 1
        return self.input(source) / f"{self._files:04}.{suffix}"

    def input(self, source: str) -> Path:
        directory = self.directory / "in" / source
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def files(
        self, env: StreamExecutionEnvironment, source: str, schema: Any, uid: str | None = None
    ) -> Any:
        """A stream of a source's files, one per epoch."""
        directory = self.input(source)
        return env.from_files(directory, "json", schema, uid or source, max_files_per_epoch=1)

    def given(
        self, env: StreamExecutionEnvironment, uid: str, elements: Iterable[Any], spec: Any
    ) -> Any:
        """A stream of these elements, in one epoch; cheaper than a list, which needs processes."""
        kind = as_type(spec)
        batch = Batch(kind, list(elements)).arrow
        path = self._new(uid, "parquet")
        pq.write_table(pa.Table.from_batches([batch]), path)
        os.utime(path, (self._files, self._files))
        rows = kind if isinstance(kind, RowTypeInfo) else Types.ROW_NAMED(["value"], [kind])
        stream = env.from_files(path.parent, "parquet", rows, uid, max_files_per_epoch=1)
        return stream if rows is kind else stream.map(lambda row: row.value, kind)

    def sink(self, name: str = "out") -> FileSink:
        return FileSink(self.directory / name, "json")

    def out(self, name: str = "out") -> list[Any]:
        """What is committed: one tuple of values per row, or the values of scalars; sorted."""
        found = []
        for path in (self.directory / name).glob("*.json"):
            for line in path.read_text().splitlines():
                values = tuple(json.loads(line).values())
                found.append(values[0] if len(values) == 1 else values)
        return sorted(found, key=repr)

    def start(self, env: StreamExecutionEnvironment, name: str = "job", **how: Any) -> JobClient:
        client = env.execute_async(name, **how)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            if not client.done():
                client.cancel()
                client.result(60)

    # -- looking into the job directory

    def path(self, name: str = "job") -> Path:
        return self.root / name

    def log(self, name: str = "job") -> CheckpointLog:
        return CheckpointLog(JobDirectory.locate(self.root, name).storage)

    def checkpoints(self, name: str = "job") -> list[Manifest]:
        return list(self.log(name).scan().manifests)

    def events(self, name: str = "job") -> list[Event]:
        storage = JobDirectory.locate(self.root, name).storage
        return [record.event for record in read_history(storage)]


def counted(keys: Iterable[str]) -> list[tuple[str, int]]:
    """What `Count` gives for these keys, sorted like `Jobs.out`."""
    seen: Counter[str] = Counter()
    result = []
    for key in keys:
        seen[key] += 1
        result.append((key, seen[key]))
    return sorted(result, key=repr)


def eventually(check: Callable[[], Any], seconds: float = 90) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {check}")
        time.sleep(0.05)
    return found
