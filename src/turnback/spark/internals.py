"""What Turnback relies on inside Spark although Spark does not document it.

It is all in this module, but for the
lock that idle queries wait for (`turnback.spark.idle`), the way acknowledgements are collected
(`turnback.spark.engine`), and the marker that carries errors of tasks through the texts of
exceptions (`turnback.worker.message.encode_error`). Each part says why it is needed and what breaks
without it. `turnback.spark.session` checks at the start of a job that this Spark behaves as
described, and `make compat` runs jobs on the oldest and the newest Spark.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from turnback.core.units import describe_exit
from turnback.driver.positions import SIZE
from turnback.errors import CheckpointError

_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)


def streaming_nodes(frame: DataFrame) -> tuple[list[Any], list[str]]:
    """Return the streams of a DataFrame, in the order of Spark's offset log, and what keeps state.

    The offset log has one position for each stream in the plan, without a name. Without knowing the
    order, no position could be told from another. State that Spark keeps is in no checkpoint of
    ours, so it has to be detected before a job relies on it.
    """
    leaves: list[Any] = []
    stateful: list[str] = []
    stack = [analyzed(frame)]
    while stack:
        node = stack.pop()
        if not node.isStreaming():
            continue
        children = [node.children().apply(i) for i in range(node.children().size())]
        name = node.nodeName()
        streams = sum(child.isStreaming() for child in children)
        if name in _STATEFUL or (name == "Join" and streams > 1):
            stateful.append(name)
        if not children:
            leaves.append(node)
        stack += reversed(children)
    return leaves, stateful


def only_reads(spark: Any, sql: str) -> bool:
    """Whether SQL is a query, and neither writes nor creates, drops or sets anything.

    Spark has no mode in which it only reads, and `SparkSession.sql` runs a command at once.
    """
    session = spark._jsparkSession
    jvm = spark._jvm
    logical = "org.apache.spark.sql.catalyst.plans.logical"
    names = ("Command", "ParsedStatement", "InsertIntoDir")
    writing = [jvm.java.lang.Class.forName(f"{logical}.{name}") for name in names]
    stack = [session.sessionState().sqlParser().parsePlan(sql)]
    while stack:
        node = stack.pop()
        if any(kind.isInstance(node) for kind in writing):
            return False
        stack += [node.children().apply(i) for i in range(node.children().size())]
    return True


def source_directories(leaves: Sequence[Any]) -> list[str]:
    """The directory below ``sources`` that Spark gives to each stream of a query.

    It is the user's name for the stream, else a running number; a stream that the plan has twice
    has one directory. Without it, a file source's list of files would be looked for in vain, or
    taken from another source.
    """
    directories: list[str] = []
    unnamed = 0
    for i, leaf in enumerate(leaves):
        same = next((j for j in range(i) if leaves[j].equals(leaf)), None)
        if same is not None:
            directories.append(directories[same])
            continue
        # Streams have names since Spark 4.2.
        named = "sourceIdentifyingName" in dir(leaf)
        name = leaf.sourceIdentifyingName().nameOpt() if named else None
        if name is not None and name.isDefined():
            directories.append(name.get())
        else:
            directories.append(str(unnamed))
            unnamed += 1
    return directories


_ROW_BY_ROW = frozenset({"EventTimeWatermark", "Filter", "Generate", "Project", "SubqueryAlias"})


def keeps_order(frame: DataFrame) -> bool:
    """Whether a DataFrame gives what it makes of the rows of one stream in their order.

    Without it, rows that Spark has shuffled would be taken for being in the order of their source.
    """
    plan = analyzed(frame)
    while plan.children().size() == 1 and plan.nodeName() in _ROW_BY_ROW:
        plan = plan.children().head()
    return bool(plan.children().isEmpty())


def kept_columns(frame: DataFrame, leaf: Any) -> dict[str, str]:
    """Columns of a stream that a DataFrame gives on as they are: its names for them, by theirs.

    A column that was computed or renamed has another number in the plan. Without it, a column that
    only has the name of another would be taken for it.
    """
    plan = analyzed(frame)
    output = [plan.output().apply(i) for i in range(plan.output().size())]
    given = {int(column.exprId().id()): str(column.name()) for column in output}
    own = [leaf.output().apply(i) for i in range(leaf.output().size())]
    numbers = {str(column.name()): int(column.exprId().id()) for column in own}
    return {name: given[number] for name, number in numbers.items() if number in given}


def analyzed(frame: DataFrame) -> Any:
    """The plan of a DataFrame, with all names resolved."""
    return frame._jdf.queryExecution().analyzed()


_LOG = logging.getLogger(__name__)

OLDEST = (4, 1)
NEWEST = (4, 3)
"""The versions of Spark that all this holds for, as in pyproject.toml."""

OUTPUT_LOST = "Spark cannot rollback"
"""In the message of the error with which Spark gives a job up because output was lost with an
executor after other tasks had read it. Without it the attempt fails; with it the epoch is replayed.
"""


# -- settings of the query

CHECKPOINT_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""For every file in a local checkpoint directory Spark starts a process that sets the file's mode,
and writes a second file with checksums: three times an epoch, 50 ms each. The scratch directory
needs neither, as nothing is ever restored from it. Without these settings epochs are slower."""

