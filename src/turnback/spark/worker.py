"""What Spark runs in its Python workers: tasks beside the epochs, and the levels of an epoch."""

from __future__ import annotations

import atexit
import json
import logging
import os
import pickle
import re
import socket
import stat
import sys
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame, SparkSession

from turnback.driver.engine import Task
from turnback.errors import ConfigurationError, TurnbackError
from turnback.state.files import StateFile, StorageRef, storage_of
from turnback.storage.base import Storage, delete_files
from turnback.values.columns import stream_ddl
from turnback.values.hints import as_type
from turnback.worker.level import LevelInstance
from turnback.worker.message import (
    EpochCommand,
    TaskName,
    decode_command,
    decode_error,
    encode_command,
    encode_error,
)
from turnback.worker.program import load_program
from turnback.worker.shared_storage import require_shared_storage

LARGE = 16 << 20
"""A command goes through files if the driver would send more of it to all tasks of a level."""
_FEW_TASKS = 16
_PART = 256 << 10
_WRITERS = 8
_PROPERTY = "turnback.order."


@contextmanager
def send_commands(context: SparkContext, commands: Sequence[EpochCommand]) -> Iterator[None]:
    """Give commands, one per level, to the tasks of the Spark jobs that this thread runs."""
    with ExitStack() as undo:
        for level, command in enumerate(commands):
            key = f"{_PROPERTY}{level}"
            text = encode_command(command)
            tasks = max(len(command.files), _FEW_TASKS)
            if len(text) * tasks > LARGE and not command.storage.inline:
                text = _write_files(command, undo)
            undo.callback(context.setLocalProperty, key, None)  # type: ignore[arg-type]
            context.setLocalProperty(key, text)
        yield


def read_command(context: TaskContext, level: int) -> EpochCommand:
    """The command for the tasks of a level, in one of them."""
    text = context.getLocalProperty(f"{_PROPERTY}{level}")
    assert text is not None, "this task was started by another query"
    if not text.startswith("{"):
        return decode_command(text)
    where = json.loads(text)
    part = min(context.partitionId() // where["partitions"], where["parts"] - 1)
    return _read_file(json.dumps(where["storage"]), f"{where['path']}-{part}")


def _write_files(command: EpochCommand, undo: ExitStack) -> str:
    """Write a command to files, each for some partitions; return where they are.

    A task reads only its own file: what there is for all partitions grows with their number, and
    as many tasks would read it.
    """
    storage = storage_of(command.storage)
    path = f"state/{command.attempt}/order-{uuid.uuid4().hex}"
    commands = _parts(command)
    texts = {f"{path}-{n}": encode_command(each).encode() for n, each in enumerate(commands)}
    undo.callback(_remove_files, storage, list(texts))
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="turnback-command") as pool:
        list(pool.map(storage.put, texts.keys(), texts.values()))
    where = {
        "path": path,
        "partitions": _partitions_of(command, len(commands)),
        "parts": len(commands),
        "storage": vars(command.storage),
    }
    return json.dumps(where)


def _remove_files(storage: Storage, paths: Sequence[str]) -> None:
    """Remove the files of a command. An epoch that has run must not fail for them."""
    for path, error in delete_files(storage, paths).items():
        _LOG.warning("%s is kept until the next start: %s", path, error)


