"""The session and the jobs of the integration tests, on whatever Spark is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from integration import conftest as integration
from turnback.spark.session import spark_session

jobs = integration.jobs


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    pipelined = os.environ.get("COMPAT_PIPELINED", "false")
    spark = spark_session(
        "local[2]",
        spark__driver__memory="1g",
        spark__sql__shuffle__partitions="2",
        spark__sql__streaming__pollingDelay="5ms",
        spark__python__udf__pipelined__enabled=pipelined,
    )
    yield spark
    spark.stop()
