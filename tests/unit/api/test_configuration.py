"""The configuration file, what overrides it, and mistakes in it."""

from __future__ import annotations

import pytest

from turnback import CheckpointingMode, RestartStrategies, StreamExecutionEnvironment
from turnback.config import CheckpointStorage, ExternalizedCheckpointRetention
from turnback.config.checkpointing import SavepointSettings
from turnback.config.configuration import Configuration, state_backend
from turnback.config.restart import choose_restart
from turnback.errors import ConfigurationError

FILE = """
state.backend: hashmap
state:
  checkpoints: {dir: /from/file, num-retained: 3}
execution.checkpointing:
  interval: 10 s
  mode: AT_LEAST_ONCE
  min-pause: 500
  externalized-checkpoint-retention: DELETE_ON_CANCELLATION
parallelism.default: 4
pipeline.max-parallelism: 64
restart-strategy:
  type: fixed-delay
  fixed-delay: {attempts: 7, delay: 1 min}
"""


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNBACK_CONF", raising=False)


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "somewhere.yaml"
    path.write_text(FILE)
    monkeypatch.setenv("TURNBACK_CONF", str(path))
    return path


def test_without_a_file_there_is_nothing():
    assert Configuration.load().raw == {}


def test_every_option_of_the_file_counts(file):
    env = StreamExecutionEnvironment()
    settings = env.get_checkpoint_config().settings
    assert settings.interval_ms == 10_000
    assert settings.mode is CheckpointingMode.AT_LEAST_ONCE
    assert settings.min_pause_ms == 500
    assert settings.num_retained == 3
    assert settings.retention is ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
    assert settings.directory == "/from/file"
    assert env.get_parallelism() == 4
    assert env.get_max_parallelism() == 64
    assert state_backend(env.configuration) == ("hashmap", CheckpointStorage.FILESYSTEM)
    chosen = choose_restart(env.configuration.raw, checkpointing=True)
    assert chosen == RestartStrategies.fixed_delay_restart(7, 60_000)


def test_code_wins_over_the_file(file):
    configuration = {"state.checkpoints.dir": "/from/code", "parallelism.default": "5"}
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    assert env.get_checkpoint_config().settings.directory == "/from/code"
    assert env.get_parallelism() == 5
    assert env.get_max_parallelism() == 64
    env = StreamExecutionEnvironment.get_execution_environment(configuration, root="/root")
    assert env.get_checkpoint_config().settings.directory == "/root"
    env.enable_checkpointing("1 min").set_parallelism(1)
    env.get_checkpoint_config().set_checkpoint_storage("/last word")
    settings = env.get_checkpoint_config().settings
    assert (settings.interval_ms, settings.directory) == (60_000, "/last word")
    assert settings.mode is CheckpointingMode.EXACTLY_ONCE
    in_code = RestartStrategies.no_restart()
    env.set_restart_strategy(in_code)
    assert choose_restart(env.configuration.raw, checkpointing=True) == in_code


def test_the_file_of_the_working_directory_is_found(tmp_path):
    (tmp_path / "turnback.yaml").write_text("parallelism.default: 3\n")
    assert Configuration.load().raw == {"parallelism.default": "3"}
    (tmp_path / "turnback.yaml").write_text("# nothing\n")
    assert Configuration.load().raw == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state.backnd: rocksdb", r"f.yaml: unknown key 'state.backnd'; did you mean"),
        ("state: {checkpoint: {dir: x}}", r"unknown key 'state.checkpoint.dir'; did you mean "),
        ("zzz: 1", r"f.yaml: unknown key 'zzz'$"),
        ("- a\n- b", "must contain keys and values"),
        ("a: [", "is not valid YAML"),
        ("a: \0", "cannot be read as YAML"),
    ],
)
def test_mistakes_in_the_file(tmp_path, monkeypatch, text, message):
    (tmp_path / "f.yaml").write_text(text)
    monkeypatch.setenv("TURNBACK_CONF", "f.yaml")
    with pytest.raises(ConfigurationError, match=message):
        StreamExecutionEnvironment()


def test_savepoints_are_configured_like_everything_else(tmp_path):
    (tmp_path / "turnback.yaml").write_text(
        "state.savepoints.dir: /sp\n"
        "savepoints: {schedule: {interval: 6 h, keep: 2}, on-stop: false}"
    )
    settings = SavepointSettings.from_configuration(Configuration.load().raw)
    assert settings == SavepointSettings("/sp", 6 * 3_600_000, keep=2, on_stop=False)
    with pytest.raises(ConfigurationError, match=r"did you mean 'savepoints\.schedule\.cron'"):
        Configuration.load({"savepoints.schedule.crn": "0 3 * * *"})


def test_a_named_file_that_is_not_there(monkeypatch, tmp_path):
    for name in ("missing.yaml", str(tmp_path)):
        monkeypatch.setenv("TURNBACK_CONF", name)
        with pytest.raises(ConfigurationError, match=r"TURNBACK_CONF is .* not a file"):
            StreamExecutionEnvironment()


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"state.backend.typ": "x"}, "in code: unknown key.*did you mean 'state.backend.type'"),
        ({"parallelism.default": "two"}, "parallelism.default is 'two': it must be a whole number"),
        ({"parallelism.default": 0}, "parallelism.default is 0: it must be at least 1"),
        ({"pipeline.max-parallelism": "1.5"}, "pipeline.max-parallelism is '1.5'"),
        (
            {"pipeline.max-parallelism": 40_000},
            "max-parallelism is 40000: it must be at most 32768",
        ),
        ({"state.backend.type": "etcd"}, "unknown state backend 'etcd'; available: hashmap"),
        ({"state.backend.type": 3}, "unknown state backend 3"),
        ({"execution.checkpointing.interval": "ten seconds"}, "'ten seconds' is not a duration"),
        ({"execution.checkpointing.interval": 0}, "interval is 0 ms: it must be at least"),
        ({"execution.checkpointing.interval": "-1 s"}, "not a duration"),
        ({"execution.checkpointing.mode": "most"}, "must be one of exactly-once, at-least-once"),
        ({"state.checkpoints.num-retained": 0}, "num-retained is 0: it must be at least 1"),
        (
            {"state.checkpoints.num-retained": 1, "execution.checkpointing.num-retained": 2},
            "differ: keep one of them",
        ),
        ({"state.checkpoint-storage": "tape"}, "must be one of jobmanager, filesystem"),
    ],
)
def test_mistakes_in_code(configuration, message):
    with pytest.raises(ConfigurationError, match=message):
        StreamExecutionEnvironment(configuration=configuration)


def test_storage_in_code_wins_over_the_pair_a_backend_stands_for():
    env = StreamExecutionEnvironment(configuration={"state.backend": "memory"})
    assert state_backend(env.configuration) == ("hashmap", CheckpointStorage.JOBMANAGER)
    env.get_checkpoint_config().set_checkpoint_storage("/there")
    assert state_backend(env.configuration) == ("hashmap", CheckpointStorage.FILESYSTEM)
    assert env.get_checkpoint_config().settings.storage is CheckpointStorage.FILESYSTEM
