"""The Spark session that jobs run on: Java, a session, and whether it behaves as jobs need it."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from py4j.protocol import Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from turnback.core.units import describe_exit
from turnback.errors import ConfigurationError, SparkUnavailableError
from turnback.spark.class_archive import ClassArchive, java_program, spark_home
from turnback.spark.internals import (
    NEWEST,
    OLDEST,
    SEEDED_BATCHES,
    CheckpointLogs,
    MicroBatch,
    lost_jvm,
    own_session,
    start_jvm,
    streaming_query,
)
from turnback.storage.directory import DirectoryLock, locked_directory

_LOG = logging.getLogger(__name__)
_PREFIX = "turnback-spark-"


class Scratch(CheckpointLogs):
    """One attempt's Spark checkpoint directory, locked until the attempt ends."""

    def __init__(self, leaves: Mapping[str, str]) -> None:
        self._lock = _lock_new()
        super().__init__(self._lock.directory, leaves)

    def remove(self) -> None:
        self._lock.remove()
        self._lock.release()


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can read; it goes at the end of the block.

    If this process is killed before, it goes when the next driver starts on this machine.
    """
    lock = _lock_new()
    try:
        yield lock.directory
    finally:
        lock.remove()
        lock.release()


def _lock_new() -> DirectoryLock:
    """Make a new directory, locked before it exists, so that no other driver sweeps it away."""
    _sweep()
    while True:
        path = Path(tempfile.gettempdir(), f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
        lock = DirectoryLock.take(path)
        if lock is not None:
            path.mkdir(mode=0o700)
            return lock


def _sweep() -> None:
    """Remove what drivers that were killed on this machine left behind.

    Only what can be locked: containers may share the directory of temporary files, and a driver
    in another one has no process here.
    """
    for lock_file in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*.lock")):
        directory = locked_directory(lock_file)
        try:
            # The directory of temporary files is open to all users.
            paths = [path for path in (lock_file, directory) if os.path.lexists(path)]
            if any(path.lstat().st_uid != os.getuid() for path in paths):
                continue
            lock = DirectoryLock.take(directory)
        except OSError as error:
            _LOG.debug("keeping %s: %s", directory, error)
            continue
        if lock is not None:
            lock.remove()
            lock.release()


_OLDEST_JAVA = 17
_HINT = (
    f"Install Java {_OLDEST_JAVA} or newer (for example Debian's openjdk-17-jre-headless, or "
    f"Temurin {_OLDEST_JAVA}) and put it on PATH or set JAVA_HOME."
)
_DEPLOY_MODE = "spark.submit.deployMode"
_TIME_ZONE = "spark.sql.session.timeZone"
_UTC = "UTC"
_WORKER_PYTHON = "spark.pyspark.python"
_JVM_ENDED = "JAVA_GATEWAY_EXITED"
_LOGGING = Path(__file__).with_name("log4j2.properties")


def check_java() -> int:
    """Find Java and return its major version.

    Where it does not start, which may be for want of memory, that is `SparkUnavailableError`.
    """
    home = os.environ.get("JAVA_HOME")
    program = java_program()
    if program is None or not Path(program).exists():
        where = (
            f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is no java on PATH"
        )
        raise ConfigurationError(f"Spark needs Java, but {where}. {_HINT}")
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    output = done.stderr + done.stdout
    if done.returncode:
        raise SparkUnavailableError(
            f"Spark needs Java, but {program} -version {describe_exit(done.returncode)}: "
            f"{output.strip() or 'it printed nothing'}"
        )
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        raise ConfigurationError(f"the output of {program} -version is not that of Java. {_HINT}")
    major = int(version[1])
    if major < _OLDEST_JAVA:
        raise ConfigurationError(f"{program} is Java {major}, which is too old for Spark. {_HINT}")
    return major


def spark_session(
    master: str | None = None, *, class_archive: bool = True, **options: str
) -> SparkSession:
    """The running session, or a new one with defaults that suit streaming jobs.

    Args:
        master: Spark's master; by default the option ``spark.master``, else what spark-submit
            says, else all cores of this machine.
        class_archive: Whether the JVM may load Spark's classes from an archive, if there is one.
        **options: Further Spark settings; dots may be written as double underscores.

    Raises:
        ConfigurationError: There is no Java that Spark could run on, or SPARK_REMOTE is set.
        SparkUnavailableError: Spark's JVM ended while it was started.
    """
    remote = os.environ.get("SPARK_REMOTE")
    if remote:
        raise ConfigurationError(
            f"SPARK_REMOTE is {remote!r}, but Turnback does not support Spark Connect: a job "
            "needs a Spark driver in its own process. Unset SPARK_REMOTE"
        )
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    settings = {key.replace("__", "."): value for key, value in options.items()}
    _refuse_cluster_mode(settings)
    check_java()
    if _WORKER_PYTHON in settings:
        os.environ["PYSPARK_PYTHON"] = settings[_WORKER_PYTHON]  # PySpark reads only this
    # By default workers run the driver's interpreter, or pickled functions do not load.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    master = master or settings.pop("spark.master", None) or _default_master()
    archive = ClassArchive.locate() if class_archive and master is not None else None
    if archive is None or not archive.is_there():
        return _new_session(master, settings)
    try:
        return _new_session(master, archive.use() | settings)
    except SparkUnavailableError as error:
        _LOG.warning("starting again without a class archive: %s", error)
        session = _new_session(master, settings)
        archive.give_up(str(error))  # it was not for want of memory
        return session


def _refuse_cluster_mode(settings: Mapping[str, str]) -> None:
    """Refuse to send the driver elsewhere: this process is the driver."""
    if settings.get(_DEPLOY_MODE, "client") == "cluster" and not _is_submitted():
        raise ConfigurationError(
            f"{_DEPLOY_MODE}=cluster cannot be set by a program that already runs: its driver is "
            "this process. Remove the setting to run the driver here. To run it on the cluster, "
            "submit the script with spark-submit --deploy-mode cluster on YARN or Kubernetes; "
            "a standalone cluster cannot run Python drivers"
        )


def _new_session(master: str | None, settings: dict[str, str]) -> SparkSession:
    settings = {"spark.app.name": "turnback", **_defaults(master), **settings}
    if master is not None:
        settings["spark.master"] = master
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with settings_file(settings):
            start_jvm()
        if master is None and not SparkConf().contains(_TIME_ZONE):  # spark-submit gave none
            builder = builder.config(_TIME_ZONE, settings.get(_TIME_ZONE, _UTC))
        return builder.getOrCreate()
    except (Py4JNetworkError, OSError, PySparkRuntimeError) as error:
        if isinstance(error, PySparkRuntimeError) and error.getCondition() != _JVM_ENDED:
            raise
        raise SparkUnavailableError(
            f"Spark's JVM ended while starting: {error} See its output above; the usual reason "
            "is memory."
        ) from error


def _default_master() -> str | None:
    return None if _is_submitted() else os.environ.get("SPARK_MASTER", "local[*]")


def _is_submitted() -> bool:
    """Whether spark-submit has started this process."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _defaults(master: str | None) -> dict[str, str]:
    if master is None:
        return {}
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.log.level": "ERROR",
        _TIME_ZONE: _UTC,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


