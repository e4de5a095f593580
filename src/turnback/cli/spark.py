"""Spark, for the few commands that need it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnback.core.errors import ConfigurationError, JobFailedError, TurnbackError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from turnback.cli.context import Cli


@contextmanager
def spark(cli: Cli) -> Iterator[SparkSession]:
    """A session that ends with the block. Print results after it.

    Raises:
        ConfigurationError: Spark does not understand what it is asked.
        JobFailedError: Spark failed.
        TurnbackError: What its tasks raised.
    """
    cli.out.hint("Starting Spark ...")
    with _silence(cli.debug):
        from pyspark.errors import PySparkException

        from turnback.config.configuration import spark_options
        from turnback.spark.session import spark_session

        try:
            session = spark_session(**spark_options(cli.configuration))
            try:
                yield session
            finally:
                session.stop()
        except PySparkException as error:
            raise _translated(error) from error


def _translated(error: PySparkException) -> TurnbackError:
    from pyspark.errors import AnalysisException

    from turnback.worker.message import unmarked

    cause = unmarked(error)
    if isinstance(cause, TurnbackError):
        return cause
    lines = [line for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    kind = ConfigurationError if isinstance(error, AnalysisException) else JobFailedError
    return kind(f"Spark says: {first}")


@contextmanager
def _silence(debug: bool) -> Iterator[None]:
    """Keep what Spark, its JVM and its workers print away from the results.

    It goes to stderr with --debug, else nowhere: what went wrong is in the exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(2 if debug else nowhere, 1)
    if not debug:
        os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in enumerate(kept, 1):
            os.dup2(saved, descriptor)
            os.close(saved)
