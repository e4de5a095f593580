"""Every mistake is named with its place, its key and what to do."""

from __future__ import annotations

import pytest

from turnback.config.configuration import Configuration, parse_pairs
from turnback.errors import ConfigurationError


@pytest.fixture
def load(tmp_path):
    def load(code=None, command_line=None, **environ):
        return Configuration.load(code, command_line, environ=environ, directory=tmp_path)

    return load


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state.backnd: rocksdb", r"^turnback\.yaml: unknown key 'state\.backnd'; did you mean"),
        ("web: {prt: 1}", r"unknown key 'web\.prt'; did you mean 'web\.port'"),
        ("zzz: 1", r"unknown key 'zzz'$"),
        ("1: 2", "unknown key '1'$"),
        ("spark: x", "unknown key 'spark'"),
        ("spark.: x", r"unknown key 'spark\.'"),
        ("- a\n- b", "must contain keys and values"),
        ("just text", "must contain keys and values"),
        ("a: [", "is not valid YAML: .* in line 1"),
        ("a: \0", "cannot be read as YAML"),
        ("&a a: *a\nb: &x {c: *x}", "is not valid YAML"),
        ("[a, b]: c", "is not valid YAML"),
        ("web.port: 1\nweb.port: 2", "'web.port' appears twice in line 2"),
        ("web.port: 1\nweb: {port: 2}", r"two values of web\.port differ"),
        ("web.port:", r"turnback\.yaml: web\.port has no value"),
        ("state.savepoints.dir: null", "dir has no value"),
        ("state.savepoints.dir: ''", "dir is empty"),
        ("state.savepoints.dir: [a, b]", "dir is a list: it must be text"),
        ("web.port: 70000", r"web\.port is '70000': it must be at most 65535"),
        ("web.port: -1", "at least 0"),
        ("web.port: http", "whole number"),
        ("web.read-only: maybe", "true or false"),
        ("log.level: loud", "one of debug, info, warning, error"),
        ("log.format: xml", "one of text, json"),
        ("parallelism.default: 0", "at least 1"),
        ("state.backend: etcd", r"state\.backend: unknown state backend 'etcd'; available"),
        ("execution.checkpointing.timeout: 5 ms", "timeout is 5 ms: it must be at least 10 ms"),
        ("execution.checkpointing.interval: 1.5", "not a whole number of milliseconds"),
        ("savepoints.schedule.cron: daily", r"turnback\.yaml: savepoints\.schedule\.cron is"),
        ("savepoints.schedule.timezone: Mars", "not a time zone"),
        ("savepoints.schedule.interval: 1 ms", "at least 1000 ms; omit it"),
        ("restart-strategy: sometimes", "restart-strategy is 'sometimes': it must be one of none"),
        ("restart-strategy.fixed-delay.attempts: x", "whole number, or unlimited"),
        ("restart-strategy.exponential-delay.jitter-factor: 2", "from 0 to 1"),
        ("restart-strategy.exponential-delay.backoff-multiplier: nan", "at least 1"),
        ("s3.path.style.access: 3", "true or false"),
    ],
)
def test_in_the_file(tmp_path, load, text, message):
    (tmp_path / "turnback.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load()


def test_a_file_that_is_no_text(tmp_path, load):
    (tmp_path / "turnback.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"turnback\.yaml cannot be read as YAML"):
        load()
    (tmp_path / "turnback.yaml").write_text("a: " + "[" * 1_000)
    with pytest.raises(ConfigurationError, match=r"turnback\.yaml cannot be read as YAML"):
        load()


def test_a_password_is_not_in_the_message(tmp_path, load):
    (tmp_path / "turnback.yaml").write_text("s3.secret-key: hush: hush\n")
    with pytest.raises(ConfigurationError, match="in line 1") as caught:
        load()
    assert "hush" not in str(caught.value)
    (tmp_path / "turnback.yaml").unlink()
    with pytest.raises(ConfigurationError, match="secret-key is a list") as caught:
        load({"s3.secret-key": ["hush"]})
    assert "hush" not in str(caught.value)


def test_values_of_the_file_mean_what_they_say(tmp_path, load):
    (tmp_path / "turnback.yaml").write_text(
        "restart-strategy: off\ns3.access-key: 0123\nsavepoints.on-stop: no\n"
        "state: {backend: {local-dir: 1:30}}\nspark.a.b: true\n"
    )
    assert load().raw == {
        "restart-strategy.type": "none",
        "s3.access-key": "0123",
        "savepoints.on-stop": "false",
        "state.backend.local-dir": "1:30",
        "spark.a.b": "true",
    }


def test_a_named_file(tmp_path, load):
    (tmp_path / "mine.yaml").write_text("web.port: 1")
    (tmp_path / "turnback.yaml").write_text("web.port: 2")
    configuration = load(TURNBACK_CONF="mine.yaml")
    assert (configuration.value("web.port"), configuration.origin("web.port")) == (1, "mine.yaml")
    path = str(tmp_path / "mine.yaml")
    assert load(TURNBACK_CONF=path).origin("web.port") == path
    assert load(TURNBACK_CONF="").value("web.port") == 2
    for name in ("gone.yaml", str(tmp_path)):
        with pytest.raises(ConfigurationError, match=r"TURNBACK_CONF is .* not a file"):
            load(TURNBACK_CONF=name)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WEB_PRT", "1", r"^TURNBACK_CONF_WEB_PRT does not match .*mean 'TURNBACK_CONF_WEB_PORT'"),
        ("web_port", "1", "does not match any configuration key"),
        ("", "1", "TURNBACK_CONF_ does not match any"),
        ("WEB_PORT", "x", r"^TURNBACK_CONF_WEB_PORT: web\.port is 'x': it must be a whole number"),
        ("WEB_ADDRESS", "", r"web\.address is empty"),
        ("SPARK_SQL_X", "1", "use the configuration file or -D"),
    ],
)
def test_in_a_variable(load, name, value, message):
    with pytest.raises(ConfigurationError, match=message):
        load(**{f"TURNBACK_CONF_{name}": value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"web.prt": 1}, r"unknown key 'web\.prt'; did you mean 'web\.port'"),
        ({3: 1}, "unknown key 3"),
        ({"web.port": None}, r"web\.port has no value"),
        ({"web.port": True}, "it must be a whole number"),
        ({"web.port": 1.5}, "it must be a whole number"),
        ({"web.port": {}}, "is a dict"),
        ({"state.backend.type": 3}, "unknown state backend 3"),
        ({"execution.checkpointing.interval": 1.5}, "1.5 is not a duration"),
        ("web.port=1", "must be keys and values.*got str"),
        ([("web.port", 1)], "got list"),
    ],
)
def test_in_code_and_on_the_command_line(load, settings, message):
    with pytest.raises(ConfigurationError, match=f"the configuration in code.*{message}"):
        load(settings)
    with pytest.raises(ConfigurationError, match=f"^-D.*{message}"):
        load(None, settings)


def test_asking_for_what_there_is_not(load):
    configuration = load()
    for ask in (configuration.value, configuration.origin, configuration.precedence):
        with pytest.raises(ConfigurationError, match=r"unknown key 'web\.prt'; did you mean"):
            ask("web.prt")
    with pytest.raises(ConfigurationError, match="unknown key None"):
        configuration.value(None)
    with pytest.raises(ConfigurationError, match=r"code: unknown key 'web\.prt'"):
        configuration.with_code("web.prt", 1)
    with pytest.raises(ConfigurationError, match=r"code: web\.port is 'x'"):
        configuration.with_code("web.port", "x")


def test_pairs():
    pairs = parse_pairs(["a=b", " c = d ", "e=f=g", "a=b", "empty="])
    assert pairs == {"a": "b", "c": "d", "e": "f=g", "empty": ""}
    assert parse_pairs([]) == {}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["web.port"], r"-D web\.port: expected key=value, for example -D parallelism\.default=4"),
        (["=3"], "expected key=value"),
        ([""], "expected key=value"),
        (["a=1", "a=2"], "-D a is given twice with different values"),
    ],
)
def test_wrong_pairs(pairs, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_pairs(pairs)
