"""Settings go to Spark's JVM by a file that nobody else can read, and that does not stay."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import pytest

from turnback.errors import ConfigurationError
from turnback.spark.session import encode_properties, settings_file

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(ARGUMENTS, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    return tmp_path


def test_the_jvm_is_told_of_a_private_file_which_goes(machine: Path) -> None:
    with settings_file({"spark.password": "hidden"}):
        option, name, *rest = shlex.split(os.environ[ARGUMENTS])
        assert (option, rest) == ("--properties-file", ["pyspark-shell"])
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(name).parent.stat().st_mode) == 0o700
        assert Path(name).read_text().strip() == "spark.password=hidden"
    assert ARGUMENTS not in os.environ
    assert list(machine.iterdir()) == []


def test_what_a_killed_driver_left_goes_with_the_next_start(machine: Path) -> None:
    left = machine / "turnback-spark-1-dead"
    left.mkdir()
    (left / "spark.properties").write_text("spark.password=hidden")
    (machine / "turnback-spark-1-dead.lock").touch()
    with settings_file({}):
        assert not left.exists()


def test_defaults_of_the_installation_come_first(machine: Path) -> None:
    (machine / "conf").mkdir()
    (machine / "conf" / "spark-defaults.conf").write_text("spark.a  1\nspark.b 1")
    with settings_file({"spark.b": "2"}):
        name = shlex.split(os.environ[ARGUMENTS])[1]
        assert Path(name).read_text().split("\n\n") == ["spark.a  1\nspark.b 1", "spark.b=2\n"]


@pytest.mark.parametrize("form", ["--properties-file {}", "--properties-file={}"])
def test_a_file_the_user_names_is_part_of_it(
    machine: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    (machine / "mine").write_text("spark.a 1")
    given = f"--packages a:b:1 {form.format(machine / 'mine')} pyspark-shell"
    monkeypatch.setenv(ARGUMENTS, given)
    with settings_file({"spark.b": "2"}):
        _, name, *rest = shlex.split(os.environ[ARGUMENTS])
        assert rest == ["--packages", "a:b:1", "pyspark-shell"]
        assert Path(name).read_text() == "spark.a 1\n\nspark.b=2\n"
    assert os.environ[ARGUMENTS] == given


def test_a_file_that_is_not_there_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARGUMENTS, f"--properties-file {machine}/none pyspark-shell")
    wrong = pytest.raises(ConfigurationError, match="none, which cannot be read: No such file")
    with wrong, settings_file({}):
        pass
    assert [path.name for path in machine.iterdir()] == []


def test_any_value_stays_one_line() -> None:
    assert encode_properties({"spark.a": "x=1\n# ü\\"}) == (
        b"spark.a=x\\u003d1\\u000a\\u0023\\u0020\\u00fc\\u005c\n"
    )
