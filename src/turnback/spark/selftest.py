"""Whether jobs can run on a Spark session; checked at the start, before anything is written."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import SparkSession

from turnback.core.errors import ConfigurationError, SparkUnavailableError
from turnback.spark.internals import (
    NEWEST,
    OLDEST,
    SEEDED_BATCHES,
    CheckpointLogs,
    lost_jvm,
    own_session,
    streaming_query,
)

_CONNECT = "pyspark.sql.connect."
_SUPPORTED = f"Apache Spark {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
_TRIED = frozenset({"4.1.4", "4.2.0", "4.3.0"})
"""Releases that `make test` and `make compat` have run on: a start on them need not try again."""
_WAIT_S = 60

_checked: WeakSet[SparkContext] = WeakSet()


def check_spark(spark: SparkSession) -> None:
    """Refuse a session that jobs cannot run on.

    Other builds and patch releases than those that Turnback is tested on have to show with a small
    query that they behave alike, once for each Spark context. It costs a cold JVM seconds.

    Raises:
        ConfigurationError: It is a Spark Connect session, of an unknown version, or Spark does
            not behave as `turnback.spark.internals` expects.
        SparkUnavailableError: Spark's JVM is gone.
    """
    refuse_connect(spark)
    if spark.sparkContext in _checked:
        return
    _check_version(spark.version)
    try:
        problem = None if spark.version in _TRIED else _try_restore(spark)
    except Exception as error:
        fate = lost_jvm(spark)
        if fate is not None:
            raise SparkUnavailableError(f"Spark was lost: {fate}") from error
        raise ConfigurationError(_refusal(spark.version, f"{error}")) from error
    if problem is not None:
        raise ConfigurationError(_refusal(spark.version, problem))
    _checked.add(spark.sparkContext)


def refuse_connect(session_or_frame: object) -> None:
    """Refuse what belongs to Spark Connect, which has no driver of its own to run a job in.

    Raises:
        ConfigurationError: It does.
    """
    if type(session_or_frame).__module__.startswith(_CONNECT):
        raise ConfigurationError(
            "Turnback cannot run on Spark Connect: a job needs a Spark driver in its own process. "
            "Unset SPARK_REMOTE, create the session with SparkSession.builder.master(...) instead "
            "of remote(...), or start the program with spark-submit"
        )


def refuse_remote() -> None:
    """Refuse to create a session where the environment asks for Spark Connect.

    Raises:
        ConfigurationError: SPARK_REMOTE is set.
    """
    remote = os.environ.get("SPARK_REMOTE")
    if remote:
        raise ConfigurationError(
            f"SPARK_REMOTE is {remote!r}, and Turnback cannot run on Spark Connect: a job needs a "
            "Spark driver in its own process. Unset SPARK_REMOTE"
        )


def _check_version(version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        raise ConfigurationError(
            f"this is Spark {version}, and Turnback runs on {_SUPPORTED}: install one of these, "
            f'for example with pip install "pyspark=={NEWEST[0]}.{NEWEST[1]}.*"'
        )


def _try_restore(spark: SparkSession) -> str | None:
    """Make a small query go on from a position, and see what it reads and writes.

    Returns:
        What is not as expected; None if all is well.
    """
    with tempfile.TemporaryDirectory(prefix="turnback-selftest-") as name:
        files = Path(name, "files")
        files.mkdir()
        seen, new = files / "seen", files / "new"
        for path in (seen, new):
            path.write_text(path.name)
        logs = CheckpointLogs(Path(name, "checkpoint"), {"files": "0"})
        listed = {
            "path": seen.as_uri(),
            "timestamp": int(seen.stat().st_mtime * 1000),
            "batchId": 0,
        }
        logs.seed({"files": '{"logOffset":0}'}, {"files": [json.dumps(listed)]})
        batches: list[int] = []
        frame = own_session(spark).readStream.text(str(files))
        with streaming_query(
            frame, lambda _, batch: batches.append(batch), logs.path, bounded=True, interval_ms=0
        ) as query:
            if not query.awaitTermination(_WAIT_S):
                return f"a query over two files has not ended within {_WAIT_S} s"
        expected = len(SEEDED_BATCHES)
        if batches != [expected]:
            return f"a query that goes on has run the batches {batches}, not batch {expected}"
        offset = logs.offsets(expected)["files"]
        entries = logs.log_entries("files", 0, 1) or []
        if offset != '{"logOffset":1}' or [Path(json.loads(e)["path"]).name for e in entries] != [
            "new"
        ]:
            return f"a query that goes on has read {entries} upto {offset}"
        if any(logs.path.rglob("*.crc")):
            return "checksums are written beside the files of its checkpoint"
    return None


def _refusal(version: str, problem: str) -> str:
    return (
        f"this Spark {version} does not behave as Turnback needs: {problem}. Turnback runs on "
        f"{_SUPPORTED} as Apache has released them"
    )
