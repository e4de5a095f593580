"""One Spark session for all integration tests, and the jobs of one test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import shop
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import golden_job
import job_support
import locking_sink
import subtasks_job
from job_support import Jobs
from turnback import Savepoint
from turnback.spark.session import spark_session

SECRET = {"spark.hadoop.fs.azure.account.key.shop.net": "hidden-from-ps"}


@pytest.fixture(scope="session")
def session(java: str) -> SparkSession:
    # Tests run hundreds of tiny Spark jobs: compiling them well costs more than running them.
    os.environ.setdefault("JDK_JAVA_OPTIONS", java)
    return spark_session(
        "local[2]",
        spark__driver__memory="1g",
        spark__sql__shuffle__partitions="2",
        spark__sql__streaming__pollingDelay="5ms",
        spark__ui__enabled="false",
        **SECRET,
    )


@pytest.fixture
def jobs(session: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    # Workers cannot import test modules, so what is defined in them travels by value.
    tests = {name for name in sys.modules if name.startswith("engine.test_")}
    modules = [request.module, job_support, golden_job, locking_sink, shop, subtasks_job]
    modules += [sys.modules[name] for name in tests]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    made = Jobs(tmp_path, session)
    yield made
    made.close()
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def savepoint(jobs: Jobs) -> Savepoint:
    shop.bought(jobs, *shop.FIRST)
    return Savepoint.load(shop.saved(jobs), jobs.spark)
