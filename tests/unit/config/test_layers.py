"""Which layer wins, and what each says of itself."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from turnback.config.checkpointing import CheckpointingMode
from turnback.config.configuration import Configuration, Precedence, variable_of
from turnback.errors import ConfigurationError

KEY = "state.savepoints.dir"
ALIAS = "execution.checkpointing.savepoint-dir"


@pytest.fixture
def load(tmp_path):
    """Load a configuration from nothing but what is given."""

    def load(file=None, environ=None, code=None, command_line=None):
        (tmp_path / "turnback.yaml").unlink(missing_ok=True)
        if file is not None:
            (tmp_path / "turnback.yaml").write_text(file)
        return Configuration.load(code, command_line, environ=environ or {}, directory=tmp_path)

    return load


def test_each_layer_overrides_the_one_before(load):
    layers = {
        "file": (f"{KEY}: /file", "turnback.yaml"),
        "environ": ({"TURNBACK_CONF_STATE_SAVEPOINTS_DIR": "/variable"}, None),
        "code": ({KEY: "/code"}, "code"),
        "command_line": ({KEY: "/line"}, "-D"),
    }
    origins = ["turnback.yaml", "TURNBACK_CONF_STATE_SAVEPOINTS_DIR", "code", "-D"]
    values = ["/file", "/variable", "/code", "/line"]
    given = {}
    configuration = load()
    assert (configuration.value(KEY), configuration.origin(KEY)) == (None, "default")
    for (name, (content, _)), origin, value in zip(layers.items(), origins, values, strict=True):
        given[name] = content
        configuration = load(**given)
        assert (configuration.value(KEY), configuration.origin(KEY)) == (value, origin)
    only_file = load(file=layers["file"][0], command_line={"parallelism.default": "2"})
    assert only_file.raw == {KEY: "/file", "parallelism.default": "2"}


def test_another_name_in_a_later_layer_overrides(load):
    configuration = load(file=f"{KEY}: /file", command_line={ALIAS: "/line"})
    assert configuration.raw == {KEY: "/line"}
    configuration = load(file=f"{ALIAS}: /file", code={KEY: "/code"})
    assert configuration.raw == {KEY: "/code"}
    assert configuration.value(ALIAS) == "/code"
    variable = variable_of(ALIAS)
    assert variable == "TURNBACK_CONF_EXECUTION_CHECKPOINTING_SAVEPOINT_DIR"
    configuration = load(file=f"{KEY}: /file", environ={variable: "/variable"})
    assert (configuration.value(KEY), configuration.origin(KEY)) == ("/variable", variable)


def test_two_names_in_one_layer_must_agree(load):
    both = {KEY: "/a", ALIAS: "/b"}
    for name in ("code", "command_line"):
        with pytest.raises(ConfigurationError, match=f"{ALIAS} and {KEY} differ: keep one"):
            load(**{name: both})
    with pytest.raises(ConfigurationError, match=r"turnback\.yaml: .* differ"):
        load(file=f"{KEY}: /a\n{ALIAS}: /b")
    with pytest.raises(ConfigurationError, match="differ"):
        load(environ={variable_of(KEY): "/a", variable_of(ALIAS): "/b"})
    assert load(code={KEY: "/a", ALIAS: "/a"}).value(KEY) == "/a"
    same = {"execution.checkpointing.num-retained": 2, "state.checkpoints.num-retained": "2"}
    assert load(code=same).value("state.checkpoints.num-retained") == 2


def test_code_comes_after_what_a_program_was_made_with_and_before_the_command_line(load):
    first = load(code={KEY: "/made", "parallelism.default": 2}, command_line={KEY: "/line"})
    second = first.with_code(KEY, "/set").with_code("parallelism.default", 3)
    assert (second.value(KEY), second.origin(KEY)) == ("/line", "-D")
    assert (second.value("parallelism.default"), second.origin("parallelism.default")) == (
        3,
        "code",
    )
    assert first.value("parallelism.default") == 2  # never changes
    third = second.without_code("parallelism")
    assert third.value("parallelism.default") == 2
    assert third.raw == first.raw != second.raw
    assert second.precedence(KEY) is Precedence.COMMAND_LINE
    assert second.precedence("log.level") is Precedence.DEFAULT


def test_the_root_variable_counts_where_nothing_else_does(load):
    environ = {"TURNBACK_ROOT": "/root"}
    key = "state.checkpoints.dir"
    configuration = load(environ=environ)
    assert (configuration.value(key), configuration.origin(key)) == ("/root", "TURNBACK_ROOT")
    for other in (
        {"file": f"{key}: /other"},
        {"code": {"execution.checkpointing.dir": "/other"}},
        {"command_line": {key: "/other"}},
        {"environ": environ | {variable_of(key): "/other"}},
    ):
        assert load(**({"environ": environ} | other)).value(key) == "/other"
    assert load(environ={"TURNBACK_ROOT": ""}).value(key) == "~/.turnback/jobs"


def test_values_are_kept_as_people_write_them(load):
    configuration = load(
        code={
            "execution.checkpointing.interval": 10_000,
            "execution.checkpointing.timeout": timedelta(minutes=90),
            "execution.checkpointing.min-pause": "250",
            "execution.checkpointing.mode": CheckpointingMode.AT_LEAST_ONCE,
            "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
            "savepoints.on-stop": False,
            "state.checkpoints.dir": Path("/x"),
            "restart-strategy": "fixed_delay",
            "spark.sql.shuffle.partitions": 4,
        }
    )
    assert configuration.raw == {
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.timeout": "90 min",
        "execution.checkpointing.min-pause": "250 ms",
        "execution.checkpointing.mode": "at-least-once",
        "execution.checkpointing.externalized-checkpoint-retention": "delete-on-cancellation",
        "savepoints.on-stop": "false",
        "state.checkpoints.dir": "/x",
        "restart-strategy.type": "fixed-delay",
        "spark.sql.shuffle.partitions": "4",
    }
    assert configuration.value("execution.checkpointing.interval") == 10_000
    assert configuration.value("savepoints.on-stop") is False
    # What is kept reads as the same again.
    assert load(command_line=configuration.raw).raw == configuration.raw


def test_every_default_can_be_written_down(load):
    from turnback.config.options import OPTIONS

    defaults = {option.key: option.default for option in OPTIONS if option.default is not None}
    written = load(command_line=defaults)
    for option in OPTIONS:
        assert written.value(option.key) == load().value(option.key)
        if option.default is not None and not option.secret:
            assert written.raw.get(option.key, option.default) == option.default


def test_entries_say_everything_but_secrets(load):
    code = {"s3.secret-key": "hush", "spark.hadoop.fs.s3a.secret.key": "hush", "spark.a": "b"}
    configuration = load(code=code, command_line={"log.level": "DEBUG"})
    entries = {entry.key: entry for entry in configuration.entries()}
    assert list(entries) == sorted(entries)
    level = entries["log.level"]
    assert (level.value_text, level.origin, level.is_set) == ("debug", "-D", True)
    port = entries["web.port"]
    assert (port.value_text, port.origin, port.is_set) == ("8081", "default", False)
    assert entries["parallelism.default"].value_text is None
    assert entries["s3.secret-key"].value_text == "****"
    assert entries["s3.session-token"].value_text is None
    assert entries["spark.hadoop.fs.s3a.secret.key"].value_text == "****"
    assert entries["spark.a"].value_text == "b"
    assert all(entry.doc for entry in entries.values())
    assert "hush" not in repr(configuration)
    assert "hush" not in repr(configuration.entries())
    assert configuration.raw["s3.secret-key"] == "hush"


def test_a_program_cannot_change_what_it_is_shown(load):
    raw = load(code={KEY: "/x"}).raw
    with pytest.raises(TypeError):
        raw[KEY] = "/y"


def test_scheduled_either_way_but_not_both(load):
    interval, cron = "savepoints.schedule.interval", "savepoints.schedule.cron"
    configuration = load(file=f"{interval}: 6 h", command_line={cron: "0 3 * * *"})
    assert configuration.raw == {cron: "0 3 * * *"}
    configuration = load(file=f"{cron}: 0 3 * * *", code={interval: "1 h"})
    assert configuration.raw == {interval: "1 h"}
    assert len(load(code={interval: "1 h", cron: "0 3 * * *"}).raw) == 2
