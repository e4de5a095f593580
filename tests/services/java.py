"""Options with which a short-lived Java process costs less; kept in .cache of the repository."""

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyspark

_CACHE = Path(__file__).parents[2] / ".cache" / "java"
# Without the optimising compiler; and nothing on standard output, which scripts of Spark parse.
_PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"


def java_options(run: Callable[[str], None]) -> str:
    """Options for `JDK_JAVA_OPTIONS`, with an archive of Spark's classes.

    Loading them from an archive, parsed and verified, takes a third off the cost of a driver.
    Java ignores an archive that does not fit, so nothing depends on it.

    Args:
        run: Runs a driver with the options given, and returns when its Java process has ended;
            only called when there is no archive yet.
    """
    archive = _CACHE / f"{_fingerprint()}.jsa"
    if not archive.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        new = archive.with_suffix(f".{os.getpid()}")
        run(f"{_PLAIN} -XX:ArchiveClassesAtExit={new}")
        if not new.exists():
            return _PLAIN
        new.rename(archive)
    return f"{_PLAIN} -XX:SharedArchiveFile={archive}"


def _fingerprint() -> str:
    """Which Java and which Spark this is."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    spark = pyspark.__version__.encode() + pyspark.__file__.encode()
    return hashlib.sha256(version + spark).hexdigest()[:16]
