"""Java, and the Spark session that runs on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from turnback.core.errors import ConfigurationError, SparkUnavailableError
from turnback.spark.internals import describe_exit
from turnback.spark.selftest import refuse_remote

MINIMUM = 17
_HINT = (
    f"Install Java {MINIMUM} or newer (for example Debian's openjdk-17-jre-headless, or Temurin "
    f"{MINIMUM}) and put it on PATH or name it in JAVA_HOME."
)


def check_java() -> int:
    """Find Java and return its major version.

    Raises:
        ConfigurationError: It is missing or too old.
        SparkUnavailableError: It does not start, which may be for want of memory.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).exists():
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is none on PATH"
        raise ConfigurationError(f"Spark needs Java, and {where}. {_HINT}")
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SparkUnavailableError(
            f"Spark needs Java, and {program} -version {describe_exit(done.returncode)}: "
            f"{(done.stderr + done.stdout).strip() or 'it printed nothing'}"
        )
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        raise ConfigurationError(f"{program} -version does not answer as Java does. {_HINT}")
    major = int(found[1])
    if major < MINIMUM:
        raise ConfigurationError(f"{program} is Java {major}, too old for Spark. {_HINT}")
    return major


_JVM_ENDED = "JAVA_GATEWAY_EXITED"
_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_session(master: str | None = None, **options: str) -> SparkSession:
    """The running session, or a new one with defaults that suit streaming jobs.

    Args:
        master: Spark's master; by default the option ``spark.master``, else what spark-submit
            says, else all cores of this machine.
        **options: Further Spark settings; dots may be written as double underscores.

    Raises:
        ConfigurationError: There is no Java that Spark could run on, or SPARK_REMOTE is set.
        SparkUnavailableError: Spark's JVM ended while it was started.
    """
    refuse_remote()
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
            f"Spark's JVM ended while it was started: {error} See what it printed before; "
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
