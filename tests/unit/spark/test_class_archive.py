"""The archive of Spark's classes: where it is, and when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnback.spark.class_archive import JVM_OPTIONS, ClassArchive

_VARIABLES = (
    *("HADOOP_CONF_DIR", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS"),
    *("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "YARN_CONF_DIR"),
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Java, a Spark and a cache directory of its own."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "java" / "bin").mkdir(parents=True)
    (tmp_path / "java" / "bin" / "java").write_text("")
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"')
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "core.jar").write_text("classes")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def located() -> ClassArchive:
    archive = ClassArchive.locate()
    assert archive is not None
    return archive


def written(archive: ClassArchive) -> ClassArchive:
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    new = archive.path.with_suffix(".new")
    new.write_text("an archive")
    archive.install(new)
    return archive


def test_another_java_or_other_jars_have_another_archive(machine: Path) -> None:
    first = located()
    assert first == located()
    (machine / "java" / "release").write_text('JAVA_VERSION="21.0.1"')
    second = located()
    (machine / "spark" / "jars" / "core.jar").write_text("other classes")
    third = located()
    os.utime(machine / "spark" / "jars" / "core.jar", (1, 1))
    assert len({first, second, third, located()}) == 4


def test_it_is_used_once_it_is_there(machine: Path) -> None:
    archive = located()
    assert archive.is_wanted()
    assert not archive.is_there()
    written(archive)
    assert archive.is_there()
    assert not archive.is_wanted()
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.use()[JVM_OPTIONS]


def test_one_that_others_may_write_is_not_used(machine: Path) -> None:
    archive = written(located())
    archive.path.chmod(0o664)
    assert not archive.is_there()


def test_one_that_was_given_up_is_not_written_again(machine: Path) -> None:
    archive = written(located())
    archive.give_up("Java crashed")
    assert not archive.is_there()
    assert not archive.is_wanted()
    assert archive.failure.read_text() == "Java crashed"


def test_giving_up_where_nothing_can_be_written_is_no_error(machine: Path) -> None:
    (machine / "cache").write_text("no directory")
    archive = located()
    archive.give_up("Java crashed")
    assert not archive.is_there()


def test_only_those_that_were_used_last_are_kept(machine: Path) -> None:
    jar = machine / "spark" / "jars" / "core.jar"
    archives = []
    for age in range(5):
        os.utime(jar, (age, age))
        archives.append(written(located()))
        os.utime(archives[-1].path, (age, age))
    assert [archive.is_there() for archive in archives] == [False, False, True, True, True]


@pytest.mark.parametrize("option", ["-Xshare:off", "-XX:SharedArchiveFile=/tmp/mine.jsa"])
def test_the_users_own_options_win(
    machine: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Xmx1g {option}")
    assert ClassArchive.locate() is None


def test_a_configuration_directory_on_the_class_path_cannot_be_archived(machine: Path) -> None:
    (machine / "spark" / "conf").mkdir()
    assert ClassArchive.locate() is not None
    (machine / "spark" / "conf" / "spark-defaults.conf").write_text("")
    assert ClassArchive.locate() is None


def test_without_a_home_there_is_none(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(machine))
    assert located().path.is_relative_to(machine / ".cache" / "turnback")
    monkeypatch.setattr(Path, "home", _no_home)
    assert ClassArchive.locate() is None


def _no_home() -> Path:
    raise RuntimeError("no home directory")


def test_without_java_or_spark_there_is_none(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(machine / "nowhere"))
    assert ClassArchive.locate() is None
    monkeypatch.setenv("SPARK_HOME", str(machine / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(machine / "nowhere"))
    assert ClassArchive.locate() is None
