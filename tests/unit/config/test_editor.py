"""What a program sets, one thing after the other, and what wins over it."""

from __future__ import annotations

import pytest

from turnback import CheckpointingMode, RestartStrategies, StreamExecutionEnvironment
from turnback.api import CheckpointConfig
from turnback.config import ExternalizedCheckpointRetention
from turnback.config.configuration import Configuration, ConfigurationEditor
from turnback.errors import ConfigurationError

LINE = {
    "execution.checkpointing.interval": "1 min",
    "state.checkpoints.dir": "/line",
    "parallelism.default": "7",
    "restart-strategy": "none",
    "s3.region": "line",
}


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def editor():
    return ConfigurationEditor(Configuration.load(command_line=LINE, environ={}))


def test_all_or_nothing(editor):
    before = editor.current
    for wrong in ({"web.prt": 1}, {"web.port": "x"}):
        with pytest.raises(ConfigurationError, match="code: "):
            editor.set({"log.level": "debug"} | wrong)
        with pytest.raises(ConfigurationError, match="code: "):
            editor.replace("log.", wrong)
    assert editor.current is before


def test_replacing_forgets_what_code_had_set_only(editor):
    editor.set({"s3.endpoint": "https://a", "s3.region": "code", "web.port": 1})
    editor.replace("s3.", {"s3.access-key": "me"})
    assert editor.current.raw == {
        **Configuration.load(command_line=LINE, environ={}).raw,
        "s3.access-key": "me",
        "web.port": "1",
    }


def test_every_setter_writes_its_key():
    env = StreamExecutionEnvironment(root="/root")
    config = env.enable_checkpointing(1_000, CheckpointingMode.AT_LEAST_ONCE)
    config = config.get_checkpoint_config()
    config.set_checkpoint_timeout("1 min").set_min_pause_between_checkpoints(5)
    config.set_max_concurrent_checkpoints(3).set_tolerable_checkpoint_failure_number(2)
    config.set_num_retained_checkpoints(4).enable_incremental_checkpoints(False)
    config.set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
    )
    env.set_state_backend("hashmap").set_parallelism(2).set_max_parallelism(64)
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.set_storage_options(region="here")
    assert env.configuration.raw == {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "at-least-once",
        "execution.checkpointing.timeout": "1 min",
        "execution.checkpointing.min-pause": "5 ms",
        "execution.checkpointing.max-concurrent-checkpoints": "3",
        "execution.checkpointing.tolerable-failed-checkpoints": "2",
        "execution.checkpointing.num-retained": "4",
        "execution.checkpointing.incremental": "false",
        "execution.checkpointing.externalized-checkpoint-retention": "delete-on-cancellation",
        "state.checkpoints.dir": "/root",
        "state.backend.type": "hashmap",
        "parallelism.default": "2",
        "pipeline.max-parallelism": "64",
        "restart-strategy.type": "none",
        "s3.region": "here",
    }
    assert {env.configuration.origin(key) for key in env.configuration.raw} == {"code"}
    config.set_checkpoint_storage("jobmanager")
    assert env.configuration.value("execution.checkpointing.storage").value == "jobmanager"
    config.set_checkpoint_storage("/dir")
    assert env.configuration.raw["execution.checkpointing.storage"] == "filesystem"
    assert env.configuration.raw["state.checkpoints.dir"] == "/dir"


def test_the_command_line_wins_over_setters(editor):
    env = StreamExecutionEnvironment(root="/root")
    env._editor = editor
    env.enable_checkpointing("1 s").set_parallelism(2)
    env.get_checkpoint_config().set_checkpoint_storage("/code").set_num_retained_checkpoints(3)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 1))
    assert env.get_parallelism() == 7
    settings = env.get_checkpoint_config().settings
    assert (settings.interval_ms, settings.directory, settings.num_retained) == (60_000, "/line", 3)
    assert env.configuration.value("restart-strategy.type") == "none"


def test_a_setter_that_fails_changes_nothing(editor):
    config = CheckpointConfig(editor)
    before = editor.current
    with pytest.raises(ConfigurationError, match="interval is 5 ms: it must be at least 10"):
        config.set_checkpoint_interval(5)
    assert editor.current is before