# -- whether jobs can run on a session

_SUPPORTED = f"Apache Spark {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
_TESTED = frozenset({"4.1.4", "4.2.0", "4.3.0"})
"""Releases that `make test` and `make compat` have run on, which need no self-test."""
_WAIT_S = 60

_checked: WeakSet[SparkContext] = WeakSet()


def check_spark(spark: SparkSession) -> None:
    """Refuse a session that jobs cannot run on, before anything is written.

    Other builds and patch releases than those that Turnback is tested on have to show with a small
    query that they behave alike, once for each Spark context. It costs a cold JVM seconds.
    """
    refuse_connect(spark)
    if spark.sparkContext in _checked:
        return
    _check_version(spark.version)
    _check_threads()
    cause = None
    try:
        problem = None if spark.version in _TESTED else _try_restore(spark)
    except Exception as error:
        fate = lost_jvm(spark)
        if fate is not None:
            raise SparkUnavailableError(f"Spark was lost: {fate}") from error
        problem = str(error)
        cause = error
    if problem is not None:
        raise ConfigurationError(
            f"this Spark {spark.version} does not behave as Turnback requires: {problem}. "
            f"Turnback supports {_SUPPORTED} as released by Apache"
        ) from cause
    _checked.add(spark.sparkContext)


def refuse_connect(session_or_frame: object) -> None:
    """Refuse what belongs to Spark Connect, which has no driver of its own to run a job in."""
    if type(session_or_frame).__module__.startswith("pyspark.sql.connect."):
        raise ConfigurationError(
            "Turnback does not support Spark Connect: a job needs a Spark driver in its own "
            "process. Unset SPARK_REMOTE, create the session with "
            "SparkSession.builder.master(...) instead of remote(...), or start the program with "
            "spark-submit"
        )


