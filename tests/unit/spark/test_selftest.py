"""A Spark that jobs cannot run on is refused by name, before anything is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnback import StreamExecutionEnvironment
from turnback.errors import ConfigurationError, SparkUnavailableError
from turnback.spark import session as session_module
from turnback.spark.session import check_spark, spark_session
from turnback.spark.worker import environment_error


class Context:
    """Spark's context, as far as it is asked."""

    _jsc: Any = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))


def session(version: str) -> Any:
    return SimpleNamespace(version=version, sparkContext=Context())


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions on which a query was tried."""
    tried: list[Any] = []
    monkeypatch.setattr(session_module, "_try_restore", lambda spark: tried.append(spark))
    return tried


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.4.0", "5.0.0", "unknown"])
def test_another_version_is_refused(version: str, tried: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"this is Spark {version}, .* 4.1 to 4.3"):
        check_spark(session(version))
    assert tried == []


@pytest.mark.parametrize("version", ["4.1.0", "4.2.1", "4.3.1", "4.3.0-vendor-7"])
def test_a_build_that_is_not_known_is_tried_once(version: str, tried: list[Any]) -> None:
    spark = session(version)
    for _ in range(3):
        check_spark(spark)
    assert tried == [spark]


@pytest.mark.parametrize("version", ["4.1.4", "4.2.0", "4.3.0"])
def test_releases_that_were_tested_are_taken_as_they_are(version: str, tried: list[Any]) -> None:
    check_spark(session(version))
    assert tried == []


@pytest.mark.parametrize("value", ["false", "FALSE", "0"])
def test_threads_that_do_not_pass_orders_on(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PIN_THREAD", value)
    with pytest.raises(ConfigurationError, match=r"PYSPARK_PIN_THREAD.*unset it"):
        check_spark(session("4.2.0"))


def test_a_spark_that_behaves_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = session("4.3.9")
    monkeypatch.setattr(session_module, "_try_restore", lambda _: "it has read too much")
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match=r"this Spark 4\.3\.9 .*: it has read too much"
        ):
            check_spark(spark)


def test_a_spark_without_the_insides_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise TypeError("no such method: cloneSession")

    monkeypatch.setattr(session_module, "_try_restore", fail)
    with pytest.raises(ConfigurationError, match="no such method: cloneSession"):
        check_spark(session("4.3.9"))
    lost = session("4.3.9")
    lost.sparkContext._jsc = None
    with pytest.raises(SparkUnavailableError, match="context was stopped"):
        check_spark(lost)


def test_spark_connect_is_refused_wherever_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    frame: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    env = StreamExecutionEnvironment(remote, root=tmp_path / "jobs")
    with pytest.raises(ConfigurationError, match="does not support Spark Connect"):
        env.from_collection(["a"])
    with pytest.raises(ConfigurationError, match="does not support Spark Connect"):
        env.from_dataframe(frame)
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(ConfigurationError, match="SPARK_REMOTE is 'sc://localhost'"):
        spark_session()
    assert not (tmp_path / "jobs").exists()


def test_a_driver_cannot_be_sent_elsewhere_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="submit the script with spark-submit"):
        spark_session(spark__submit__deployMode="cluster", spark__master="spark://127.0.0.1:7077")


NO_MODULE = """\
Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task
0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException:
ModuleNotFoundError: No module named 'turnback'
"""
OTHER_PYTHON = """\
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has \
different version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions.
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NO_MODULE, r"executors on 10\.0\.0\.7 has no module 'turnback'\. Executors run /opt/py:"),
        (OTHER_PYTHON, r"cannot be used\. Python in worker has different version: 3\.9"),
    ],
)
def test_a_python_that_cannot_load_tasks_is_a_matter_of_configuration(monkeypatch, text, told):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/py")
    with pytest.raises(ConfigurationError, match=told):
        raise environment_error(RuntimeError(text))


def test_other_errors_are_no_matter_of_configuration():
    assert environment_error(RuntimeError("disk full")) is None
