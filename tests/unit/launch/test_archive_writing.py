"""Writing the archive of Spark's classes, as far as it goes without Spark."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from turnback.launch.class_archive import main, start_writing, write
from turnback.spark.class_archive import ClassArchive


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """Where the archive of a Java would be that does not start."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho no memory >&2\nexit 1\n")
    java.chmod(0o755)
    for name in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "TURNBACK_ROOT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    archive = ClassArchive.locate()
    assert archive is not None
    return archive


def test_a_failure_is_noted_and_not_repeated(archive: ClassArchive) -> None:
    assert not write(archive)
    assert "no memory" in archive.failure.read_text()
    assert not archive.is_wanted()
    assert start_writing() is None


def test_only_one_process_writes_it(archive: ClassArchive) -> None:
    archive.path.parent.mkdir(parents=True)
    with (archive.path.parent / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not write(archive)
    assert archive.is_wanted()  # it was not even tried


def test_where_nothing_can_be_written_it_says_so(
    archive: ClassArchive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("no directory")
    assert main() == 1
    assert "cannot write to" in capsys.readouterr().out
