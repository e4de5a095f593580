"""Keys that belong together: restart strategies, backends, object stores, Spark."""

from __future__ import annotations

import pytest

from turnback import RestartStrategies, StreamExecutionEnvironment
from turnback.config import CheckpointStorage
from turnback.config.configuration import (
    Configuration,
    job_root,
    location,
    spark_options,
    state_backend,
    storage_options,
)
from turnback.config.options import from_storage_options
from turnback.config.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategyConfiguration,
    choose_restart,
)
from turnback.errors import ConfigurationError
from turnback.storage.object_store import S3Storage

FILE = """
restart-strategy:
  type: fixed-delay
  fixed-delay: {attempts: 7, delay: 1 min}
  failure-rate: {delay: 3 s}
"""


@pytest.fixture
def load(tmp_path):
    def load(file="", code=None, command_line=None):
        (tmp_path / "turnback.yaml").write_text(file)
        return Configuration.load(code, command_line, environ={}, directory=tmp_path)

    return load


def restart(configuration):
    return choose_restart(configuration.raw, checkpointing=True)


STRATEGIES = [
    RestartStrategies.no_restart(),
    RestartStrategies.fixed_delay_restart(3, "90 s"),
    FixedDelayRestart(None, 0),
    RestartStrategies.failure_rate_restart(2, "5 min", 1),
    RestartStrategies.exponential_delay_restart("1 s", "2 min", 1.25, "1 h", 0.3),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_strategies_can_be_written_as_keys(load, strategy):
    keys = strategy.to_configuration()
    assert restart(load(code=keys)) == strategy
    assert restart(load(FILE, keys)) == strategy
    assert load(command_line=keys).raw == keys
    if strategy == FixedDelayRestart(None, 0):
        assert keys["restart-strategy.fixed-delay.attempts"] == "unlimited"


def test_strategies_that_have_no_keys():
    assert RestartStrategies.fall_back_restart().to_configuration() == {}

    class Mine(RestartStrategyConfiguration):
        def create(self, jitter=lambda: 0.5):
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="has no configuration keys: use RestartStrat"):
        StreamExecutionEnvironment().set_restart_strategy(Mine())


@pytest.mark.parametrize(
    "make",
    [
        lambda: RestartStrategies.fixed_delay_restart("3", 1),
        lambda: RestartStrategies.fixed_delay_restart(True, 1),
        lambda: RestartStrategies.failure_rate_restart(1.5, 1, 1),
        lambda: RestartStrategies.failure_rate_restart(1, 0, 1),
        lambda: RestartStrategies.exponential_delay_restart(1, 1, "2", 1, 0.1),
        lambda: RestartStrategies.exponential_delay_restart(1, 1, 2, 1, None),
        lambda: RestartStrategies.exponential_delay_restart(1, 1, float("nan"), 1, 0.1),
        lambda: RestartStrategies.exponential_delay_restart(1, 1, float("inf"), 1, 0.1),
    ],
)
def test_strategies_of_wrong_numbers(make):
    with pytest.raises(ConfigurationError, match=r"restart-strategy\."):
        make()


def test_the_highest_layer_that_speaks_of_restarts_chooses(load):
    assert restart(load(FILE)) == FixedDelayRestart(7, 60_000)
    rate = FailureRateRestart(delay_ms=3_000)
    assert restart(load(FILE, {"restart-strategy": "failure-rate"})) == rate
    code = RestartStrategies.exponential_delay_restart(1, 2, 3.0, 4, 0.5).to_configuration()
    assert restart(load(FILE, code)) == ExponentialDelayRestart(1, 2, 3.0, 4, 0.5)
    off = load(FILE, code, {"restart-strategy": "off"})
    assert restart(off) == NoRestart()
    assert off.raw == {"restart-strategy.type": "none"}


def test_a_key_of_a_strategy_chooses_it(load):
    key = "restart-strategy.fixed-delay.attempts"
    code = RestartStrategies.exponential_delay_restart(1, 2, 3.0, 4, 0.5).to_configuration()
    configuration = load(code=code, command_line={key: "5"})
    assert restart(configuration) == FixedDelayRestart(5, 1_000)
    assert configuration.origin("restart-strategy.type") == "-D"
    assert configuration.raw == {"restart-strategy.type": "fixed-delay", key: "5"}
    assert restart(load(FILE, code, {key: "5"})) == FixedDelayRestart(5, 60_000)
    assert restart(load(command_line={key: "unlimited"})) == FixedDelayRestart(None, 1_000)
    both = {key: "5", "restart-strategy.failure-rate.delay": "1 s"}
    assert restart(load(command_line=both)) == FixedDelayRestart(None, 1_000)  # the default
    assert restart(load(FILE, command_line=both)) == FixedDelayRestart(5, 60_000)


def test_set_restart_strategy_replaces_and_falls_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = StreamExecutionEnvironment(configuration={"restart-strategy": "failure-rate"})
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1))
    assert restart(env.configuration) == FixedDelayRestart(3, 1)
    env.set_restart_strategy(RestartStrategies.fall_back_restart())
    assert restart(env.configuration) == FailureRateRestart()


