"""Settings in code: what is kept, what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from local_engine import FakeFrame, collected, environment, source
from turnback import CheckpointingMode, RestartStrategies, StreamExecutionEnvironment
from turnback.api.arguments import snapshot_text
from turnback.config import CheckpointStorage, ExternalizedCheckpointRetention
from turnback.config.configuration import job_root
from turnback.errors import ConfigurationError, PlanError


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def env():
    return StreamExecutionEnvironment()


def test_defaults_are_flinks(env):
    config = env.get_checkpoint_config()
    settings = config.settings
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() is None
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    assert settings.timeout_ms == 600_000
    assert settings.min_pause_ms == 0
    assert settings.max_concurrent == settings.num_retained == 1
    assert settings.tolerable_failures == 0
    assert settings.retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    assert env.get_max_parallelism() == 128


def test_every_option_of_a_checkpoint(env):
    config = env.enable_checkpointing("10 s").get_checkpoint_config()
    (
        config.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
        .set_checkpoint_timeout("1 min")
        .set_max_concurrent_checkpoints(3)
        .set_tolerable_checkpoint_failure_number(2)
        .set_num_retained_checkpoints(5)
        .set_externalized_checkpoint_retention(
            ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
        )
        .enable_incremental_checkpoints(False)
        .set_checkpoint_storage_dir(Path("/x"))
    )
    settings = config.settings
    assert config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() == 10_000
    assert (settings.timeout_ms, settings.max_concurrent) == (60_000, 3)
    assert (settings.tolerable_failures, settings.num_retained) == (2, 5)
    assert settings.directory == "/x"
    config.set_min_pause_between_checkpoints(timedelta(seconds=1))
    assert (config.settings.min_pause_ms, config.settings.max_concurrent) == (1_000, 1)
    config.set_checkpoint_storage("jobmanager")
    assert config.settings.storage is CheckpointStorage.JOBMANAGER
    config.set_checkpoint_storage(CheckpointStorage.FILESYSTEM)
    assert config.settings.storage is CheckpointStorage.FILESYSTEM


CONFIG = {
    "interval 0": (
        lambda c: c.set_checkpoint_interval(0),
        "at least 10 ms; omit it to disable them",
    ),
    "interval 'ten seconds'": (lambda c: c.set_checkpoint_interval("ten seconds"), "not a durat"),
    "negative": (lambda c: c.set_checkpoint_interval(-5), "-5 is negative"),
    "negative text": (lambda c: c.set_checkpoint_interval("-5 s"), "not a duration"),
    "negative delta": (lambda c: c.set_checkpoint_interval(timedelta(seconds=-1)), "is negative"),
    "None": (lambda c: c.set_checkpoint_interval(None), "None is not a duration"),
    "a float": (lambda c: c.set_checkpoint_interval(1.5), "1.5 is not a duration"),
    "mode": (lambda c: c.set_checkpointing_mode("exactly_once"), "must be a CheckpointingMode"),
    "timeout": (lambda c: c.set_checkpoint_timeout(0), "timeout is 0"),
    "pause": (lambda c: c.set_min_pause_between_checkpoints("soon"), "minimum pause: 'soon'"),
    "concurrent": (lambda c: c.set_max_concurrent_checkpoints(0), "at least 1"),
    "concurrent text": (lambda c: c.set_max_concurrent_checkpoints("2"), "is '2'"),
    "failures": (lambda c: c.set_tolerable_checkpoint_failure_number(-1), "at least 0"),
    "retained": (lambda c: c.set_num_retained_checkpoints(0), "num-retained is 0"),
    "retained None": (lambda c: c.set_num_retained_checkpoints(None), "num-retained is None"),
    "retention": (lambda c: c.set_externalized_checkpoint_retention("keep"), "must be an External"),
    "incremental": (lambda c: c.enable_incremental_checkpoints("no"), "True or False, not 'no'"),
    "storage": (lambda c: c.set_checkpoint_storage(3), "must be a path or a URI, got 3"),
    "no storage": (lambda c: c.set_checkpoint_storage(""), "must be a path or a URI, got ''"),
}


@pytest.mark.parametrize("case", CONFIG)
def test_wrong_options_of_a_checkpoint(env, case):
    config = env.enable_checkpointing(1_000).get_checkpoint_config()
    before = config.settings
    call, message = CONFIG[case]
    with pytest.raises(ConfigurationError, match=message):
        call(config)
    assert config.settings == before


ENVIRONMENT = {
    "interval": (lambda e: e.enable_checkpointing("ten seconds"), "checkpoint interval: 'ten"),
    "interval 0": (lambda e: e.enable_checkpointing(0), "interval"),
    "interval below 0": (lambda e: e.enable_checkpointing(-5), "interval"),
    "interval in parsecs": (lambda e: e.enable_checkpointing("10 parsecs"), "10 parsecs"),
    "interval None": (lambda e: e.enable_checkpointing(None), "interval"),
    "interval 3.5": (lambda e: e.enable_checkpointing(3.5), "interval"),
    "mode": (lambda e: e.enable_checkpointing(1_000, "often"), "must be a CheckpointingMode"),
    "backend": (lambda e: e.set_state_backend("rocks"), "unknown state backend 'rocks'; available"),
    "backend list": (lambda e: e.set_state_backend(["rocksdb"]), "unknown state backend"),
    "restart": (lambda e: e.set_restart_strategy("none"), "takes one of RestartStrategies"),
    "parallelism": (lambda e: e.set_parallelism(0), "parallelism must be a whole number above 0"),
    "parallelism text": (lambda e: e.set_parallelism("2"), "got '2'"),
    "max": (lambda e: e.set_max_parallelism(32_769), "at most 32768"),
    "max 0": (lambda e: e.set_max_parallelism(0), "max parallelism must be a whole number"),
    "a negative delay": (
        lambda e: e.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, -1)),
        "is negative",
    ),
    "negative attempts": (
        lambda e: e.set_restart_strategy(RestartStrategies.fixed_delay_restart(-1, 1)),
        "at least 0",
    ),
}


@pytest.mark.parametrize("case", ENVIRONMENT)
def test_wrong_settings(env, case):
    call, message = ENVIRONMENT[case]
    with pytest.raises(ConfigurationError, match=message):
        call(env)


def hidden():
    Path("_x").touch()
    return "_x"


SOURCES = {
    "no frame": (lambda e: e.from_dataframe("df"), "takes a DataFrame, got str"),
    "static": (
        lambda e: e.from_dataframe(FakeFrame("a string", isStreaming=False)),
        "streaming DataFrame, but this one is static; use spark.readStream",
    ),
    "twice": (
        lambda e: e.from_dataframe(SimpleNamespace(isStreaming=True, columns=["a", "A"])),
        "more than one column named a",
    ),
    "uid": (lambda e: e.from_dataframe(FakeFrame("a string"), uid=""), "uid must not be empty"),
    "text": (lambda e: e.from_collection("abc"), "takes a list of elements, got 'abc'"),
    "number": (lambda e: e.from_collection(3), "takes a list of elements, got 3"),
    "format": (lambda e: e.from_files(".", "jsn", "a string"), "unknown format 'jsn'; available"),
    "scalar": (lambda e: e.from_files(".", "json", "string"), "the schema must have named columns"),
    "missing": (lambda e: e.from_files("gone", "json", "a string"), "gone does not exist"),
    "hidden": (
        lambda e: e.from_files(hidden(), "json", "a string"),
        "_x is hidden: Spark does not read",
    ),
    "schema": (lambda e: e.from_files(".", "json", object()), "not a type that can be used"),
}


@pytest.mark.parametrize("case", SOURCES)
def test_wrong_sources(case):
    env = StreamExecutionEnvironment(spark=SimpleNamespace())
    call, message = SOURCES[case]
    with pytest.raises(PlanError, match=message):
        call(env)


def test_wrong_numbers_of_files():
    env = StreamExecutionEnvironment(spark=SimpleNamespace())
    for number in (0, -1, "3", True):
        with pytest.raises(ConfigurationError, match="max_files_per_epoch must be a whole number"):
            env.from_files(".", "json", "a string", max_files_per_epoch=number)
    for size in (0, -1, 1.5, "many", True, "1 kg"):
        with pytest.raises(ConfigurationError, match="max_bytes_per_epoch"):
            env.from_files(".", "json", "a string", max_bytes_per_epoch=size)
    with pytest.raises(ConfigurationError, match=r"either max_files_per_epoch or max_bytes"):
        env.from_files(".", "json", "a string", max_files_per_epoch=1, max_bytes_per_epoch=1)
    with pytest.raises(ConfigurationError, match="path must be a path"):
        env.from_files(3, "json", "a string")


EXECUTE = {
    "name": ({"job_name": "a\nb"}, "job name .* not printable"),
    "name number": ({"job_name": 3}, "job name must be a string"),
    "both": ({"fresh": True, "start_from": 3}, "cannot be used together"),
    "snapshot": ({"start_from": 1.5}, "start_from must be a checkpoint's number"),
    "snapshot True": ({"start_from": True}, "got True"),
    "snapshot ''": ({"start_from": ""}, "got ''"),
    "interval": ({"epoch_interval": "now"}, "epoch interval: 'now'"),
}


@pytest.mark.parametrize("case", EXECUTE)
def test_wrong_ways_to_run(case):
    env = environment()
    collected(source(env, "s", "a string"), "out")
    how, message = EXECUTE[case]
    with pytest.raises(ConfigurationError, match=message):
        env.execute_async(**{"job_name": "job", **how})


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", (tmp_path / "file" / "below").as_uri()):
        env = StreamExecutionEnvironment(root=root, engine=SimpleNamespace()).set_parallelism(1)
        collected(source(env, "s", "a string"), "out")
        with pytest.raises(ConfigurationError, match="file"):
            env.execute_async("job")
    with pytest.raises(ConfigurationError, match="root must be a path or a URI, got 3"):
        StreamExecutionEnvironment(root=3)


def test_which_snapshot():
    assert snapshot_text(None) is None
    assert snapshot_text(7) == 7
    assert snapshot_text("chk-7") == "chk-7"
    assert snapshot_text(Path("/a/chk-7.json")) == "/a/chk-7.json"
    assert snapshot_text(datetime(2026, 1, 31, 12)) == "2026-01-31T12:00:00"


def test_where_jobs_are(monkeypatch, tmp_path):
    def root(where=None):
        return job_root(StreamExecutionEnvironment(root=where).configuration)

    assert root("s3://bucket/jobs") == "s3://bucket/jobs"
    assert root("here") == str(tmp_path / "here")
    monkeypatch.setenv("TURNBACK_ROOT", "/from/variable")
    assert root() == "/from/variable"
    assert root("/other") == "/other"
    monkeypatch.delenv("TURNBACK_ROOT")
    monkeypatch.setenv("HOME", "/home/me")
    assert root() == "/home/me/.turnback/jobs"