NO_ADAPTATION = {"spark.sql.adaptive.enabled": "false"}
"""Adaptive execution would run every shuffle as a job of its own, and has nothing to adapt: the
partitions are fixed. With it partitions may be joined, and a task would hold the state of two."""

POLLING = ("spark.sql.streaming.pollingDelay", "100ms")
"""How long Spark waits before it asks sources again that had nothing new, unless the user has set
it. By default it asks a hundred times a second, which keeps a fifth of a core busy."""

LOG_FORMATS = {
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}
"""The formats of the offset and commit logs that `CheckpointLogs` reads and writes. The user may
have chosen others for queries of their own; with those no position could be read or restored."""

_session_settings = threading.Lock()
"""Held while sessions of users have settings of ours."""


@contextmanager
def streaming_query(
    frame: DataFrame,
    on_batch: Callable[[MicroBatch], None],
    scratch: Path,
    *,
    bounded: bool,
    interval_ms: int,
) -> Iterator[StreamingQuery]:
    """Run a streaming query until the end of the block; `scratch` is Spark's checkpoint directory.

    A `bounded` one ends when all that is there now has been read. Between the starts of two batches
    is the interval; 0 for as fast as possible.
    """
    running: Future[StreamingQuery] = Future()  # the first batch may come before `start` returns
    writer = _in_own_session(frame).writeStream.foreachBatch(
        lambda batch, number: on_batch(MicroBatch(batch, number, running))
    )
    writer = writer.option("checkpointLocation", scratch.as_uri())
    if bounded:
        writer = writer.trigger(availableNow=True)
    elif interval_ms:
        writer = writer.trigger(processingTime=f"{interval_ms} milliseconds")
    with _settings_for_file_sources(frame):
        query = writer.start()
        running.set_result(query)
        with suppress(StreamingQueryException):  # raised again by whoever waits for the query
            query._jsq.streamingQuery().awaitInitialization(60_000)
    try:
        yield query
    finally:
        with unless_jvm_lost("stopping the query"):
            query.stop()


def _in_own_session(frame: DataFrame) -> DataFrame:
    own = own_session(frame.sparkSession)
    datasets = own.sparkContext._jvm.org.apache.spark.sql.classic.Dataset  # type: ignore[union-attr]
    return DataFrame(datasets.ofRows(own._jsparkSession, analyzed(frame)), own)


def own_session(user: SparkSession) -> SparkSession:
    """A copy of the user's session with the settings that our queries need.

    A query takes its settings from the session of its frame, some of them anew in every batch. The
    user's own session must keep what the user has set, and a new session would lack it. Listeners
    for streaming queries are the one thing that Spark does not copy.
    """
    java_session = user._jsparkSession.cloneSession()
    for listener in user._jsparkSession.streams().listListeners():
        java_session.streams().addListener(listener)
    own = SparkSession(user.sparkContext, java_session)
    polling = {} if own.conf.get(POLLING[0], None) else dict([POLLING])
    for key, value in (CHECKPOINT_FILES | NO_ADAPTATION | LOG_FORMATS | polling).items():
        own.conf.set(key, value)
    return own


@contextmanager
def _settings_for_file_sources(frame: DataFrame) -> Iterator[None]:
    """Let file sources that are created meanwhile write their logs as `CHECKPOINT_FILES` says.

    They take it from the session in which the user made them, and only when they are created.
    """
    sources = [n for n in streaming_nodes(frame)[0] if n.nodeName() == "StreamingRelation"]
    if not sources:
        yield
        return
    with _session_settings, ExitStack() as undo:
        for source in sources:
            settings = source.dataSource().sparkSession().conf()
            for key, value in CHECKPOINT_FILES.items():
                before = settings.getAll().get(key)
                if before.isDefined():
                    undo.callback(settings.set, key, before.get())
                else:
                    undo.callback(settings.unset, key)
                settings.set(key, value)
        yield


@dataclass(frozen=True)
class MicroBatch:
    """A batch of a query, as `foreachBatch` gets it: to be run, not to be built upon."""

    frame: DataFrame
    number: int
    query: Future[StreamingQuery]

    def anew(self) -> DataFrame:
        """The batch as a DataFrame with shuffles of its own.

        To run it again, Spark would use its old shuffles, and acknowledgements in them of output
        that was rolled back.
        """
        query = self.query.result()._jsq.streamingQuery()
        plan = query.lastExecution().executedPlan().clone()
        session = self.frame.sparkSession
        create = session._jsparkSession.internalCreateDataFrame
        return DataFrame(create(plan.execute(), plan.schema(), False), session)

    def tasks(self, shuffles: int) -> int:
        """How many tasks come before so many shuffles, counted from the end of the plan."""
        rdd = self.frame._jdf.queryExecution().analyzed().rdd()
        while shuffles:
            dependency = rdd.dependencies().head()
            shuffles -= dependency.getClass().getSimpleName() == "ShuffleDependency"
            rdd = dependency.rdd()
        return int(rdd.getNumPartitions())