def test_backends_and_storage(load):
    key, storage = "state.backend", "state.checkpoint-storage"
    memory, files = CheckpointStorage.JOBMANAGER, CheckpointStorage.FILESYSTEM
    assert state_backend(load()) == ("rocksdb", files)
    assert state_backend(load(f"{key}: memory")) == ("hashmap", memory)
    assert state_backend(load(f"{key}: filesystem")) == ("hashmap", files)
    assert state_backend(load(f"{storage}: jobmanager")) == ("rocksdb", memory)
    assert state_backend(load(f"{storage}: filesystem\n{key}: memory")) == ("hashmap", files)
    assert state_backend(load(f"{key}: memory", {storage: "filesystem"})) == ("hashmap", files)
    later = load(f"{storage}: filesystem", command_line={key: "memory"})
    assert state_backend(later) == ("hashmap", memory)
    plain = load(f"{storage}: jobmanager", command_line={key: "rocksdb"})
    assert state_backend(plain) == ("rocksdb", memory)


def test_object_stores(load):
    configuration = load(
        "s3: {endpoint: 'http://127.0.0.1:9000', access-key: me, allow-http: yes}\n"
        "s3.path-style-access: true\ns3.endpoint.region: eu-west-1\ns3.timeout: 90000",
        {"s3.secret-key": "hush"},
    )
    options = storage_options(configuration)
    assert options == {
        "endpoint": "http://127.0.0.1:9000",
        "access_key_id": "me",
        "secret_access_key": "hush",
        "region": "eu-west-1",
        "allow_http": "true",
        "virtual_hosted_style_request": "false",
        "timeout": "90 s",
    }
    S3Storage("s3://bucket/x", options)
    assert storage_options(load()) == {}
    again = load(code=from_storage_options(options))
    assert storage_options(again) == options


def test_options_of_hdfs_set_in_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = StreamExecutionEnvironment(configuration={"s3.region": "here"})
    env.set_storage_options(hdfs_timeout="5 s", hdfs_config_dir="/etc/hadoop")
    env.set_storage_options(hdfs_timeout="6 s")
    assert storage_options(env.configuration) == {"hdfs_timeout": "6 s", "region": "here"}
    assert env.configuration.value("hdfs.timeout") == 6_000


def test_options_of_google_and_azure(load):
    configuration = load(
        "gcs: {endpoint: 'http://127.0.0.1:9000', allow-http: yes, retry-timeout: 90000}\n"
        "azure: {tenant-id: us, client-id: me}",
        {"gcs.service-account-key": "hush", "azure.client-secret": "hush"},
    )
    options = storage_options(configuration)
    assert options == {
        "gcs_endpoint": "http://127.0.0.1:9000",
        "gcs_service_account_key": "hush",
        "gcs_allow_http": "true",
        "gcs_retry_timeout": "90 s",
        "azure_tenant_id": "us",
        "azure_client_id": "me",
        "azure_client_secret": "hush",
    }
    assert storage_options(load(code=from_storage_options(options))) == options
    shown = {entry.key: entry.value_text for entry in configuration.entries()}
    assert shown["gcs.service-account-key"] == shown["azure.client-secret"] == "****"


def test_options_set_in_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = StreamExecutionEnvironment(configuration={"s3.region": "here"})
    env.set_storage_options(endpoint="https://a", virtual_hosted_style_request="true")
    assert env.configuration.value("s3.path.style.access") is False
    env.set_storage_options(access_key_id="me")
    assert storage_options(env.configuration) == {"access_key_id": "me", "region": "here"}
    assert env.configuration.origin("s3.access-key") == "code"
    for options, message in (
        ({"acess_key_id": "me"}, "unknown storage option 'acess_key_id'; did you mean 'access_k"),
        ({"zzz": "me"}, "unknown storage option 'zzz'$"),
        ({"endpoint": None}, r"s3\.endpoint has no value"),
        ({"allow_http": "maybe"}, r"s3\.allow-http is 'maybe'"),
        ({"virtual_hosted_style_request": "maybe"}, "true or false"),
        ({"timeout": "long"}, r"s3\.timeout: 'long' is not a duration"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            env.set_storage_options(**options)
    assert storage_options(env.configuration) == {"access_key_id": "me", "region": "here"}


def test_settings_of_spark(load):
    configuration = load(
        "spark: {sql.shuffle.partitions: 4, ui.enabled: true}", {"spark.master": "local[1]"}
    )
    assert spark_options(configuration) == {
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "true",
        "spark.master": "local[1]",
    }
    assert configuration.value("spark.master") == "local[1]"
    assert configuration.value("spark.not.set") is None
    with pytest.raises(ConfigurationError, match=r"spark\.a has no value"):
        load(code={"spark.a": None})


def test_where_jobs_are(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    assert job_root(load()) == "/home/me/.turnback/jobs"
    assert job_root(load(command_line={"state.checkpoints.dir": "a/b"})) == f"{tmp_path}/a/b"
    assert location("s3://bucket/x") == "s3://bucket/x"


def test_a_session_is_made_with_them(tmp_path, monkeypatch):
    from pyspark.sql import SparkSession

    from turnback.spark import session

    # All but the start of the JVM, which takes seconds.
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: dict(self._options))
    monkeypatch.setattr(session, "check_java", lambda: None)
    monkeypatch.setattr(session, "start_jvm", lambda: None)
    monkeypatch.chdir(tmp_path)
    settings = {"spark.master": "local[3]", "spark.ui.enabled": True, "spark.camelCase": "x"}
    made = StreamExecutionEnvironment(configuration=settings).spark
    assert made["spark.master"] == "local[3]"
    assert made["spark.ui.enabled"] == "true"
    assert made["spark.camelCase"] == "x"
    assert made["spark.sql.session.timeZone"] == "UTC"
    assert session.spark_session(spark__master="local[2]")["spark.master"] == "local[2]"
    monkeypatch.setenv("SPARK_MASTER", "local[1]")
    assert StreamExecutionEnvironment().spark["spark.master"] == "local[1]"
