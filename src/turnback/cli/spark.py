"""Spark, for the few commands that need it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from turnback.cli.context import Cli


@contextmanager
def spark(cli: Cli) -> Iterator[SparkSession]:
    """A session that ends with the block.

    Until then file 1 is stderr, so that nothing Spark or its JVM prints gets between the results.
    Print those after the block.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        cli.out.hint("Starting Spark ...")
        from turnback.config.extract import spark_options
        from turnback.runtime.spark.session import spark_session

        settings = spark_options(cli.configuration)
        session = spark_session(**{k.replace(".", "__"): v for k, v in settings.items()})
        try:
            yield session
        finally:
            session.stop()
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
