"""Options with which a short-lived Java process costs less; kept in .cache of the repository."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

_TESTS = Path(__file__).parents[1]
_CACHE = _TESTS.parent / ".cache" / "java"
# Without the optimising compiler; and nothing on standard output, which scripts of Spark parse.
_PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """Options for `JDK_JAVA_OPTIONS`, with an archive of Spark's classes.

    Loading them from an archive, parsed and verified, takes a third off the cost of a driver.
    Java ignores an archive that does not fit, so nothing depends on it.
    """
    archive = _CACHE / f"{_fingerprint()}.jsa"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _write_archive(archive)
    return f"{_PLAIN} -XX:SharedArchiveFile={archive}"


def _write_archive(archive: Path) -> None:
    """Run a job whose JVM writes the classes it has loaded when it ends."""
    new = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory() as directory:
        events = Path(directory) / "events"
        events.mkdir()
        for number in range(2):
            row = json.dumps({"user": "ann", "kind": "even"})
            (events / f"{number}.json").write_text(row)
        subprocess.run(
            [sys.executable, _TESTS / "stories" / "counts.py", events, "out", "--bounded"],
            env=os.environ
            | {
                "JDK_JAVA_OPTIONS": f"{_PLAIN} -XX:ArchiveClassesAtExit={new}",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": "-Xshare:auto",  # see tests/conftest.py
                "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(Path(directory) / "jobs"),
            },
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=540,
            check=True,
        )
        _await_end_of_processes_with(str(new))
    new.rename(archive)


def _await_end_of_processes_with(text: str) -> None:
    """Wait for processes with a text in their environment: the JVM outlives its driver.

    The archive's existence says nothing: Spark's launcher is another JVM, which writes its own
    classes to the same file first.
    """
    end = time.monotonic() + 300
    while any(text.encode() in _environment(pid) for pid in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > end:
            raise TimeoutError("Java has not written its archive of classes within five minutes")
        time.sleep(0.1)


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""  # it has ended, or is another user's


def _fingerprint() -> str:
    """Which Java and which Spark this is, and how the archive is written."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    spark = pyspark.__version__.encode() + pyspark.__file__.encode()
    return hashlib.sha256(version + spark + Path(__file__).read_bytes()).hexdigest()[:16]