def _parts(command: EpochCommand) -> list[EpochCommand]:
    """The same command several times, each with the state files of some neighbouring partitions."""
    bare = replace(command, files={})
    size = len(encode_command(command)) - len(encode_command(bare))
    count = max(1, min(-(-size // _PART), len(command.files)))
    width = _partitions_of(command, count)
    files: list[dict[int, tuple[StateFile, ...]]] = [{} for _ in range(count)]
    for partition, of_partition in command.files.items():
        files[min(partition // width, count - 1)][partition] = of_partition
    return [replace(bare, files=each) for each in files]


def _partitions_of(command: EpochCommand, parts: int) -> int:
    """How many partitions a part is for."""
    return -(-(max(command.files, default=0) + 1) // parts)


@lru_cache(maxsize=4)
def _read_file(storage: str, path: str) -> EpochCommand:
    return decode_command(storage_of(StorageRef(**json.loads(storage))).get(path).decode())


T_co = TypeVar("T_co", covariant=True)
Batches = Iterator[pa.RecordBatch]

_LOG = logging.getLogger(__name__)
_MAX_INSTANCES = 64


class BatchTask(Protocol):
    """Turns batches into others in a task; picklable."""

    @property
    def schema(self) -> pa.Schema:
        """Of the batches that it returns."""

    def __call__(self, batches: Batches) -> Batches:
        """Do it."""


@contextmanager
def spark_job(spark: SparkSession, description: str) -> Iterator[None]:
    """Describe a job in Spark's UI; what its tasks raise is raised without Spark's stack trace."""
    spark.sparkContext.setJobDescription(description)
    try:
        yield
    except Exception as e:
        cause = decode_error(e)
        if cause is e:
            cause = environment_error(e) or e
        if cause is e:
            raise
        raise cause from None
    finally:
        spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type] # removes it


_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.*?), PySpark cannot run")
_EXECUTOR_HOST = re.compile(r"\(TID \d+\) \((\S+) executor")


def environment_error(error: BaseException) -> ConfigurationError | None:
    """What to say of an executor whose Python cannot even load a task; None if it is not that."""
    text = str(error)
    module = _MISSING_MODULE.search(text)
    version = _OTHER_PYTHON.search(text)
    if module is not None:
        problem = f"has no module {module[1]!r}"
    elif version is not None:
        problem = f"cannot be used. {version[1]}"
    else:
        return None
    host = _EXECUTOR_HOST.search(text)
    where = f" on {host[1]}" if host else ""
    return ConfigurationError(
        f"the Python of the executors{where} {problem}. Executors run "
        f"{os.environ.get('PYSPARK_PYTHON', 'python3')}: install what the program needs there, or "
        "name another interpreter in spark.pyspark.python, or ship an environment with "
        "spark.archives"
    )


def map_batches(frame: DataFrame, task: BatchTask) -> DataFrame:
    """A DataFrame whose partitions go through a task."""
    return frame.mapInArrow(_Marked(task).__call__, stream_ddl(as_type(task.schema)))


def numbers_frame(spark: SparkSession, count: int) -> DataFrame:
    """The numbers up to a count, each in a partition of its own, for tasks that read something.

    Not `spark.range`, whose known small size Spark would take for that of what is read: it would
    collect that in the driver to broadcast it.
    """
    numbers = spark.sparkContext.parallelize([(i,) for i in range(count)], count)
    return spark.createDataFrame(numbers, "number int", verifySchema=False)


@dataclass(frozen=True)
class _Marked:
    task: BatchTask

    def __call__(self, batches: Batches) -> Batches:
        confirm_receipt()
        try:
            yield from self.task(batches)
        except TurnbackError as e:
            raise encode_error(e) from e


def run_tasks(spark: SparkSession, description: str, tasks: Sequence[Task[T_co]]) -> list[T_co]:
    """Run tasks as one Spark job; return their results, in the order of the tasks.

    They go through a DataFrame, as epochs do: Spark gives functions of RDDs other workers, which
    would have to be started, and load everything, besides those that are there.
    """
    if not tasks:
        return []
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    with spark_job(spark, description):
        rows = map_batches(numbers, _TaskRunner(tuple(tasks))).collect()
    results = {row["number"]: pickle.loads(row["result"]) for row in rows}
    return [results[number] for number in range(len(tasks))]


_have_workers: set[str] = set()
"""Applications of Spark whose workers were started ahead."""


def start_workers(spark: SparkSession) -> None:
    """Let Spark start its Python workers, and load what epochs need, beside all else.

    Otherwise the first epoch, or the first task, waits for that. On a cluster executors come later
    and nobody waits for workers there, so this is for a master on this machine, once.
    """
    context = spark.sparkContext
    application = context.applicationId
    if application in _have_workers or not (context.master or "").startswith("local"):
        return
    _have_workers.add(application)

    def run() -> None:
        try:
            run_tasks(spark, "start workers", [_Nothing()] * context.defaultParallelism)
        except Exception as e:  # noqa: BLE001 - what follows fails likewise, and says so
            _LOG.debug("cannot start workers in advance: %s", e)

    threading.Thread(target=run, name="turnback-workers", daemon=True).start()


@dataclass(frozen=True)
class _Nothing:
    def run(self) -> None:
        pass


@dataclass(frozen=True)
class _TaskRunner:
    tasks: tuple[Task[Any], ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("number", pa.int64()), ("result", pa.binary())])

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(self.tasks[number].run())
                yield pa.RecordBatch.from_arrays([[number], [result]], schema=self.schema)


def confirm_receipt() -> None:
    """Tell Spark at once that its task has arrived, where the kernel would wait for up to 40 ms.

    Spark sends a task and then its rows, and the kernel holds the rows back until the receipt of
    what was sent before is confirmed (Nagle's algorithm, which Spark leaves on).
    """
    for connection in _connections():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@cache
def _connections() -> list[socket.socket]:
    """The TCP connections that a worker has when it gets its first task: one, to Spark."""
    connections: dict[object, socket.socket] = {}
    if sys.platform == "linux":
        for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            try:
                is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
            except OSError:
                continue  # the one that was used to list them
            if is_socket:
                connection = socket.socket(fileno=os.dup(fd))
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connections[connection.getsockname()] = connection
    return list(connections.values())


class InstanceKey(NamedTuple):
    """Whose functions are open: those of one attempt of one driver, in one partition of a level.

    Copies of a job directory share id and attempt numbers, so neither tells two jobs apart.
    """

    directory: str
    attempt: int
    line: str
    level: int
    partition: int


_instances: OrderedDict[InstanceKey, LevelInstance] = OrderedDict()


@dataclass(frozen=True)
class LevelTask:
    """What Spark calls in each task of a level."""

    blob: bytes
    """The pickled `LevelProgram`, the same bytes in every epoch."""
    level: int
    shared: bool
    """Whether one instance serves all partitions (a level without state)."""

    def __call__(self, batches: Batches) -> Batches:
        confirm_receipt()
        context = TaskContext.get()
        assert context is not None
        name = TaskName(
            context.partitionId(),
            context.taskAttemptId(),
            context.stageId(),
            context.attemptNumber(),
        )
        partition = -1 if self.shared else name.partition
        command = read_command(context, self.level)
        key = InstanceKey(command.storage.uri, command.attempt, command.line, self.level, partition)
        try:
            require_shared_storage(command.storage, command.fence, command.nonce)
            yield from self._instance(key, name.partition).run(command, name, batches)
        except TurnbackError as e:
            _discard(key)
            raise encode_error(e) from e
        except BaseException:
            _discard(key)
            raise

    def _instance(self, key: InstanceKey, partition: int) -> LevelInstance:
        instance = _instances.get(key)
        if instance is None:
            instance = _instances[key] = LevelInstance(load_program(self.blob), partition)
            _evict(key)
        _instances.move_to_end(key)
        return instance


def _discard(key: InstanceKey) -> None:
    """Give an instance up: what its functions hold may be half done."""
    instance = _instances.pop(key, None)
    if instance is not None:
        try:
            instance.close()
        except Exception:  # noqa: BLE001 - the failure before it is what matters
            _LOG.exception("close() failed after a failure")


def _evict(newest: InstanceKey) -> None:
    for key in list(_instances):
        same_job = key.directory == newest.directory
        if same_job and key.line != newest.line and key.attempt <= newest.attempt:
            _instances.pop(key).close()
    while len(_instances) > _MAX_INSTANCES:
        _instances.popitem(last=False)[1].close()


_OVERLAP_S = 0.1


@dataclass(frozen=True)
class _CloseTask:
    """Closes the functions of an attempt that its worker has open; returns what they raised."""

    directory: str
    attempt: int

    def run(self) -> list[str]:
        failures = []
        for key in list(_instances):
            if (key.directory, key.attempt) == (self.directory, self.attempt):
                try:
                    _instances.pop(key).close()
                except Exception as e:  # noqa: BLE001 - the others are closed all the same
                    failures.append(repr(e))
        time.sleep(_OVERLAP_S)  # so that no other of these tasks gets this worker
        return failures


def close_functions(spark: SparkSession, directory: str, attempt: int) -> None:
    """Close the functions of an attempt, which has ended, in all workers that are there.

    Workers outlive the job, and nothing tells Spark to give one of them a task: as many tasks as
    there are cores run at the same time, each in a worker of its own. What goes wrong is logged,
    since the job has done its work.
    """
    tasks = [_CloseTask(directory, attempt)] * spark.sparkContext.defaultParallelism
    try:
        failures = run_tasks(spark, "close functions", tasks)
    except Exception as e:  # noqa: BLE001 - Spark may be about to stop
        _LOG.warning("cannot close functions: %s", e)
        return
    for failure in chain.from_iterable(failures):
        _LOG.warning("close() of a function failed: %s", failure)


@atexit.register
def _close_all() -> None:
    while _instances:
        _instances.popitem()[1].close()