# -- the files of a streaming checkpoint

_BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
SEEDED_BATCHES = (0, 1)
"""Spark asks sources for the last batch once more when it starts. It is to be an empty one: a file
source would look at every file it has ever seen, and refuse those that are elsewhere now."""
_NOTHING = "-"
_FIRST_ENTRY = '{"logOffset":0}'  # exactly as Spark writes it, or it takes it for another offset


class CheckpointLogs:
    """The offset log, the commit log and the logs of file sources in Spark's checkpoint directory.

    Positions are read from there after every batch, and written there to make a query go on from a
    snapshot. There is no other way to ask Spark for either. The `leaves` are the streams of the
    query in Spark's order, by name, each with its directory.
    """

    def __init__(self, path: Path, leaves: Mapping[str, str]) -> None:
        self.path = path
        self.leaves = leaves

    def seed(self, offsets: Mapping[str, str | None], logs: Mapping[str, Sequence[str]]) -> None:
        """Make Spark go on from positions; a leaf without one starts at its beginning.

        `logs` are the entries of the lists of files seen, for leaves that keep one.
        """
        if all(offsets.get(leaf) is None for leaf in self.leaves):
            return  # a fresh start
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        lines = ["v1", _BATCH]
        for leaf, directory in self.leaves.items():
            offset = offsets.get(leaf)
            if offset is not None and leaf in logs:
                entries = map(_first_batch, logs[leaf])
                self._write(f"sources/{directory}/0", "\n".join(["v1", *entries]))
                offset = _FIRST_ENTRY
            lines.append(_NOTHING if offset is None else offset)
        for batch in SEEDED_BATCHES:
            self._write(f"offsets/{batch}", "\n".join(lines))
            self._write(f"commits/{batch}", _COMMIT)

    def offsets(self, batch: int) -> dict[str, str | None]:
        """The position of every leaf after a batch, as Spark wrote it before running the batch."""
        lines = (self.path / "offsets" / str(batch)).read_text().split("\n")
        positions = lines[2:]
        if lines[0] != "v1" or len(positions) != len(self.leaves):
            raise CheckpointError(
                f"Spark's offset log for batch {batch} has {len(positions)} positions in format "
                f"{lines[0]!r}, expected {len(self.leaves)} in 'v1'"
            )
        return {
            leaf: None if line == _NOTHING else line
            for leaf, line in zip(self.leaves, positions, strict=True)
        }

    def log_entries(self, leaf: str, after: int, upto: int) -> list[str] | None:
        """Entries of a leaf's list of files seen; None when it keeps no such list."""
        directory = self.path / "sources" / self.leaves[leaf]
        if not directory.is_dir():
            return None
        entries: list[str] = []
        for number in range(after + 1, upto + 1):
            entries += self._entries_of(directory, number)
        return entries

    def _entries_of(self, directory: Path, number: int) -> list[str]:
        plain = directory / str(number)
        compact = directory / f"{number}.compact"
        if plain.is_file():
            return plain.read_text().split("\n")[1:]
        if not compact.is_file():
            return []  # Spark writes no entry for a batch in which this source had nothing
        lines = compact.read_text().split("\n")[1:]
        return [line for line in lines if json.loads(line)["batchId"] == number]

    def _write(self, name: str, text: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def _first_batch(entry: str) -> str:
    """An entry as Spark itself writes it, as if its file had been read in batch 0."""
    fields = {name: value for name, value in json.loads(entry).items() if name != SIZE}
    return json.dumps({**fields, "batchId": 0})


# -- the JVM


def start_jvm() -> None:
    """Start Spark's JVM without any settings on its command line, unless it runs already.

    `SparkSession.builder` would put every setting there, where all users of the machine can read
    them. The JVM has to be told by other means what it needs to start with.
    """
    SparkContext._ensure_initialized()


_DYING_S = 5.0
_LIKELY = (
    "The usual reason is memory: the system ran out of it (dmesg shows what the kernel killed), "
    "or the JVM needs more than spark.driver.memory"
)


def lost_jvm(spark: SparkSession) -> str | None:
    """Describe what happened to Spark's JVM; None if it is fine.

    It has to answer a call: a process that is being killed still exists for a while, and keeps its
    connections open, but does not answer.
    """
    context = spark.sparkContext
    try:
        java_context = context._jsc
        if java_context is not None and not java_context.sc().isStopped():
            return None
    except (Py4JNetworkError, OSError):
        how = "no longer responds"
        process = vars(context._gateway).get("proc")  # None if this process is the JVM's child
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                how = describe_exit(process.wait(_DYING_S))
        return f"its JVM {how}. {_LIKELY}"
    return "the Spark context was stopped, by the program or by the cluster"


@contextmanager
def unless_jvm_lost(what: str) -> Iterator[None]:
    """Leave out what only tidies up in a JVM, if that is gone: it must not hide what went wrong."""
    try:
        yield
    except (Py4JNetworkError, OSError) as error:
        _LOG.info("skipped, because Spark's JVM does not respond: %s: %s", what, error)