def _check_version(version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST:
        raise ConfigurationError(
            f"this is Spark {version}, but Turnback supports {_SUPPORTED}: install one of these, "
            f'for example with pip install "pyspark=={NEWEST[0]}.{NEWEST[1]}.*"'
        )


def _check_threads() -> None:
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise ConfigurationError(
            "PYSPARK_PIN_THREAD is not true, so Spark does not pass instructions on to tasks: "
            "unset it before the program starts"
        )


def _try_restore(spark: SparkSession) -> str | None:
    """Make a small query go on from a position; returns what is not as expected, if anything."""
    with tempfile.TemporaryDirectory(prefix="turnback-selftest-") as name:
        files = Path(name, "files")
        files.mkdir()
        seen = files / "seen"
        new = files / "new"
        for path in (seen, new):
            path.write_text(path.name)
        logs = CheckpointLogs(Path(name, "checkpoint"), {"files": "0"})
        modified_ms = int(seen.stat().st_mtime * 1000)
        entry = {"path": seen.as_uri(), "timestamp": modified_ms, "batchId": 0}
        logs.seed({"files": '{"logOffset":0}'}, {"files": [json.dumps(entry)]})
        batches: list[int] = []
        again: list[int] = []

        def on_batch(batch: MicroBatch) -> None:
            batches.append(batch.number)
            again.extend((batch.anew().count(), batch.tasks(0)))

        frame = own_session(spark).readStream.text(str(files))
        with streaming_query(frame, on_batch, logs.path, bounded=True, interval_ms=0) as query:
            if not query.awaitTermination(_WAIT_S):
                return f"a query over two files has not ended within {_WAIT_S} s"
        expected = len(SEEDED_BATCHES)
        if batches != [expected]:
            return f"a resumed query has run the batches {batches}, not batch {expected}"
        if again != [1, 1]:
            return f"a batch of one row in one task, copied, has {again} rows and tasks"
        offset = logs.offsets(expected)["files"]
        entries = logs.log_entries("files", 0, 1) or []
        names = [Path(json.loads(e)["path"]).name for e in entries]
        if offset != '{"logOffset":1}' or names != ["new"]:
            return f"a resumed query has read {entries} up to {offset}"
        if any(logs.path.rglob("*.crc")):
            return "checksums are written beside the files of its checkpoint"
    return None


_OPTION = "--properties-file"
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""What PySpark appends to the command that starts the JVM."""
_DEFAULT_ARGUMENTS = "pyspark-shell"


@contextmanager
def settings_file(settings: Mapping[str, str]) -> Iterator[None]:
    """Let the JVM that starts meanwhile read its settings from a file, which is deleted afterwards.

    A file of this kind replaces the defaults of the installation and what the user names in
    PYSPARK_SUBMIT_ARGS, so it begins with a copy of those.
    """
    before = os.environ.get(_ARGUMENTS)
    arguments, named = _without_file(shlex.split(before or _DEFAULT_ARGUMENTS))
    with private_directory() as directory:
        file = directory / "spark.properties"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(_content_of(named) + b"\n\n" + encode_properties(settings))
        os.environ[_ARGUMENTS] = shlex.join([_OPTION, str(file), *arguments])
        try:
            yield
        finally:
            if before is None:
                del os.environ[_ARGUMENTS]
            else:
                os.environ[_ARGUMENTS] = before


def encode_properties(settings: Mapping[str, str]) -> bytes:
    """Write settings as Java's properties, of which the last one of a key counts."""
    lines = (f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    """Escape all that could end a key, or begin something else."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-._/") else _code(c) for c in text)


def _code(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _without_file(arguments: list[str]) -> tuple[list[str], str | None]:
    """Take the properties file, if there is one, out of arguments of spark-submit."""
    rest = []
    named = None
    words = iter(arguments)
    for word in words:
        if word == _OPTION:
            named = next(words, None)
        elif word.startswith(f"{_OPTION}="):
            named = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, named


def _content_of(named: str | None) -> bytes:
    if named is not None:
        try:
            return Path(named).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"{_ARGUMENTS} contains the properties file {named}, which cannot be read: "
                f"{error.strerror}"
            ) from error
    home = spark_home()
    given = os.environ.get("SPARK_CONF_DIR")
    directory = Path(given) if given else home / "conf" if home is not None else None
    try:
        return (directory / "spark-defaults.conf").read_bytes() if directory is not None else b""
    except OSError:  # there is none
        return b""
