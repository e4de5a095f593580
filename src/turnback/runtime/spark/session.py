from __future__ import annotations

import os
import sys
from pathlib import Path

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from turnback.core.errors import SparkUnavailableError
from turnback.runtime.spark.java import check_java

_JVM_ENDED = "JAVA_GATEWAY_EXITED"
_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_session(master: str | None = None, **options: str) -> SparkSession:
    """The running session, or a new one with defaults that suit streaming jobs.

    Args:
        master: Spark's master; by default the option ``spark.master``, else what spark-submit
            says, else all cores of this machine.
        **options: Further Spark settings; dots may be written as double underscores.

    Raises:
        ConfigurationError: There is no Java that Spark could run on.
        SparkUnavailableError: Spark's JVM ended while it was started.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    check_java()
    # Workers must run the driver's interpreter, or pickled functions do not load.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("turnback")
    settings = _dotted(options)
    master = master or settings.pop("spark.master", None) or _default_master()
    for key, value in (_defaults(master) | settings).items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    try:
        return builder.getOrCreate()
    except (Py4JNetworkError, OSError, PySparkRuntimeError) as error:
        if isinstance(error, PySparkRuntimeError) and error.getCondition() != _JVM_ENDED:
            raise
        raise SparkUnavailableError(
            f"Spark's JVM ended while it was started: {error} What it printed before says more; "
            f"the usual reason is memory."
        ) from error


def _default_master() -> str | None:
    submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    return None if submitted else os.environ.get("SPARK_MASTER", "local[*]")


def _defaults(master: str | None) -> dict[str, str]:
    if master is None:
        return {}
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {key.replace("__", "."): value for key, value in options.items()}
