import subprocess
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from turnback.errors import ConfigurationError, SparkUnavailableError
from turnback.spark.internals import lost_jvm, unless_jvm_lost
from turnback.spark.session import check_java


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
    with pytest.raises(ConfigurationError, match=r"no java on PATH\. Install Java 17 or newer"):
        check_java()


@pytest.mark.parametrize(
    ("says", "major"), [('openjdk version "11.0.22" 2024-01-16', 11), ('java version "1.8.0"', 8)]
)
def test_old_java_says_what_to_install(java, says, major):
    java(says)
    with pytest.raises(
        ConfigurationError, match=rf"is Java {major}, which is too old.*Install Java 17"
    ):
        check_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_new_java_is_fine(java, version):
    java(f'openjdk version "{version}" 2025-04-15')
    assert check_java() == int(version[:2])


def test_something_else_named_java(java):
    java("Hello")
    with pytest.raises(ConfigurationError, match="is not that of Java"):
        check_java()


def test_java_that_does_not_start_may_do_so_later(java, tmp_path):
    java("There is insufficient memory")
    with (tmp_path / "java").open("a") as program:
        program.write("exit 1\n")
    with pytest.raises(SparkUnavailableError, match="exit status 1: There is insufficient memory"):
        check_java()


class JavaContext:
    """Spark's context in the JVM."""

    def __init__(self, stopped=False, error=None):
        self.stopped = stopped
        self.error = error

    def sc(self):
        return self

    def isStopped(self):
        if self.error is not None:
            raise self.error
        return self.stopped


def session(java_context, process=None):
    gateway = SimpleNamespace(proc=process)
    context = SimpleNamespace(_jsc=java_context, _gateway=gateway)
    return SimpleNamespace(sparkContext=context)


def ended(command):
    process = subprocess.Popen(["sh", "-c", command])
    process.wait()
    return process


REFUSED = (ConnectionRefusedError(111, "refused"), Py4JNetworkError("Answer is empty"))


def test_a_jvm_that_answers_is_not_lost():
    assert lost_jvm(session(JavaContext())) is None


@pytest.mark.parametrize("java_context", [None, JavaContext(stopped=True)])
def test_a_context_that_was_stopped_is_lost(java_context):
    assert "context was stopped" in lost_jvm(session(java_context))


@pytest.mark.parametrize("error", REFUSED)
@pytest.mark.parametrize(
    ("command", "fate"),
    [("kill -9 $$", "was killed by signal 9"), ("exit 52", "ended with exit status 52")],
)
def test_what_became_of_a_jvm_is_told(error, command, fate):
    told = lost_jvm(session(JavaContext(error=error), ended(command)))
    assert told.startswith(f"its JVM {fate}. The usual reason is memory")


def test_a_jvm_that_is_no_child_of_this_process_is_lost_when_it_does_not_answer():
    assert "no longer responds" in lost_jvm(session(JavaContext(error=REFUSED[0])))


@pytest.mark.parametrize("error", REFUSED)
def test_tidying_up_in_a_lost_jvm_is_left_out(error):
    with unless_jvm_lost("stopping the query"):
        raise error
    with pytest.raises(ValueError, match="a real one"), unless_jvm_lost("stopping the query"):
        raise ValueError("a real one")


def test_java_home_without_java(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME is .*gone"):
        check_java()
