"""Spark's checkpoint directories of drivers that were killed go; those of live ones never do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from turnback.spark.session import Scratch
from turnback.storage.directory import DirectoryLock

NOWHERE = 2**22 + 1
"""No process of this machine has this number, as if it were that of another container."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_nothing_is_left_of_one_that_is_removed(temporary: Path) -> None:
    scratch = Scratch({})
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    scratch.remove()
    assert names(temporary) == set()


@pytest.mark.slow
def test_a_driver_in_another_container_keeps_its_directory_until_it_dies(temporary: Path) -> None:
    """Containers may share the directory of temporary files, but not their process numbers."""
    script = f"""
        import os, sys, tempfile
        from turnback.spark.session import Scratch
        tempfile.tempdir = {str(temporary)!r}
        os.getpid = lambda: {NOWHERE}
        scratch = Scratch(dict())
        print(scratch.path, flush=True)
        sys.stdin.readline()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        assert theirs.name.startswith(f"turnback-spark-{NOWHERE}-")
        Scratch({}).remove()
        assert theirs.is_dir()
        other.kill()
    assert theirs.is_dir()
    Scratch({}).remove()
    assert names(temporary) == set()


def test_one_that_is_just_being_made_is_left_alone(temporary: Path) -> None:
    lock = DirectoryLock.take(temporary / f"turnback-spark-{NOWHERE}-new")
    assert lock is not None
    Scratch({}).remove()
    assert names(temporary) == {f"turnback-spark-{NOWHERE}-new.lock"}
    lock.release()
    Scratch({}).remove()
    assert names(temporary) == set()


def test_a_directory_without_a_lock_is_left_alone(temporary: Path) -> None:
    """It is of something else."""
    other = temporary / f"turnback-spark-{NOWHERE}-other"
    other.mkdir()
    Scratch({}).remove()
    assert names(temporary) == {other.name}


def test_those_of_other_users_are_not_touched(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = temporary / f"turnback-spark-{NOWHERE}-left"
    left.mkdir()
    left.with_name(f"{left.name}.lock").touch()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    Scratch({}).remove()
    assert left.is_dir()
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    Scratch({}).remove()
    assert names(temporary) == set()
