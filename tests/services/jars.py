"""Jars that tests need, fetched once by a small pom, and kept in .cache of the repository."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import uuid
from pathlib import Path

from services.missing import missing

_HERE = Path(__file__).parent
_CACHE = _HERE.parents[1] / ".cache"


def fetched_jars(pom: str, place: str, what: str) -> Path:
    """The directory with what a pom depends on; a changed pom is another directory.

    Args:
        pom: A file beside this one.
        place: Where to keep them in .cache.
        what: Whose jars they are, to say so if they cannot be had.
    """
    text = (_HERE / pom).read_bytes()
    cache = _CACHE / place
    target = cache / f"{pom.partition('.')[0]}-{uuid.uuid5(uuid.NAMESPACE_OID, text.decode())}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            if shutil.which("mvn") is None or shutil.which("java") is None:
                missing(f"{what} jars cannot be fetched: Maven or Java is not installed")
            new = target.with_suffix(".new")
            copy = ["dependency:copy-dependencies", f"-DoutputDirectory={new}"]
            done = subprocess.run(["mvn", "-q", "-B", "-f", _HERE / pom, *copy], timeout=540)
            if done.returncode:
                missing(f"Maven could not fetch {what} jars")
            new.rename(target)
    return target


def spark_jars(directory: Path) -> str:
    """The jars in a directory, as `spark.jars` takes them."""
    return ",".join(map(str, sorted(directory.glob("*.jar"))))
