"""One Spark session for all integration tests, and the jobs of one test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_job
import job_support
import pytest
import shop
from job_support import Jobs
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from turnback import Savepoint
from turnback.spark.session import spark_session


@pytest.fixture(scope="session")
def session() -> SparkSession:
    # Tests run hundreds of tiny Spark jobs: compiling them well costs more than running them.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    return spark_session(
        "local[2]",
        spark__driver__memory="1g",
        spark__sql__shuffle__partitions="2",
        spark__sql__streaming__pollingDelay="5ms",
        spark__ui__enabled="false",
    )


@pytest.fixture
def jobs(session: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    # Workers cannot import test modules, so what is defined in them travels by value.
    modules: list[Any] = [request.module, job_support, golden_job, shop]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    made = Jobs(session, tmp_path)
    yield made
    made.close()
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def savepoint(jobs: Jobs) -> Savepoint:
    shop.bought(jobs, *shop.FIRST)
    return Savepoint.load(shop.saved(jobs), jobs.spark)
