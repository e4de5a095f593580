"""The archive of Spark's classes with a real JVM: written once, used, and never a hindrance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(400)]

WRITE = (sys.executable, "-m", "turnback.launch.class_archive")
SESSION = """
import sys
from pathlib import Path
from turnback.spark.session import spark_session
spark = spark_session("local[1]", spark__driver__memory="700m")
maps = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
print("archived" if ".jsa" in maps and "turnback/classes" in maps else "not archived")
print(spark.range(3).count())
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory with an archive, which two processes have tried to write at once."""
    directory = tmp_path_factory.mktemp("cache")
    first, second = (
        subprocess.Popen(WRITE, env=_environment(directory), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    outputs = first.communicate()[0], second.communicate()[0]
    assert sorted((first.returncode, second.returncode)) == [0, 1], outputs
    assert [path.suffix for path in _archives(directory)] == [".jsa"]
    return directory


def test_a_session_uses_the_archive(cache: Path) -> None:
    assert _session(cache) == ["archived", "3"]


def test_it_is_not_written_twice(cache: Path) -> None:
    (archive,) = _archives(cache)
    before = archive.stat().st_ino
    assert subprocess.run(WRITE, env=_environment(cache), check=False).returncode == 0
    assert archive.stat().st_ino == before


def test_a_session_starts_where_the_damage_crashes_java(cache: Path, tmp_path: Path) -> None:
    """Java checks the head of the file alone."""
    (archive,) = _archives(cache)
    data = bytearray(archive.read_bytes())
    data[1 << 20 : len(data) // 2] = b"\xff" * (len(data) // 2 - (1 << 20))
    place = tmp_path / "turnback" / "classes" / archive.name
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    place.chmod(0o444)
    assert _session(tmp_path) == ["not archived", "3"]
    assert not place.exists()
    assert place.with_suffix(".failed").exists()


def _archives(cache: Path) -> list[Path]:
    return [path for path in (cache / "turnback" / "classes").iterdir() if path.name != "lock"]


def _session(cache: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        env=_environment(cache),
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split("\n")[-3:-1]


def _environment(cache: Path) -> dict[str, str]:
    ours = {"XDG_CACHE_HOME": str(cache), "SPARK_LOCAL_IP": "127.0.0.1"}
    options = ("JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
    return {name: value for name, value in os.environ.items() if name not in options} | ours
