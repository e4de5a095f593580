import pytest

from turnback.core.errors import ConfigurationError
from turnback.runtime.spark.java import check_java


@pytest.fixture
def java(tmp_path, monkeypatch):
    """Puts a program named java, and nothing else, on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    def install(says: str) -> None:
        program = tmp_path / "java"
        program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        program.chmod(0o755)

    return install


def test_no_java_says_what_to_install(java):
    with pytest.raises(ConfigurationError, match=r"none on PATH\. Install Java 17 or newer"):
        check_java()


@pytest.mark.parametrize(
    ("says", "major"), [('openjdk version "11.0.22" 2024-01-16', 11), ('java version "1.8.0"', 8)]
)
def test_old_java_says_what_to_install(java, says, major):
    java(says)
    with pytest.raises(ConfigurationError, match=rf"is Java {major}, too old.*Install Java 17"):
        check_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_new_java_is_fine(java, version):
    java(f'openjdk version "{version}" 2025-04-15')
    assert check_java() == int(version[:2])


def test_something_else_named_java(java):
    java("Hello")
    with pytest.raises(ConfigurationError, match="does not answer as Java does"):
        check_java()


def test_java_home_without_java(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME is .*gone"):
        check_java()
